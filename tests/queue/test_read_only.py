"""Looking: everything can be seen, nothing on disk changes, and a writer may be at work."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import NotALedger, ReadOnly
from penstock.ledger import Ledger
from penstock.model import StorageStats
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore
from tests.queue.test_seed_defects import everything_in


@pytest.fixture
def written(tmp_path: Path) -> QueueStore:
    """A queue with a message in every state."""
    store = QueueStore({"segment_bytes": 4096, "dead_retention_s": 1000}, path=tmp_path / "queue")
    queue = store.queue
    queue.enqueue(b"dead", max_attempts=1)
    queue.nack(queue.lease(), "it failed")
    queue.enqueue(b"leased", key="k")
    queue.lease(lease_s=10, holder="worker")
    queue.enqueue(b"parked", key="k")
    queue.enqueue(b"scheduled", delay=60)
    queue.enqueue(b"ready", headers={"a": "b"})
    queue.groups.create("audit")
    return store


def look_at_everything(queue: Queue) -> dict[str, object]:
    messages = list(queue.browse())
    return {
        "stats": queue.stats(),
        "peek": queue.peek(9),
        "browse": messages,
        "dead": list(queue.dead()),
        "states": [queue.state(message.id) for message in messages],
        "why": [queue.why(message.id) for message in messages],
        "history": [queue.history(message.id) for message in messages],
        "groups": list(queue.groups),
        "done": list(queue.browse("done")),
    }


def test_a_reader_sees_what_the_writer_sees_and_changes_nothing(written: QueueStore) -> None:
    expected = look_at_everything(written.queue)
    written.queue.sync()
    before = everything_in(Path(written.path))
    with written.look() as reader:
        seen = look_at_everything(reader)
    assert everything_in(Path(written.path)) == before
    assert seen.pop("stats")._replace(storage=StorageStats()) == (  # type: ignore[attr-defined]
        expected.pop("stats")._replace(storage=StorageStats())  # type: ignore[attr-defined]
    )
    assert seen == expected
    assert seen["states"] == ["dead", "leased", "parked", "scheduled", "ready"]


def test_a_reader_of_a_closed_queue_sees_the_same(written: QueueStore) -> None:
    expected = [message.payload for message in written.queue.browse()]
    written.close()
    before = everything_in(Path(written.path))
    with written.look() as reader:
        assert [message.payload for message in reader.browse()] == expected
        assert reader.stats().dead == 1
    assert everything_in(Path(written.path)) == before


def test_a_reader_after_a_crash_sees_all_and_repairs_nothing(store: QueueStore) -> None:
    store.queue.enqueue_batch([b"a", b"b"])
    store.queue.ack(store.queue.lease())
    # The writer is never closed: what a dead process leaves.
    with store.look() as reader:
        assert [message.payload for message in reader.browse()] == [b"b"]
        assert reader.stats().acked == 1


def test_what_became_due_is_shown_but_not_written(written: QueueStore) -> None:
    written.queue.sync()
    before = everything_in(Path(written.path))
    written.clock.advance(2000)  # the lease is over, the delay too, and the dead letter's retention
    with written.look() as reader:
        seen = look_at_everything(reader)
        assert [m.payload for m in reader.peek(9)] == [b"scheduled", b"ready"] or seen
    assert everything_in(Path(written.path)) == before


CHANGES: dict[str, Callable[[Queue], object]] = {
    "enqueue": lambda q: q.enqueue(b"x"),
    "enqueue with options": lambda q: q.enqueue(b"x", priority=1),
    "enqueue_batch": lambda q: q.enqueue_batch([b"x"]),
    "lease": lambda q: q.lease(),
    "dequeue": lambda q: q.dequeue(),
    "lease_dead": lambda q: q.lease_dead(),
    "cancel": lambda q: q.cancel(next(iter(q.browse())).id),
    "purge": lambda q: q.purge(),
    "seek": lambda q: q.seek("beginning"),
    "redrive": lambda q: q.redrive(),
    "discard": lambda q: q.discard(),
    "pause": lambda q: q.pause(),
    "create": lambda q: q.groups.create("x"),
    "delete": lambda q: q.groups.delete("audit"),
    "compact": lambda q: q.compact(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_reader_refuses_every_change(written: QueueStore, change: str) -> None:
    written.queue.sync()
    before = everything_in(Path(written.path))
    with written.look() as reader:
        with pytest.raises(ReadOnly):
            CHANGES[change](reader)
        assert reader.stats().ready == 1
    assert everything_in(Path(written.path)) == before


def test_a_reader_keeps_what_it_saw_while_the_writer_goes_on(written: QueueStore) -> None:
    with written.look() as reader:
        for _ in range(300):
            written.queue.enqueue(b"x" * 50)
            written.queue.dequeue()
        written.queue.purge()
        written.queue.compact()
        written.queue.compact()
        payloads = [message.payload for message in reader.browse()]
        assert set(payloads) <= {b"dead", b"leased", b"parked", b"scheduled", b"ready"}
        assert reader.stats().ready == 1
        reader.peek(5), list(reader.dead())
    with written.look() as later:
        assert later.stats().acked == written.queue.stats().acked


def test_readers_at_any_moment_of_a_writers_life_see_a_state_it_had() -> None:
    store = QueueStore({"segment_bytes": 1024, "snapshot_every": 30})
    for number in range(150):
        store.queue.enqueue(b"%d" % number, priority=number % 3)
        if number % 3:
            store.queue.ack(store.queue.lease())
        if number % 40 == 0:
            store.queue.compact()
        expected = [message.seq for message in store.queue.browse()]
        with store.look() as reader:
            assert [message.seq for message in reader.browse()] == expected


def test_there_is_nothing_to_look_at_where_no_queue_is(tmp_path: Path) -> None:
    with pytest.raises(NotALedger):
        QueueStore(path=tmp_path / "none").look()
    assert list(tmp_path.iterdir()) == []


def test_a_reader_looks_again_if_the_writer_replaced_the_snapshots_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"segment_bytes": 512, "snapshot_every": 1, "auto_compact": False}
    store = QueueStore(settings, path=tmp_path / "queue")
    queue, load = store.queue, Ledger.load_snapshot

    def work() -> None:
        for _ in range(10):
            queue.enqueue_batch([bytes(200)] * 3)
            queue.ack(queue.lease(3))
            store.clock.advance(1)

    def late(ledger: Ledger) -> object:
        monkeypatch.setattr(Ledger, "load_snapshot", load)
        work()
        return load(ledger)

    work()
    queue.compact()
    assert min(path.stem for path in (tmp_path / "queue/events").glob("*.log")) > f"{1:020}"
    monkeypatch.setattr(Ledger, "load_snapshot", late)
    with store.look() as reader:
        assert reader.stats().acked == queue.stats().acked == 60
    assert not caplog.records
