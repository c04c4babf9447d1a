"""Verify: reads everything again, changes nothing, and names what is wrong and where."""

import pytest

from penstock.codec import Draft
from penstock.errors import NotALedger
from penstock.ledger import Compactor, Retention, verify
from penstock.torture.damage_store import Live
from tests.ledger.store import EVENT, Store


@pytest.fixture
def rich(store: Store) -> Store:
    """Rotated, with batches, events, a rewritten segment and snapshots; closed."""
    store.fill(150)
    store.messages.append_batch([b"a", b"b"])
    for _ in range(50):
        store.events.append_draft(Draft(b"event", type=EVENT))
    store.ledger.save_snapshot(20, b"older")
    store.ledger.save_snapshot(50, b"newer")
    live = Live(frozenset([40, 45, *range(100, 153)]))
    Compactor(store.ledger, store.messages, live, Retention(), store.clock).run()
    store.close()
    return store


def test_a_sound_queue_is_sound(rich: Store) -> None:
    told: list[tuple[int, int]] = []
    report = verify(str(rich.path), on_progress=lambda done, total: told.append((done, total)))
    assert report.is_sound
    assert report.problems == []
    assert report.snapshots == 2
    assert report.segments == len(rich.segments()) + len(rich.segments("events"))
    assert told[-1][0] <= told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_an_empty_queue_is_sound(store: Store) -> None:
    store.open()
    report = verify(str(store.path))
    assert (report.is_sound, report.entries, report.segments) == (True, 0, 0)


@pytest.mark.parametrize("which", [0, -1])
def test_a_flipped_bit_is_named_with_file_offset_and_lost_seqs(rich: Store, which: int) -> None:
    path = rich.segments()[which]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    [problem] = verify(str(rich.path)).problems
    assert problem.file == f"messages/{path.name}"
    assert problem.offset <= len(data) // 2 < problem.offset + problem.length
    assert problem.reason
    assert not (rich.path / "quarantine").exists()


@pytest.mark.parametrize("end", ["cut", "zeros"])
def test_a_sealed_segment_that_lacks_its_end_is_a_gap(store: Store, end: str) -> None:
    store.fill(100)
    store.close()
    first, second = store.segments()[:2]
    data = first.read_bytes()
    kept = data[: 64 + 126 * 5]
    first.write_bytes(kept if end == "cut" else kept.ljust(len(data), b"\0"))
    [problem] = verify(str(store.path)).problems
    assert (problem.first_lost_seq, problem.last_lost_seq) == (6, int(second.stem) - 1)


def test_damaged_snapshots_are_named(rich: Store) -> None:
    for path in (rich.path / "snapshots").iterdir():
        path.write_bytes(b"damaged")
    assert [problem.file for problem in verify(str(rich.path)).problems] == [
        "snapshots/00000000000000000020.snap",
        "snapshots/00000000000000000050.snap",
    ]


def test_a_damaged_manifest_is_named(rich: Store) -> None:
    rich.file("queue.json").write_bytes(b"damaged")
    assert [problem.file for problem in verify(str(rich.path)).problems] == ["queue.json"]


def test_a_queue_that_is_being_written_is_verified_as_far_as_it_is_written(store: Store) -> None:
    for count in (1, 10, 100):
        store.fill(count)
        assert verify(str(store.path)).is_sound
    assert verify(str(store.path)).entries == 111


def test_only_a_queue_is_verified(store: Store) -> None:
    with pytest.raises(NotALedger):
        verify(str(store.path))
