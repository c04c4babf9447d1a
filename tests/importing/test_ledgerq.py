"""Import a directory of LedgerQ: nothing is lost, and what was consumed is not delivered again."""

from pathlib import Path

import pytest

import penstock
from penstock.codec import parse_id
from penstock.errors import InvalidInput
from penstock.importing.ledgerq import LedgerQDirectory
from penstock.importing.record import ImportFailed
from penstock.importing.writing import import_queue
from tests.importing.ledgerq_files import (
    entry,
    write_metadata,
    write_retry_state,
    write_segment,
)

START_NS = 1_760_000_000_123_456_789


def at(n: int) -> int:
    return START_NS + n * 1_000_003


def plain(ids: range) -> list[bytes]:
    return [entry(n, f"message {n}".encode(), at(n)) for n in ids]


def test_messages_keep_time_headers_priority_expiry_and_payload(tmp_path: Path) -> None:
    far_ns = 4_000_000_000 * 10**9
    source = tmp_path / "q"
    write_segment(
        source,
        0,
        [
            entry(1, b"plain", at(1)),
            entry(2, b"high", at(2), priority=2, headers={"kind": "ä", "empty": ""}),
            entry(3, b"medium", at(3), priority=1, expires_ns=far_ns),
            entry(4, b"packed" * 500, at(4), compress=True, headers={"x": "y"}),
            entry(5, b"long gone", at(5), expires_ns=at(6)),
            entry(6, b"", at(6)),
        ],
    )
    write_metadata(source, 7, 1)
    strict = {"starvation_after_s": 0}  # else old messages of low priority come first
    made = import_queue(LedgerQDirectory(str(source)), str(tmp_path / "new"), settings=strict)
    assert (made.waiting, made.done, made.dead, made.problems) == (6, 0, 0, ())
    with penstock.open(tmp_path / "new") as queue:
        found = list(queue.browse())
        assert [m.payload for m in found] == [
            *(b"plain", b"high", b"medium", b"packed" * 500, b"long gone", b"")
        ]
        assert [m.published_ns for m in found] == [at(n) for n in range(1, 7)]
        assert [m.priority for m in found] == [0, 9, 5, 0, 0, 0]
        assert dict(found[1].headers) == {"kind": "ä", "empty": ""}
        assert abs(found[2].expires_at_ns - far_ns) < 1000
        # The id has the time of publication, in milliseconds.
        assert [parse_id(m.id)[0] for m in found] == [at(n) // 1_000_000 for n in range(1, 7)]
        # What expired is not delivered; the rest by priority.
        assert [m.payload[:6] for m in queue.dequeue_batch(10)] == [
            *(b"high", b"medium", b"plain", b"packed", b"")
        ]


def test_what_was_consumed_is_done_and_can_be_replayed(tmp_path: Path) -> None:
    source = tmp_path / "q"
    write_segment(source, 0, plain(range(1, 31)))
    write_segment(source, 30, plain(range(31, 51)))
    write_metadata(source, 51, 41)
    made = import_queue(LedgerQDirectory(str(source)), str(tmp_path / "new"))
    assert (made.waiting, made.done, made.dead) == (10, 40, 0)
    with penstock.open(tmp_path / "new") as queue:
        assert [m.payload for m in queue.dequeue_batch(50)] == [
            f"message {n}".encode() for n in range(41, 51)
        ]
        queue.seek(seq=1)
        assert len(queue.dequeue_batch(100)) == 50


def test_failed_deliveries_and_dead_letters_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "q"
    write_segment(source, 0, plain(range(1, 11)))
    write_metadata(source, 11, 9)
    write_retry_state(source, {2: (2, "timeout"), 9: (1, "seen again")}, max_retries=3)

    def dead(id: int, original: int, reason: str) -> bytes:
        headers = {
            "own": "1",
            "dlq.original_msg_id": str(original),
            "dlq.retry_count": "3",
            "dlq.failure_reason": reason,
            "dlq.last_failure": "2026-01-02T03:04:05.000Z",
        }
        return entry(id, f"message {original}".encode(), at(100 + id), headers=headers)

    letters = [dead(1, 3, "handled"), dead(2, 4, "no such user"), dead(3, 777, "compacted away")]
    write_segment(tmp_path / "q-dlq", 0, letters)
    write_metadata(tmp_path / "q-dlq", 4, 2)  # the first was consumed there
    made = import_queue(LedgerQDirectory(str(source)), str(tmp_path / "new"))
    assert (made.waiting, made.done, made.dead) == (3, 6, 2)
    with penstock.open(tmp_path / "new") as queue:
        letters_now = {one.message.payload: one for one in queue.dead()}
        assert {p: (one.reason, one.attempts) for p, one in letters_now.items()} == {
            b"message 4": ("no such user", 3),
            b"message 777": ("compacted away", 3),
        }
        headers = letters_now[b"message 777"].message.headers
        assert (headers["own"], headers["dlq.failure_reason"]) == ("1", "compacted away")
        leased = queue.lease(10)
        assert {m.payload: m.attempt for m in leased} == {
            b"message 2": 3,
            b"message 9": 2,
            b"message 10": 1,
        }
        assert queue.settings.max_attempts == 3


@pytest.mark.parametrize("cut", [1, 4, 5, 20, 39])
def test_a_torn_tail_is_left_out_and_reported(tmp_path: Path, cut: int) -> None:
    torn = entry(3, b"torn in the middle", at(3))[:cut]
    write_segment(tmp_path / "q", 0, plain(range(1, 3)), torn)
    made = import_queue(LedgerQDirectory(str(tmp_path / "q")), str(tmp_path / "new"))
    assert made.waiting == 2
    assert len(made.problems) == 1


def test_a_damaged_entry_does_not_hide_the_next_ones(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "q", 0, plain(range(1, 6)))
    data = bytearray(path.read_bytes())
    data[64 + len(plain(range(1, 2))[0]) + 25] ^= 1  # in the second entry
    path.write_bytes(data)
    made = import_queue(LedgerQDirectory(str(tmp_path / "q")), str(tmp_path / "new"))
    assert made.waiting == 4
    [problem] = made.problems
    assert "damaged" in problem
    with penstock.open(tmp_path / "new") as queue:
        assert [m.payload for m in queue.browse()] == [
            f"message {n}".encode() for n in (1, 3, 4, 5)
        ]


def test_marks_are_no_messages(tmp_path: Path) -> None:
    marks = [entry(2, b"", at(2), kind=2), entry(3, b"", at(3), kind=3)]
    write_segment(tmp_path / "q", 0, [*plain(range(1, 2)), *marks])
    made = import_queue(LedgerQDirectory(str(tmp_path / "q")), str(tmp_path / "new"))
    assert (made.waiting, made.problems) == (1, ())


def test_a_refused_message_stops_the_import_and_leaves_nothing(tmp_path: Path) -> None:
    long = {"name": "x" * 65_535}
    write_segment(tmp_path / "q", 0, [*plain(range(1, 3)), entry(3, b"p", at(3), headers=long)])
    source = LedgerQDirectory(str(tmp_path / "q"))
    with pytest.raises(ImportFailed, match=r"message 3 .*Nothing was created.*--skip-refused"):
        import_queue(source, str(tmp_path / "new"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["q"]
    made = import_queue(source, str(tmp_path / "new"), skip_refused=True)
    assert (made.waiting, made.refused) == (2, 1)


def test_the_target_must_be_new(tmp_path: Path) -> None:
    write_segment(tmp_path / "q", 0, plain(range(1, 3)))
    source = LedgerQDirectory(str(tmp_path / "q"))
    import_queue(source, str(tmp_path / "new"))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInput, match="exists"):
        import_queue(source, str(tmp_path / "new"))
    assert sorted(tmp_path.iterdir()) == before


def test_reading_changes_nothing(tmp_path: Path) -> None:
    write_segment(tmp_path / "q", 0, plain(range(1, 3)))
    write_metadata(tmp_path / "q", 3, 2)
    before = {one: one.read_bytes() for one in (tmp_path / "q").iterdir()}
    import_queue(LedgerQDirectory(str(tmp_path / "q")), str(tmp_path / "new"))
    assert {one: one.read_bytes() for one in (tmp_path / "q").iterdir()} == before


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda root: (root / "metadata.dat").write_bytes(b"123"), "has 3 bytes"),
        (lambda root: (root / ".retry_state.json").write_text("{"), "is damaged"),
        (lambda root: (root / ".retry_state.json").write_text('{"version": 9}'), "version 9"),
    ],
)
def test_a_damaged_side_file_is_named(tmp_path: Path, spoil: object, text: str) -> None:
    write_segment(tmp_path / "q", 0, plain(range(1, 3)))
    spoil(tmp_path / "q")  # type: ignore[operator]
    with pytest.raises(ImportFailed, match=text):
        LedgerQDirectory(str(tmp_path / "q"))


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match="no segments of LedgerQ"):
        LedgerQDirectory(str(tmp_path))
    with pytest.raises(ImportFailed, match="cannot be read"):
        LedgerQDirectory(str(tmp_path / "missing"))
