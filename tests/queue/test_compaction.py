"""Compaction: gives back what no group needs, and never anything else."""

from threading import Event, Semaphore, Thread
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.errors import NoSuchMessage, QueueError
from penstock.queue import EventType, Queue
from penstock.queue.compaction import BackgroundCompaction
from penstock.queue.fold import fold
from tests.harness.queue_store import QueueStore


class _SeenWithout:
    """A ledger that has no snapshot."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger

    def load_snapshot(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)


@pytest.fixture
def store() -> QueueStore:
    return QueueStore({"segment_bytes": 1024})


def publish(queue: Queue, count: int) -> list[str]:
    """Each on its own, so that they spread over segments."""
    return [queue.enqueue(b"%d" % number + b"." * 60) for number in range(count)]


def kept(queue: Queue, ids: list[str]) -> set[int]:
    found = set()
    for number, id_ in enumerate(ids):
        try:
            queue.get(id_)
            found.add(number)
        except NoSuchMessage:
            pass
    return found


def test_what_is_done_goes_and_what_is_not_stays(store: QueueStore) -> None:
    ids = publish(store.queue, 100)
    store.queue.dequeue_batch(70)
    before = store.queue.stats()
    result = store.queue.compact()
    after = store.queue.stats()
    assert result.segments_removed > 3
    assert (
        result.bytes_freed
        == before.storage.message_log_bytes - after.storage.message_log_bytes
        > 5000
    )
    assert kept(store.queue, ids) >= set(range(70, 100))
    assert kept(store.queue, ids) <= set(range(60, 100))
    assert len(store.reopen().dequeue_batch(100)) == 30


def test_the_slowest_group_decides(store: QueueStore) -> None:
    ids = publish(store.queue, 100)
    store.queue.groups.create("slow")
    store.queue.dequeue_batch(100)
    store.queue.compact()
    assert kept(store.queue, ids) == set(range(100))
    store.queue.dequeue_batch(50, group="slow")
    store.queue.compact()
    assert kept(store.queue, ids) >= set(range(50, 100))
    store.queue.groups.delete("slow")
    store.queue.compact()
    assert len(kept(store.queue, ids)) < 20


@pytest.mark.parametrize(
    "state", ["leased", "dead", "scheduled", "parked", "retried", "dead leased"]
)
def test_a_message_in_any_state_but_done_stays_with_its_bytes(
    store: QueueStore, state: str
) -> None:
    queue = store.queue
    options = {"scheduled": {"delay": 3600}}.get(state, {})
    key = "k" if state == "parked" else None
    if state == "parked":
        queue.enqueue(b"first", key=key)
    id_ = queue.enqueue(b"kept", key=key, max_attempts=1 if "dead" in state else 5, **options)  # type: ignore[arg-type]
    if state in ("leased", "dead", "retried", "dead leased"):
        leased = queue.lease(lease_s=86400)
        if state != "leased":
            queue.nack(leased, delay=3600)
    if state == "parked":
        queue.lease(lease_s=86400)
    if state == "dead leased":
        queue.lease_dead(lease_s=86400)
    publish(queue, 100)
    queue.dequeue_batch(1000)
    result = queue.compact()
    assert result.segments_removed + result.segments_rewritten > 3
    assert queue.get(id_).payload == b"kept"
    assert store.kill().get(id_).payload == b"kept"
    store.queue.compact()
    assert store.queue.get(id_).payload == b"kept"


def test_a_few_that_wait_long_do_not_pin_whole_segments(store: QueueStore) -> None:
    for number in range(300):
        store.queue.enqueue(b"." * 60, delay=86400 if number % 50 == 0 else None)
    store.queue.dequeue_batch(1000)
    full = store.queue.stats().storage.message_log_bytes
    store.queue.compact()
    assert store.queue.stats().storage.message_log_bytes < full / 5
    store.clock.advance(86400)
    assert len(store.kill().dequeue_batch(10)) == 6


def test_retention_keeps_what_is_done_for_replay() -> None:
    store = QueueStore({"segment_bytes": 1024, "retention_s": 3600})
    ids = publish(store.queue, 50)
    store.queue.dequeue_batch(50)
    store.queue.compact()
    assert kept(store.queue, ids) == set(range(50))
    store.clock.advance(3601)
    publish(store.queue, 1)
    store.queue.compact()
    assert len(kept(store.queue, ids)) < 15


def test_retention_never_takes_what_was_not_read() -> None:
    store = QueueStore(
        {"segment_bytes": 1024, "retention_s": 1, "retention_bytes": 1, "retention_segments": 1}
    )
    ids = publish(store.queue, 50)
    store.clock.advance(1000)
    store.queue.compact()
    assert kept(store.queue, ids) == set(range(50))


def test_a_replay_after_compaction_gives_what_is_left_and_loses_nothing_else(
    store: QueueStore,
) -> None:
    ids = publish(store.queue, 100)
    store.queue.dequeue_batch(100)
    store.queue.compact()
    left = kept(store.queue, ids)
    store.queue.seek("beginning")
    assert len(store.queue.dequeue_batch(100)) == len(left)
    assert store.queue.core.state.groups[0].totals  # nothing is reported as lost
    assert store.queue.stats().storage.damaged == 0


def test_the_event_log_is_trimmed_and_nothing_is_forgotten() -> None:
    store = QueueStore({"segment_bytes": 1024, "snapshot_every": 50})
    dead = store.queue.enqueue(b"dead", max_attempts=1)
    store.queue.nack(store.queue.lease(), "why")
    store.queue.discard()
    for _ in range(10):
        publish(store.queue, 50)
        while leased := store.queue.lease(10):
            store.queue.ack(leased)
        store.queue.compact()
    stats = store.queue.stats()
    assert stats.storage.event_log_bytes < 20_000
    assert store.kill().stats().acked == stats.acked == 500
    assert dead


@pytest.mark.parametrize("pin", ["dead", "delayed", "leased"])
def test_one_old_message_does_not_keep_the_events_of_all_others(pin: str) -> None:
    store = QueueStore({"segment_bytes": 1024, "snapshot_every": 50, "lease_s": 86400})
    store.queue.enqueue_batch([b"done"] * 3)
    old = store.queue.enqueue(b"old", max_attempts=2, delay=1e6 if pin == "delayed" else None)
    store.queue.groups.create("audit", to="end")
    store.queue.dequeue_batch(3)
    if pin != "delayed":
        store.queue.nack(store.queue.lease(), delay=0)
        again = store.queue.lease(holder="the holder")
        if pin == "dead":
            store.queue.nack(again, "it failed again")
    before = store.queue.history(old)
    sizes = []
    for _ in range(10):
        ids = publish(store.queue, 50)
        for _ in ids:
            store.queue.ack(store.queue.lease(group="audit"))
            store.queue.ack(store.queue.lease())
        assert store.queue.history(ids[-1])[-1].event == "acked"
        store.clock.advance(1)
        store.queue.compact()
        sizes.append(store.queue.stats().storage.event_log_bytes)
    assert max(sizes[5:]) < 1.2 * max(sizes[:5])
    assert store.queue.history(old) == before
    stats = store.queue.stats()
    for _ in range(2):
        assert store.kill().stats().groups == stats.groups
    folded = fold(_SeenWithout(store.queue.core.ledger), dedup_entries=100)  # type: ignore[arg-type]
    for number, group in store.queue.core.state.groups.items():
        assert folded.groups[number].undelivered == group.undelivered
        assert list(folded.groups[number].dead) == list(group.dead)


def test_seqs_go_on_after_everything_was_removed(store: QueueStore) -> None:
    publish(store.queue, 100)
    store.queue.dequeue_batch(100)
    store.queue.compact()
    queue = store.kill()
    assert queue.get(queue.enqueue(b"")).seq == 101


def test_compaction_of_nothing_is_nothing(queue: Queue) -> None:
    assert queue.compact().bytes_freed == 0


def test_compaction_by_itself_after_a_snapshot() -> None:
    store = QueueStore({"segment_bytes": 1024, "snapshot_every": 100, "auto_compact": True})
    background = store.queue.core.background_compaction
    assert background is not None
    compact, done = background.compact, Event()

    def compact_and_tell() -> None:
        compact()
        done.set()

    background.compact = compact_and_tell
    publish(store.queue, 200)
    for _ in range(200):
        store.queue.dequeue()
    assert done.wait(60)
    store.close()
    assert store.open().stats().first_seq > 1
    store.close()


@pytest.mark.parametrize("options", [{}, {"priority": 7}, {"delay": 60}, {"key": "k"}])
@pytest.mark.parametrize("after_step", range(8))
def test_what_is_published_beside_a_compaction_is_kept(
    after_step: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its segment is sealed before the compaction looks at it."""
    store = QueueStore({"segment_bytes": 1024})
    queue = store.queue
    done, left = publish(queue, 60), set(publish(queue, 3))
    queue.dequeue_batch(len(done))
    steps = 0

    def step(so_far: object = None) -> None:
        nonlocal steps
        if steps == after_step:
            for number in range(60):
                left.add(queue.enqueue(b"%d" % number + b"." * 60, **options))
        steps += 1

    save = queue.core.saver.save

    def save_and_step(*frozen: Any) -> None:
        save(*frozen)
        step()  # between the look at what is live, and the first segment

    monkeypatch.setattr(queue.core.saver, "save", save_and_step)
    assert queue.compact(on_progress=step).bytes_freed > 0
    assert steps > after_step
    assert {message.id for message in queue.browse()} == left
    assert {message.id for message in store.kill().browse()} == left
    store.close()


