"""An ack with follow-up messages: both are true, or neither."""

import pytest

from penstock.errors import InvalidInput, LedgerError, ReceiptInvalid
from penstock.queue import NewMessage, Queue
from tests.harness.crash_states import crash_states
from tests.harness.journal import RecordedFiles
from tests.harness.queue_plots import open_queue_in
from tests.harness.queue_store import QueueStore


def test_an_ack_publishes_its_follow_ups(queue: Queue) -> None:
    queue.enqueue(b"work")
    ids = queue.ack(queue.lease(), emit=[b"one", NewMessage(payload=b"two", priority=9)])
    assert [queue.get(id_).payload for id_ in ids] == [b"one", b"two"]
    assert queue.stats().acked == 1
    assert [m.payload for m in queue.dequeue_batch(9)] == [b"two", b"one"]


def test_several_can_be_acked_with_one_follow_up(queue: Queue) -> None:
    queue.enqueue_batch([b"a", b"b", b"c"])
    queue.ack(queue.lease(3), emit=[b"all done"])
    assert [m.payload for m in queue.browse()] == [b"all done"]


@pytest.mark.parametrize("restart", ["reopen", "kill"])
def test_both_survive_a_restart(store: QueueStore, restart: str) -> None:
    store.queue.enqueue(b"work")
    store.queue.ack(store.queue.lease(), emit=[b"follow-up"])
    queue = store.reopen() if restart == "reopen" else store.kill()
    assert [m.payload for m in queue.browse()] == [b"follow-up"]
    assert queue.stats().acked == 1


def test_a_crash_at_any_moment_leaves_both_or_neither() -> None:
    recorded = RecordedFiles()
    queue = open_queue_in(recorded)
    queue.enqueue(b"work")
    (leased,) = queue.lease()
    recorded.mark("before")
    queue.ack(leased, emit=[b"one", b"two"])
    recorded.mark("answered")
    outcomes = set()
    for state in crash_states(recorded.journal, life="emit"):
        if "before" not in state.marks:
            continue
        found = tuple(message.payload for message in open_queue_in(state.files()).browse())
        assert found in ((b"work",), (b"one", b"two")), state.name
        if "answered" in state.marks:
            assert found == (b"one", b"two"), state.name
        outcomes.add(found)
    assert len(outcomes) == 2


@pytest.mark.parametrize("acked", [1, 2])
def test_a_second_crash_in_recovery_leaves_both_or_neither(acked: int) -> None:
    recorded = RecordedFiles()
    queue = open_queue_in(recorded, sync="interval")
    work = (b"work",) * acked
    queue.enqueue_batch(work)
    leased = queue.lease(acked)
    queue.sync()
    recorded.mark("before")
    queue.ack(leased, emit=[b"one", b"two"])
    queue.sync()
    outcomes = set()
    for before in crash_states(recorded.journal, life="emit", cuts=1):
        if "before" not in before.marks or not before.name.endswith("newest kept"):
            continue  # else the event does not survive without its messages
        recovered = before.recorded()
        open_queue_in(recovered)
        for state in crash_states(recovered.journal, life=before.name, cuts=1):
            found = tuple(message.payload for message in open_queue_in(state.files()).browse())
            assert found == work, state.name
            outcomes.add(found)
    assert outcomes == {work}


def test_the_ack_takes_its_place_among_the_other_events_at_recovery(store: QueueStore) -> None:
    """Acked with a follow-up, sought back, delivered and acked again: in this order."""
    store.queue.enqueue(b"work")
    store.queue.ack(store.queue.lease(), emit=[b"follow-up"])
    store.queue.seek("beginning")
    (again, follow_up) = store.queue.lease(2)
    store.queue.nack(again, delay=0)
    store.kill()
    assert [m.payload for m in store.queue.browse("ready")] == [b"work"]
    store.queue.ack(follow_up.receipt)
    assert store.queue.lease()[0].attempt == 2


