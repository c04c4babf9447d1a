"""Messages that come after others: blocked, let go, dead with them, and back with them."""

from collections.abc import Callable

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NoSuchMessage, TooLarge
from penstock.queue import NewMessage, Queue
from penstock.queue.after import (
    MAX_AFTER,
    After,
    after_of,
    id_bytes,
    id_text,
    pack_after,
    unpack_after,
)
from penstock.queue.snapshot import dump_state
from tests.harness.queue_store import QueueStore


def lease_one(queue: Queue) -> bytes:
    (job,) = queue.lease()
    queue.ack(job)
    return job.payload


def fail(queue: Queue) -> None:
    (job,) = queue.lease()
    queue.nack(job, "boom")


def states(queue: Queue, ids: list[str]) -> list[str]:
    return [queue.state(id_) for id_ in ids]


def chain(queue: Queue, count: int, **options: object) -> list[str]:
    """Publish messages, each after the one before it; none is tried again."""
    new = [
        NewMessage(payload=b"%d" % n, max_attempts=1, after=[n - 1] if n else None, **options)  # type: ignore[arg-type]
        for n in range(count)
    ]
    return [published.id for published in queue.publish(new)]


def test_a_message_is_blocked_until_all_that_it_comes_after_are_done(queue: Queue) -> None:
    first, second = queue.enqueue_batch([b"1", b"2"])
    last = queue.enqueue(b"3", after=[first, second])
    assert queue.state(last) == "blocked"
    assert queue.stats().blocked == 1 and queue.stats().groups["main"].lag == 3
    assert [message.id for message in queue.browse("blocked")] == [last]
    assert lease_one(queue) == b"1"
    assert queue.state(last) == "blocked"
    assert lease_one(queue) == b"2"
    assert queue.state(last) == "ready" and queue.stats().blocked == 0
    assert lease_one(queue) == b"3"


@pytest.mark.parametrize("take", [lambda q: q.dequeue(), lambda q: q.dequeue_batch(1)])
def test_a_message_that_is_taken_without_a_lease_lets_go_too(
    queue: Queue, take: Callable[[Queue], object]
) -> None:
    first = queue.enqueue(b"1")
    last = queue.enqueue(b"2", after=[first])
    assert take(queue)
    assert queue.state(last) == "ready"


def test_items_of_a_batch_come_after_earlier_ones_by_their_index(queue: Queue) -> None:
    ids = chain(queue, 4)
    assert states(queue, ids) == ["ready", "blocked", "blocked", "blocked"]
    assert [lease_one(queue) for _ in ids] == [b"0", b"1", b"2", b"3"]


def test_an_index_may_name_a_duplicate(queue: Queue) -> None:
    first = queue.enqueue(b"1", dedup_id="x")
    new = [
        NewMessage(payload=b"1", dedup_id="x"),
        NewMessage(payload=b"2"),
        NewMessage(payload=b"3", after=[0, 1]),
    ]
    answers = queue.publish(new)
    assert answers[0].id == first
    assert queue.why(answers[2].id).details["missing"] == [answers[1].id, first]
    assert [lease_one(queue) for _ in answers] == [b"1", b"2", b"3"]


def test_what_comes_after_something_done_is_ready_at_once(queue: Queue) -> None:
    first = queue.enqueue(b"1")
    lease_one(queue)
    assert queue.state(queue.enqueue(b"2", after=[first])) == "ready"


def test_what_comes_after_a_removed_message_is_ready_at_once(store: QueueStore) -> None:
    queue = store.open(segment_bytes=1024)
    first = queue.enqueue(b"1" * 900)
    lease_one(queue)
    queue.enqueue(b"2" * 900)
    queue.compact()
    with pytest.raises(NoSuchMessage):
        queue.get(first)
    assert queue.state(queue.enqueue(b"3", after=[first])) == "ready"


def test_why_names_what_is_missing(queue: Queue) -> None:
    first, second = queue.enqueue_batch([b"1", b"2"])
    last = queue.enqueue(b"3", after=[first, second])
    lease_one(queue)
    why = queue.why(last)
    assert (why.state, why.code) == ("blocked", "blocked")
    assert why.details == {"missing": [second], "missing_count": 1}
    assert f"{second} (ready)" in why.sentence


