"""Deduplication: within its window a dedup id is one message, whatever crashes in between."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.queue import NewMessage, Queue
from tests.harness.queue_store import QueueStore


def test_a_duplicates_answer_names_the_first(queue: Queue) -> None:
    first = queue.enqueue(b"a", dedup_id="x")
    (answer,) = queue.publish([NewMessage(payload=b"another", dedup_id="x", priority=9)])
    assert answer == (first, True)
    assert queue.publish([NewMessage(payload=b"b", dedup_id="y")])[0].duplicate is False
    assert queue.stats().published == 2
    assert queue.stats().deduplicated == 1


def test_the_id_decides_and_not_the_payload(queue: Queue) -> None:
    queue.enqueue(b"same", dedup_id="x")
    queue.enqueue(b"same", dedup_id="y")
    queue.enqueue(b"same")
    assert queue.stats().ready == 3


def test_a_window_ends_exactly(queue: Queue, clock: ManualClock) -> None:
    first = queue.enqueue(b"a", dedup_id="x", dedup_window_s=10)
    clock.advance(9.999)
    assert queue.enqueue(b"b", dedup_id="x") == first
    clock.advance(0.001)
    assert queue.enqueue(b"b", dedup_id="x") != first


def test_a_duplicate_does_not_prolong_the_window(queue: Queue, clock: ManualClock) -> None:
    first = queue.enqueue(b"a", dedup_id="x", dedup_window_s=10)
    clock.advance(8)
    queue.enqueue(b"a", dedup_id="x", dedup_window_s=1000)
    clock.advance(8)
    assert queue.enqueue(b"a", dedup_id="x") != first


def test_duplicates_within_one_batch(queue: Queue) -> None:
    new = [NewMessage(payload=b"%d" % number, dedup_id=id_) for number, id_ in enumerate("xyx")]
    answers = queue.publish([*new, NewMessage(payload=b"3")])
    assert [answer.duplicate for answer in answers] == [False, False, True, False]
    assert answers[2].id == answers[0].id
    assert [m.payload for m in queue.browse()] == [b"0", b"1", b"3"]


def test_a_batch_of_duplicates_only_writes_nothing(queue: Queue) -> None:
    queue.enqueue(b"a", dedup_id="x")
    queue.publish([NewMessage(payload=b"a", dedup_id="x")] * 3)
    assert queue.stats().next_seq == 2


def test_it_outlives_the_message(queue: Queue) -> None:
    first = queue.enqueue(b"a", dedup_id="x")
    queue.dequeue()
    assert queue.enqueue(b"a", dedup_id="x") == first
    assert queue.dequeue() is None


@pytest.mark.parametrize("how", ["reopen", "kill", "kill with snapshot", "compact"])
def test_it_is_exact_across_restarts(how: str) -> None:
    store = QueueStore({"segment_bytes": 512})
    ids = [store.queue.enqueue(b"%d" % n, dedup_id=str(n)) for n in range(50)]
    if how == "kill with snapshot":
        store.reopen()
    if how == "compact":
        store.queue.dequeue_batch(100)
        store.queue.compact()
        store.kill()
    queue = store.reopen() if how == "reopen" else store.kill()
    assert [queue.enqueue(b"", dedup_id=str(n)) for n in range(50)] == ids


def test_a_full_table_forgets_the_one_published_first_and_counts_it(clock: ManualClock) -> None:
    queue = QueueStore({"dedup_entries": 3}).queue
    ids = {
        id_: queue.enqueue(b"", dedup_id=id_, dedup_window_s=window)
        for id_, window in (("long", 100), ("short", 10), ("middle", 50), ("new", 60))
    }
    assert queue.stats().dedup_evicted == 1
    for id_ in ("short", "middle", "new"):
        assert queue.enqueue(b"", dedup_id=id_) == ids[id_]
    assert queue.enqueue(b"", dedup_id="long") != ids["long"]


def test_what_ended_by_itself_is_not_counted_as_forgotten() -> None:
    store = QueueStore({"dedup_entries": 2, "dedup_window_s": 10})
    for number in range(10):
        store.queue.enqueue(b"", dedup_id=str(number))
        store.clock.advance(6)
    assert store.queue.stats().dedup_evicted == 0


def test_the_counts_survive_a_restart() -> None:
    store = QueueStore({"dedup_entries": 2})
    for number in range(5):
        store.queue.enqueue(b"", dedup_id=str(number))
    assert store.kill().stats().dedup_evicted == 3
    assert store.reopen().stats().dedup_evicted == 3


@pytest.mark.parametrize("how", ["kill", "reopen", "cut_power"])
def test_what_was_not_published_again_is_counted_over_all_lives(how: str) -> None:
    store = QueueStore({"sync": "always"}, recorded=True)
    new = [NewMessage(payload=b"", dedup_id=dedup_id) for dedup_id in "xyxzx"]
    store.queue.publish(new[:1])
    store.queue.publish(new)  # among others, and twice the same
    store.queue.publish(new[:3])  # nothing but duplicates
    for _ in range(2):
        assert getattr(store, how)().stats().deduplicated == 6
    store.queue.enqueue(b"", dedup_id="x")
    assert getattr(store, how)().stats().deduplicated == 7
    assert store.queue.stats().published == 3


def test_a_refused_message_leaves_no_dedup_record() -> None:
    store = QueueStore({"max_messages": 1})
    store.queue.enqueue(b"fills it")
    with pytest.raises(Exception, match="full"):
        store.queue.enqueue(b"a", dedup_id="x")
    store.queue.dequeue()
    assert store.queue.publish([NewMessage(payload=b"a", dedup_id="x")])[0].duplicate is False


@pytest.mark.parametrize("dedup_id", ["x" * 1025, 5, b"x", "\ud800"])
def test_a_dedup_id_that_is_none_is_refused(queue: Queue, dedup_id: str) -> None:
    with pytest.raises(InvalidInput):
        queue.enqueue(b"a", dedup_id=dedup_id)
    assert queue.stats().published == 0


def test_any_text_is_a_dedup_id(queue: Queue) -> None:
    for dedup_id in ("", " ", "ä", "\0", "x" * 1024):
        first = queue.enqueue(b"", dedup_id=dedup_id)
        assert queue.enqueue(b"", dedup_id=dedup_id) == first
    assert queue.stats().ready == 5


def test_ids_that_are_noted_by_the_publisher_count_once_when_the_state_is_fed() -> None:
    """Also if the table dropped them meanwhile."""
    store = QueueStore({"dedup_entries": 2})
    for id_ in "abcd":
        store.queue.enqueue(b"", dedup_id=id_)
        store.clock.advance(1)
    assert store.queue.stats().dedup_evicted == 2
    assert store.queue.enqueue(b"", dedup_id="a") == store.queue.enqueue(b"", dedup_id="a")
    assert store.queue.stats().dedup_evicted == 3
    assert store.kill().stats().dedup_evicted == 3
    store.close()


@pytest.mark.parametrize("restart", ["reopen", "kill"])
def test_one_message_by_one_the_table_is_that_of_the_fold(store: QueueStore, restart: str) -> None:
    for number in range(40):
        store.queue.enqueue(b"", dedup_id=f"{number % 30}", dedup_window_s=1 + number % 7)
        store.clock.advance(0.5)
    store.queue.stats()
    before = store.queue.core.state.dedup.items()
    store.reopen() if restart == "reopen" else store.kill()
    assert store.queue.core.state.dedup.items() == before


def test_threads_publish_one_id_once(queue: Queue) -> None:
    def publish(number: int) -> str:
        return queue.enqueue(b"", dedup_id=f"{number % 50}")

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(publish, range(400)))
    assert len(set(ids)) == queue.stats().published == 50
    assert queue.stats().deduplicated == 350


def test_a_window_without_an_id_and_wrong_ids_are_refused(queue: Queue) -> None:
    queue.enqueue(b"", dedup_id=None)
    assert queue.stats().published == 1
    for wrong in ({"dedup_window_s": 5}, {"dedup_id": "x", "dedup_window_s": 0}, {"dedup_id": 7}):
        with pytest.raises(InvalidInput):
            queue.enqueue(b"", **wrong)