def test_a_second_compaction_waits_for_the_one_that_runs(store: QueueStore) -> None:
    publish(store.queue, 100)
    store.queue.dequeue_batch(100)
    done: list[int] = []
    threads: list[Thread] = []

    def begin_another(so_far: object) -> None:
        if not threads:
            threads.append(Thread(target=lambda: done.append(store.queue.compact().bytes_freed)))
            threads[0].start()
        assert not done

    assert store.queue.compact(on_progress=begin_another).bytes_freed > 0
    threads[0].join()
    assert done == [0]


def test_a_compaction_within_a_compaction_is_refused(store: QueueStore) -> None:
    publish(store.queue, 100)
    store.queue.dequeue_batch(100)

    def compact(so_far: object) -> None:
        store.queue.compact()

    with pytest.raises(QueueError, match="within"):
        store.queue.compact(on_progress=compact)
    assert store.queue.compact().bytes_freed > 0


def test_the_background_goes_on_after_a_compaction_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran = Semaphore(0)

    def fail() -> None:
        ran.release()
        raise RuntimeError("a defect")

    background = BackgroundCompaction(fail, "test", clock=SystemClock())
    for _ in range(3):
        background.ask()
        assert ran.acquire(timeout=60)
    background.end()
    assert len(caplog.records) == 3