def test_what_comes_after_a_dead_letter_is_dead_with_it_down_the_chain(queue: Queue) -> None:
    ids = chain(queue, 4)
    fail(queue)
    assert states(queue, ids) == ["dead"] * 4
    letters = {letter.id: letter for letter in queue.dead()}
    assert letters[ids[0]].reason == "boom"
    for id_ in ids[1:]:
        assert letters[id_].reason == f"it comes after {ids[0]}, which is dead"
        assert (letters[id_].cause, letters[id_].attempts) == ("dependency", 0)
    assert [event.event for event in queue.history(ids[3])] == ["published", "dead"]


def test_redriving_the_failed_message_brings_back_those_after_it(queue: Queue) -> None:
    ids = chain(queue, 4)
    fail(queue)
    assert queue.redrive([ids[0]]) == 1
    assert states(queue, ids) == ["ready", "blocked", "blocked", "blocked"]
    assert [lease_one(queue) for _ in ids] == [b"0", b"1", b"2", b"3"]


def test_redriving_all_dead_letters_brings_back_the_chain(queue: Queue) -> None:
    ids = chain(queue, 4)
    fail(queue)
    assert queue.redrive() == 4
    assert states(queue, ids) == ["ready", "blocked", "blocked", "blocked"]


def test_redriving_only_a_later_message_leaves_it_dead(queue: Queue) -> None:
    ids = chain(queue, 3)
    fail(queue)
    queue.redrive([ids[1]])
    assert states(queue, ids) == ["dead"] * 3


def test_a_late_ack_of_a_dead_letter_brings_back_those_after_it(
    queue: Queue, clock: ManualClock
) -> None:
    ids = chain(queue, 3)
    (job,) = queue.lease(lease_s=1)
    clock.advance(2)
    queue.stats()
    assert states(queue, ids) == ["dead"] * 3
    queue.ack(job)
    assert states(queue, ids) == ["done", "ready", "blocked"]


def test_an_ack_of_a_leased_dead_letter_brings_back_those_after_it(queue: Queue) -> None:
    ids = chain(queue, 3)
    fail(queue)
    (job,) = queue.lease_dead()
    assert job.id == ids[0]
    queue.ack(job)
    assert states(queue, ids) == ["done", "ready", "blocked"]


@pytest.mark.parametrize("how", ["cancelled", "discarded", "expired"])
def test_what_comes_after_a_removed_message_is_dead(
    queue: Queue, clock: ManualClock, how: str
) -> None:
    first = queue.enqueue(b"1", max_attempts=1, ttl=10 if how == "expired" else None)
    last = queue.enqueue(b"2", after=[first])
    if how == "cancelled":
        queue.cancel(first)
    elif how == "discarded":
        fail(queue)
        queue.discard([first])
    else:
        clock.advance(20)
        assert queue.lease() == []
    assert queue.state(last) == "dead"
    (letter,) = queue.dead()
    expected = "dead" if how == "discarded" else how  # it died before it was discarded
    assert letter.reason == f"it comes after {first}, which is {expected}"
    # It comes later: what failed is remembered.
    assert queue.state(queue.enqueue(b"3", after=[first])) == "dead"
    # An operator may run it all the same.
    queue.redrive([last])
    assert queue.state(last) == "ready"


def test_after_failed_run_runs_when_the_others_are_done_or_dead(queue: Queue) -> None:
    first, second = [
        one.id
        for one in queue.publish(
            [NewMessage(payload=b"1", max_attempts=1), NewMessage(payload=b"2")]
        )
    ]
    last = queue.enqueue(b"3", after=[first, second], after_failed="run")
    fail(queue)
    assert queue.state(last) == "blocked"
    lease_one(queue)
    assert queue.state(last) == "ready"
    cancelled = queue.enqueue(b"4")
    other = queue.enqueue(b"5", after=[cancelled], after_failed="run")
    queue.cancel(cancelled)
    assert queue.state(other) == "ready"


def test_a_delay_counts_from_the_publish_and_is_waited_for_as_well(
    queue: Queue, clock: ManualClock
) -> None:
    first = queue.enqueue(b"1")
    last = queue.enqueue(b"2", after=[first], delay=10)
    lease_one(queue)
    assert queue.state(last) == "scheduled"
    clock.advance(10)
    assert lease_one(queue) == b"2"


def test_a_time_to_live_ends_while_it_is_blocked(queue: Queue, clock: ManualClock) -> None:
    first = queue.enqueue(b"1")
    middle = queue.enqueue(b"2", after=[first], ttl=10)
    last = queue.enqueue(b"3", after=[middle])
    clock.advance(10)
    assert queue.stats().expired == 1
    assert states(queue, [first, last]) == ["ready", "dead"]


