"""Messages whose bytes are gone: told, settled as lost, and nothing else is served for them."""

from pathlib import Path

import pytest

from penstock.queue import Queue
from tests.harness.file_strokes import entry_bounds
from tests.harness.queue_store import QueueStore

SETTINGS = {"segment_bytes": 1024}


@pytest.fixture
def store(tmp_path: Path) -> QueueStore:
    """Forty ready messages in several segments, with a snapshot; closed in order."""
    store = QueueStore(SETTINGS, path=tmp_path / "queue")
    for number in range(40):
        store.queue.enqueue(b"%d" % number + bytes(50))
    assert len(store.queue.lease(2)) == 2
    store.close()
    return store


def segments(store: QueueStore, log: str = "messages") -> list[Path]:
    return sorted(Path(store.path, log).glob("*.log"))


def cut(path: Path, entries: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: entry_bounds(data)[entries]])


def drained(queue: Queue) -> list[int]:
    found = []
    while leased := queue.lease(3):
        for one in leased:
            assert one.message.payload == b"%d" % (one.message.seq - 1) + bytes(50)
            found.append(one.message.seq)
            queue.ack(one)
    return found


def lost_seqs(store: QueueStore) -> set[int]:
    return {
        seq
        for damage in store.damage
        for seq in range(damage.first_lost_seq, damage.last_lost_seq + 1)
    }


@pytest.mark.parametrize("how", ["delete", "empty", "cut"])
@pytest.mark.parametrize("number", [0, 1, -2, -1])
def test_no_tombstone_is_delivered_for_messages_that_a_snapshot_calls_ready(
    store: QueueStore, number: int, how: str
) -> None:
    hit = segments(store)[number]
    if how == "delete":
        hit.unlink()
    else:
        cut(hit, 2) if how == "cut" else hit.write_bytes(b"")
    queue = store.open()
    found = drained(queue)
    assert found == sorted(set(found))
    ready = set(range(3, 41))
    assert ready - set(found) == lost_seqs(store) & ready
    assert ready - set(found)
    stats = queue.stats()
    assert (stats.ready, stats.next_seq) == (0, 41)


def test_a_single_lease_after_a_lost_segment_finds_the_next_message(store: QueueStore) -> None:
    base, following = (int(path.stem) for path in segments(store)[1:3])
    segments(store)[1].write_bytes(b"")
    queue = store.open()
    seqs = [leased[0].message.seq for leased in iter(lambda: queue.lease(), [])]
    assert seqs == [*range(3, base), *range(following, 41)]


def test_events_lost_behind_a_snapshot_change_nothing_that_it_knows(store: QueueStore) -> None:
    """The snapshot includes them: nothing that was leased is leased again."""
    for path in segments(store, "events"):
        path.unlink()
    queue = store.open()
    assert [damage.file.partition("/")[0] for damage in store.damage] == ["events"]
    assert queue.stats().leased == 2
    assert [leased.message.seq for leased in queue.lease(50)] == list(range(3, 41))


def test_messages_that_only_a_snapshot_knows_are_told(store: QueueStore) -> None:
    """Also where no clean close vouches for them."""
    Path(store.path, "closed.json").unlink()
    last = segments(store)[-1]
    last.unlink()
    store.open()
    assert set(range(int(last.stem), 41)) <= lost_seqs(store)
    assert not any(damage.torn for damage in store.damage)
    assert store.queue.enqueue(b"new") is not None
    assert store.queue.stats().next_seq == 42


def test_messages_that_only_events_speak_of_were_lost_with_the_power() -> None:
    """What a power cut may leave is no damage; but it is told."""
    told = 0
    for cut_ in range(60):
        store = QueueStore({"segment_bytes": 4096}, recorded=True)
        for number in range(5):
            store.queue.enqueue(b"%d" % number)
        store.queue.dequeue_batch(5)
        store.cut_power(cut_)
        assert all(damage.torn for damage in store.damage)
        if lost := lost_seqs(store):
            told += 1
            assert max(lost) <= 5
    assert told > 5


def test_snapshots_that_are_all_gone_are_told(tmp_path: Path) -> None:
    """Events that they included were removed: what was settled comes back, and that is told."""
    store = QueueStore(SETTINGS, path=tmp_path / "queue")
    for number in range(200):
        store.queue.enqueue(b"%d" % number + bytes(50))
        store.queue.dequeue()
        store.clock.advance(1)
        if number % 50 == 0:
            store.queue.compact()
    store.queue.compact()
    store.close()
    for path in Path(store.path, "snapshots").iterdir():
        path.unlink()
    store.open()
    assert "snapshots" in {damage.file for damage in store.damage}
