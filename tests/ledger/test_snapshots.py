"""Snapshots: opaque blobs with a checksum; two are kept, a damaged one is passed over."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.codec import Draft
from penstock.ledger import Snapshot, verify
from penstock.ledger.snapshots import Snapshots
from tests.ledger.store import EVENT, Store


def note(store: Store, count: int = 1) -> int:
    """Append events; the seq of the last."""
    for _ in range(count):
        seq = store.events.append_draft(Draft(b"event", type=EVENT))
    store.ledger.commit()
    return seq


def snap(store: Store, blob: bytes) -> int:
    seq = note(store, 3)
    store.ledger.save_snapshot(seq, blob)
    return seq


def names(store: Store) -> list[str]:
    return sorted(path.name for path in (store.path / "snapshots").iterdir())


@pytest.mark.usefixtures("either_codec")
@pytest.mark.parametrize("blob", [b"", b"x", bytes(100_000)])
def test_a_snapshot_is_what_was_saved(any_store: Store, blob: bytes) -> None:
    seq = snap(any_store, blob)
    assert any_store.ledger.load_snapshot() == Snapshot(seq, blob)
    any_store.reopen_after_death()
    assert any_store.ledger.load_snapshot() == Snapshot(seq, blob)


def test_without_snapshots_there_is_none(store: Store) -> None:
    assert store.ledger.load_snapshot() is None
    assert store.ledger.snapshot_seqs() == []


def test_two_are_kept(store: Store) -> None:
    for number in range(5):
        snap(store, b"%d" % number)
    assert names(store) == ["00000000000000000012.snap", "00000000000000000015.snap"]
    assert store.ledger.snapshot_seqs() == [12, 15]
    assert store.ledger.read_snapshot(12).blob == b"3"
    assert store.ledger.read_snapshot(15).blob == b"4"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def of_another_event(path: Path) -> None:
    other = path.with_name("00000000000000000003.snap")
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize("spoil", [cut, cut_short, emptied, flipped, lengthened, of_another_event])
def test_a_damaged_one_is_passed_over_for_the_older_and_reported(
    store: Store, spoil: Callable[[Path], None]
) -> None:
    snap(store, b"older")
    snap(store, b"newer")
    store.close()
    newer = store.path / "snapshots" / "00000000000000000006.snap"
    spoil(newer)
    assert store.ledger.load_snapshot() == Snapshot(3, b"older")
    [report] = store.damage
    assert report.file == "snapshots/00000000000000000006.snap"
    assert store.ledger.load_snapshot() == Snapshot(3, b"older")
    assert len(store.damage) == 1, "once is enough"
    [problem] = verify(str(store.path)).problems
    assert problem.file == report.file


def test_with_both_damaged_there_is_none_and_the_log_must_do(store: Store) -> None:
    snap(store, b"older")
    snap(store, b"newer")
    for path in (store.path / "snapshots").iterdir():
        emptied(path)
    assert store.ledger.load_snapshot() is None
    assert len(store.damage) == 2
    snap(store, b"newest")
    assert store.ledger.load_snapshot() == Snapshot(9, b"newest")


def test_one_that_knows_more_than_the_event_log_is_used_and_the_loss_told(store: Store) -> None:
    """It was saved when its events were on disk: they did happen."""
    snap(store, b"older")
    store.close()
    log = store.segment(1, log="events")
    content = log.read_bytes()
    snap(store, b"newer")
    store.close()
    log.write_bytes(content)
    store.file("closed.json").unlink()
    assert store.ledger.load_snapshot() == Snapshot(6, b"newer")
    [damage] = store.damage
    assert (damage.first_lost_seq, damage.last_lost_seq, damage.torn) == (4, 6, False)


def test_one_that_a_writer_makes_meanwhile_is_not_for_an_older_reader(store: Store) -> None:
    snap(store, b"older")
    with store.look() as reader:
        snap(store, b"newer")
        assert reader.load_snapshot() == Snapshot(3, b"older")
    assert store.damage == []


def test_one_of_a_lost_future_gives_way_to_the_next(store: Store) -> None:
    snap(store, b"older")
    store.close()
    log = store.segment(1, log="events")
    content = log.read_bytes()
    note(store, 5)
    snap(store, b"lost future")
    store.close()
    log.write_bytes(content)
    store.file("closed.json").unlink()
    snap(store, b"newest")
    assert store.ledger.load_snapshot() == Snapshot(6, b"newest")
    assert store.ledger.snapshot_seqs() == [3, 6]


def test_saving_again_for_the_same_event_replaces_it(store: Store) -> None:
    seq = snap(store, b"first")
    store.ledger.save_snapshot(seq, b"second")
    assert store.ledger.load_snapshot() == Snapshot(seq, b"second")


def test_a_half_written_one_is_swept_away(store: Store) -> None:
    snap(store, b"whole")
    store.die()
    (store.path / "snapshots" / "00000000000000000009.snap.tmp").write_bytes(b"half")
    store.open()
    assert names(store) == ["00000000000000000003.snap"]


def test_foreign_files_are_left_alone(store: Store) -> None:
    snap(store, b"1")
    for name in ("README", "12.snap", "0000000000000000000x.snap"):
        (store.path / "snapshots" / name).write_bytes(b"foreign")
    for number in range(3):
        snap(store, b"%d" % number)
    assert len(names(store)) == 2 + 3


def test_one_that_vanishes_while_it_is_looked_for_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader beside a writer that saves the next one."""
    snap(store, b"1")
    snap(store, b"2")
    with store.look() as reader:
        seqs = Snapshots.seqs
        monkeypatch.setattr(Snapshots, "seqs", lambda self: [*seqs(self), 6, 7])
        (store.path / "snapshots" / "00000000000000000006.snap").unlink()
        assert reader.load_snapshot() == Snapshot(3, b"1")