def test_a_blocked_message_does_not_hold_up_others_of_its_key(queue: Queue) -> None:
    first = queue.enqueue(b"1")
    queue.enqueue(b"2", after=[first], key="k")
    queue.enqueue(b"3", key="k")
    jobs = queue.lease(3)
    assert [job.payload for job in jobs] == [b"1", b"3"]
    queue.ack(jobs[0])
    assert queue.stats().parked == 1
    queue.ack(jobs[1])
    assert lease_one(queue) == b"2"


def publish_two_of_a_key_the_first_after_one_that_expires(store: QueueStore) -> list[str]:
    first = store.queue.enqueue(b"1", ttl=1)
    second = store.queue.enqueue(b"2", after=[first], after_failed="run", key="k")
    third = store.queue.enqueue(b"3", key="k")
    store.clock.advance(1)  # it is found to be expired on the way to the third
    return [second, third]


@pytest.mark.parametrize("how", ["reopen", "kill"])
def test_what_an_expired_message_lets_go_does_not_displace_one_leased_by_the_same_call(
    store: QueueStore, how: str
) -> None:
    ids = publish_two_of_a_key_the_first_after_one_that_expires(store)
    (job,) = store.queue.lease(9)
    assert job.payload == b"3"
    for _ in range(2):
        queue = store.queue
        assert states(queue, ids) == ["parked", "leased"]
        assert queue.lease(9) == [], "one of a key at a time"
        dumped = dump_state(queue.core.state)
        queue = store.reopen() if how == "reopen" else store.kill()
        queue.stats()
        assert dump_state(queue.core.state) == dumped
    queue.ack(job.receipt)
    assert states(queue, ids) == ["ready", "done"]
    assert lease_one(queue) == b"2"


def test_what_an_expired_message_lets_go_does_not_displace_one_taken_by_the_same_call(
    store: QueueStore,
) -> None:
    ids = publish_two_of_a_key_the_first_after_one_that_expires(store)
    assert [message.payload for message in store.queue.dequeue_batch(9)] == [b"3"]
    dumped = dump_state(store.queue.core.state)
    queue = store.kill()
    queue.stats()
    assert dump_state(queue.core.state) == dumped
    assert states(queue, ids) == ["ready", "done"]
    assert [message.payload for message in queue.dequeue_batch(9)] == [b"2"], "each once"


def test_a_message_waits_from_when_it_was_let_go(queue: Queue, clock: ManualClock) -> None:
    first = queue.enqueue(b"1")
    queue.enqueue(b"2", after=[first], priority=0)
    (job,) = queue.lease(lease_s=10_000)
    clock.advance(1000)
    queue.ack(job)
    queue.enqueue(b"3", priority=1)
    assert [lease_one(queue), lease_one(queue)] == [b"3", b"2"], "it has not aged"


def test_follow_ups_may_come_after_the_message_they_are_emitted_with(queue: Queue) -> None:
    queue.enqueue(b"1")
    (job,) = queue.lease()
    (emitted,) = queue.ack(job, emit=[NewMessage(payload=b"2", after=[job.id])])
    assert queue.state(emitted) == "ready"


def test_other_groups_read_a_message_whatever_it_comes_after(queue: Queue) -> None:
    queue.groups.create("audit", to="beginning")
    first = queue.enqueue(b"1")
    queue.enqueue(b"2", after=[first])
    assert [job.payload for job in queue.lease(5, group="audit")] == [b"1", b"2"]
    assert [job.payload for job in queue.lease(5)] == [b"1"]


def test_a_purge_removes_blocked_messages_and_what_comes_after_them_later_is_dead(
    queue: Queue,
) -> None:
    ids = chain(queue, 3)
    assert queue.purge() == 3
    assert states(queue, ids) == ["done"] * 3
    assert queue.state(queue.enqueue(b"later", after=[ids[0]])) == "dead"


def test_seeking_back_blocks_again(queue: Queue) -> None:
    ids = chain(queue, 3)
    for _ in ids:
        lease_one(queue)
    queue.seek(seq=1)
    assert states(queue, ids) == ["ready", "blocked", "blocked"]
    queue.seek(seq=2)
    assert states(queue, ids) == ["done", "ready", "blocked"]