def test_a_key_goes_on_to_its_follow_up(store: QueueStore) -> None:
    store.queue.enqueue(b"first", key="k")
    store.queue.ack(store.queue.lease(), emit=[NewMessage(payload=b"second", key="k")])
    assert [m.payload for m in store.kill().dequeue_batch(9)] == [b"second"]


def test_what_cannot_be_published_is_not_acked(queue: Queue) -> None:
    queue.enqueue(b"work")
    (leased,) = queue.lease()
    acked = queue.metrics()["acked"]
    with pytest.raises(InvalidInput):
        queue.ack(leased, emit=[NewMessage(payload=b"x", priority=10)])
    assert queue.stats().leased == 1
    assert queue.stats().published == 1
    assert queue.metrics()["acked"] == acked
    queue.ack(leased)
    with pytest.raises(ReceiptInvalid):
        queue.ack(leased, emit=[b"too late"])
    assert queue.stats().published == 1


def test_deliveries_of_several_attempts_are_refused_together(queue: Queue) -> None:
    queue.enqueue_batch([b"a", b"b"])
    queue.nack(queue.lease(), delay=0)
    leased = queue.lease(2)
    assert {one.attempt for one in leased} == {1, 2}
    with pytest.raises(InvalidInput):
        queue.ack(leased, emit=[b"x"])
    assert queue.stats().leased == 2


def test_a_late_ack_may_have_follow_ups(store: QueueStore) -> None:
    store.queue.enqueue(b"work")
    (leased,) = store.queue.lease(lease_s=1)
    store.clock.advance(1)
    assert store.queue.stats().timed_out == 1
    store.queue.ack(leased, emit=[b"follow-up"])
    assert [m.payload for m in store.kill().browse()] == [b"follow-up"]


@pytest.mark.parametrize("others", [[], [b"new"]])
def test_a_follow_up_that_was_published_before_is_not_published_again(
    store: QueueStore, others: list[bytes]
) -> None:
    """As after an answer that was lost: the work is done again, and emits the same again."""
    first = store.queue.enqueue(b"follow-up", dedup_id="x")
    store.queue.enqueue(b"work", priority=9)
    again = NewMessage(payload=b"follow-up", dedup_id="x")
    ids = store.queue.ack(store.queue.lease(), emit=[*others, again, again])
    assert ids[-2:] == [first, first]
    for queue in (store.queue, store.kill()):
        assert [m.payload for m in queue.browse()] == [b"follow-up", *others]
        assert (queue.stats().acked, queue.stats().deduplicated) == (1, 2)


def test_a_follow_up_is_itself_remembered(store: QueueStore) -> None:
    store.queue.enqueue(b"work")
    new = NewMessage(payload=b"follow-up", dedup_id="x")
    ids = store.queue.ack(store.queue.lease(), emit=[new, new])
    assert ids[0] == ids[1] == store.kill().enqueue(b"", dedup_id="x")


def test_a_full_queue_lets_work_be_finished_with_its_follow_ups() -> None:
    queue = QueueStore({"max_messages": 1, "rate_per_s": 1}).queue
    queue.enqueue(b"work")
    queue.ack(queue.lease(), emit=[b"one", b"two"])
    assert queue.stats().ready == 2


def test_it_says_so_if_too_many_are_acked_to_fit(queue: Queue) -> None:
    queue.enqueue_batch([NewMessage(payload=b"", priority=n % 2) for n in range(20_000)])
    leased = queue.lease(10_000)
    with pytest.raises(InvalidInput):
        queue.ack(leased, emit=[b"x"])
    assert (queue.stats().leased, queue.stats().published) == (10_000, 20_000)


def test_an_ack_counts_where_only_its_follow_ups_could_be_written(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue.enqueue(b"work")
    (leased,) = store.queue.lease()

    def fail(*args: object) -> None:
        raise LedgerError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(store.queue.core.ledger.events, "append_event", fail)
        store.queue.ack(leased, emit=[b"follow-up"])
    for queue in (store.queue, store.kill()):
        assert [m.payload for m in queue.browse()] == [b"follow-up"]
        assert queue.stats().acked == 1