def done_with(count: int) -> QueueStore:
    """A queue of so many messages in small segments, all of them done."""
    store = QueueStore({"segment_bytes": 512})
    for number in range(count):
        store.queue.enqueue(b"%d" % number)
    assert len(store.queue.dequeue_batch(count or 1)) == count
    return store


@pytest.mark.parametrize("moment", range(7))
@pytest.mark.parametrize("how", ["seek", "a new group"])
def test_what_is_asked_for_again_while_a_compaction_runs_is_not_lost(moment: int, how: str) -> None:
    store = done_with(100)
    group = "main" if how == "seek" else "new"
    moments = 0

    def ask_again(so_far: object) -> None:
        nonlocal moments
        if moments == moment:
            if how == "seek":
                store.queue.seek("beginning")
            else:
                store.queue.groups.create("new")
        moments += 1

    store.queue.compact(on_progress=ask_again)
    assert moments > moment
    waiting = store.queue.stats().groups[group].ready
    found = store.queue.dequeue_batch(200, group=group)
    assert [message.seq for message in found] == list(range(101 - waiting, 101))
    assert store.queue.core.group(group).totals[EventType.LOST] == 0


def test_a_compaction_beside_endless_seeks_ends() -> None:
    store = done_with(100)

    def seek(so_far: object) -> None:
        store.queue.seek("beginning")

    store.queue.compact(on_progress=seek)
    assert store.queue.stats().ready == 100


def test_freed_bytes_are_those_of_both_logs() -> None:
    store = done_with(0)
    for number in range(200):
        store.queue.enqueue(b"%d" % number)
        store.queue.dequeue()
        store.clock.advance(1)
    store.queue.enqueue(b"last")
    store.reopen().pause()  # one snapshot before, and another one by the compaction
    before = store.queue.stats()
    result = store.queue.compact()
    after = store.queue.stats()
    assert before.storage.event_log_bytes > after.storage.event_log_bytes
    freed = before.storage.message_log_bytes - after.storage.message_log_bytes
    freed += before.storage.event_log_bytes - after.storage.event_log_bytes
    assert 0 <= result.bytes_freed - freed < 100  # what the log notes of its own sync meanwhile
    assert result.segments_removed == before.storage.segments - after.storage.segments