# -- restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reopen", "kill", "kill with a snapshot"])
def test_what_waits_and_what_died_is_the_same_after_a_restart(store: QueueStore, how: str) -> None:
    queue = store.queue
    waiting, failing, ignoring = chain(queue, 3), chain(queue, 3, priority=9), []
    fail(queue)
    ignoring.append(queue.enqueue(b"x", after=[failing[1], waiting[0]], after_failed="run"))
    gone = queue.enqueue(b"gone")
    queue.cancel(gone)
    ids = [*waiting, *failing, *ignoring]
    before, dumped = states(queue, ids), dump_state(queue.core.state)
    if how == "kill with a snapshot":
        with queue.core.lock, queue.core.change:
            queue.core.snapshot()
    queue = store.reopen() if how == "reopen" else store.kill()
    queue.stats()
    assert states(queue, ids) == before
    assert dump_state(queue.core.state) == dumped
    assert queue.state(queue.enqueue(b"y", after=[gone])) == "dead"
    queue.redrive([failing[0]])
    assert states(queue, failing) == ["ready", "blocked", "blocked"]
    while queue.stats().ready:
        lease_one(queue)
    assert set(states(queue, ids)) == {"done"}


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"after": "abc"}, "list of message ids"),
        ({"after": [7.5]}, "message ids, and indexes"),
        ({"after": [0]}, "use publish"),
        ({"after": [True]}, "message ids, and indexes"),
        ({"after": ["abc"]}, "not a message id"),
        ({"after_failed": "run"}, "both, or neither"),
        ({"after": [], "after_failed": "maybe"}, "must be"),
    ],
)
def test_options_that_cannot_be_are_refused(
    queue: Queue, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        queue.enqueue(b"x", **options)  # type: ignore[arg-type]
    assert queue.stats().published == 0


def test_a_message_that_was_never_published_is_refused(queue: Queue) -> None:
    first = queue.enqueue(b"1")
    lease_one(queue)
    for unknown in (first[:-1] + "9", "00000" + first[5:]):
        with pytest.raises(NoSuchMessage, match="never published"):
            queue.enqueue(b"x", after=[unknown])
    assert queue.stats().published == 1


def test_a_message_of_another_queue_is_refused_without_a_broker(queue: Queue) -> None:
    other = QueueStore()
    id_ = other.queue.enqueue(b"1")
    with pytest.raises(InvalidInput, match="another queue"):
        queue.enqueue(b"x", after=[id_])
    other.close()


def test_too_many_are_refused(queue: Queue) -> None:
    first = queue.enqueue(b"1")
    with pytest.raises(TooLarge, match="10001 messages; the maximum is 10000"):
        queue.enqueue(b"x", after=[first] * (MAX_AFTER + 1))
    with pytest.raises(TooLarge, match="60000"):
        pack_after(after_of([], range(0, 20_000, 2), [], runs_anyway=False))


# -- cost ------------------------------------------------------------------------------------------


def test_a_chain_and_a_fan_of_ten_thousand_are_stored_in_few_bytes() -> None:
    assert len(pack_after(after_of(range(1, 10_001), [], [], runs_anyway=False))) == 13
    after = After(((3, 2),), ((7, 1), (9, 2)), (b"0123456789abcdef",), runs_anyway=True)
    assert unpack_after(pack_after(after)) == after
    assert list(after.seqs(20)) == [17, 18, 7, 9, 10]
    assert id_text(id_bytes("01M7NTJ1X69PG8EZR000000003")) == "01M7NTJ1X69PG8EZR000000003"


@pytest.mark.parametrize("shape", ["chain", "fan"])
def test_the_work_of_a_workflow_grows_with_its_steps_only(queue: Queue, shape: str) -> None:
    """Counted in looks at dependencies, not in time."""
    queue.lease()
    looked: dict[int, int] = {}
    for count in (100, 1000):
        new = [NewMessage(payload=b"0")]
        new += [
            NewMessage(payload=b"s", after=[n - 1] if shape == "chain" else [0])
            for n in range(1, count)
        ]
        new.append(NewMessage(payload=b"end", after=list(range(count))))
        queue.publish(new)
        pairs = sum(map(len, queue.core.main.dependents.values()))
        assert pairs == 2 * count - 1
        looked[count] = queue.core.ledger.events.next_seq
        for _ in new:
            lease_one(queue)
        looked[count] = queue.core.ledger.events.next_seq - looked[count]
        assert not queue.core.main.dependents and not queue.core.main.dependencies.waits
    assert looked[1000] == 2 * 1001 and looked[100] == 2 * 101
