"""Decisions are pure: the same state gives the same events, and no decision changes a state.

No queue and no file is opened here. States are made of random events.
"""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import Entry
from penstock.codec.layout import DATA
from penstock.errors import EntryGone, PayloadUnreadable, ReceiptInvalid
from penstock.model import NO_HEADERS, Message, Receipt
from penstock.queue.decisions import (
    by_attempt,
    choose,
    count_purged,
    decide_cancel,
    decide_cancel_deliverable,
    decide_drop_oldest,
    decide_due,
    decide_lease,
    decide_purge,
    decide_settle,
)
from penstock.queue.delivery import WAITING_STATES, State
from penstock.queue.events import Cause, Event, EventType
from penstock.queue.group import Group
from penstock.queue.receipts import held_by, held_by_holder
from penstock.queue.runs import as_runs
from penstock.queue.settings import QueueSettings
from penstock.queue.snapshot import dump_state
from penstock.queue.state import QueueState
from tests.harness.interrupted_life import facts_of

MESSAGES = 12
SEQS = range(1, MESSAGES + 1)
NOW = 1_000
LEASE_NS = 400
IDENTITY = 7
KINDS = [
    EventType.LEASED,
    EventType.LEASED,
    EventType.ACKED,
    EventType.NACKED,
    EventType.TIMED_OUT,
    EventType.DEAD,
    EventType.DEAD_LEASED,
    EventType.RELEASED,
    EventType.REDRIVEN,
]


@st.composite
def states(draw: st.DrawFn) -> QueueState:
    """A state after random events. Every third message has a key, every fourth is delayed."""
    state = QueueState(dedup_entries=10)
    for seq in SEQS:
        state.publish(
            _entry(
                seq,
                priority=9 if seq % 5 == 0 else 5,
                deliver_at_ns=2 * NOW if seq % 4 == 0 else 0,
                key=b"k" if seq % 3 == 0 else None,
            )
        )
    steps = draw(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(SEQS)), max_size=20))
    for at, (kind, seq) in enumerate(steps, 10):
        state.moment.mono_ns = at
        state.apply(
            Event(
                kind,
                at,
                at,
                attempt=state.groups[0].attempts_of(seq) + 1,
                runs=((seq, 1),),
                nonce=at,
                deadline_ns=at + LEASE_NS,
                length_ns=LEASE_NS if seq % 2 else 10 * NOW,
                retry_at_ns=at + (0 if seq % 2 else 10 * NOW),
                cause=Cause.NACK if kind is EventType.DEAD else 0,
                holder="odd" if seq % 2 else "even",
            )
        )
    state.promote(NOW)
    return state


def _entry(seq: int, *, expires_at_ns: int = 0, **options: object) -> Entry:
    values = {"priority": 5, "deliver_at_ns": 0, "key": None, **options}
    return Entry(
        seq=seq,
        timestamp_ns=seq,
        type=DATA,
        payload=b"",
        expires_at_ns=expires_at_ns,
        headers=None,
        attributes=None,
        compression=0,
        offset=0,
        size=100,
        **values,  # type: ignore[arg-type]
    )


def _message(entry: Entry) -> Message:
    return Message(
        "", entry.seq, b"", 5, entry.seq, 0, entry.expires_at_ns, None, NO_HEADERS, None, 0
    )


def after(state: QueueState, events: list[Event]) -> QueueState:
    changed = deepcopy(state)
    for number, event in enumerate(events, 1000):
        changed.apply(event.recorded(NOW, number))
    return changed


def in_order(group: Group) -> list[int]:
    return list(group.waiting.in_order(lambda seq: seq, lambda seq: seq, now_ns=NOW, level_ns=0))


def state_names(state: QueueState) -> list[State]:
    return [state.groups[0].state_of(seq, NOW) for seq in SEQS]


def due(state: QueueState, **settings: float) -> list[Event]:
    return decide_due(
        state.groups[0],
        QueueSettings(**settings),  # type: ignore[arg-type]
        NOW,
        NOW,
        max_attempts=lambda seq: 2,
        retry_delay=lambda failed: None if failed.seq == 7 else 50,
    )


@given(states())
def test_no_decision_changes_the_state(state: QueueState) -> None:
    before, group = (facts_of(state), dump_state(state)), state.groups[0]
    due(state)
    choose(group, in_order(group), _entry, _message, count=5, now_ns=NOW, skipped=set())
    held_by_holder(group, "odd")
    decide_cancel(state, 1, NOW)
    decide_cancel_deliverable(group, 3)
    decide_purge(state, None)
    assert (facts_of(state), dump_state(state)) == before


@given(states())
def test_after_what_is_due_no_lease_has_ended(state: QueueState) -> None:
    ended = [seq for seq, lease in state.groups[0].leases.items() if lease.ends_mono_ns <= NOW]
    events = due(state)
    assert sorted(seq for event in events for seq in event.seqs) == sorted(ended)
    changed = after(state, events)
    assert not set(ended) & set(changed.groups[0].leases)
    assert due(changed) == []
    for event in events:
        (seq,) = event.seqs
        was_dead = seq in state.groups[0].deliveries and state.groups[0].deliveries[seq].cause > 0
        dies = was_dead or event.attempt >= 2 or seq == 7
        assert event.type is (EventType.DEAD if dies else EventType.TIMED_OUT)
        assert event.retry_at_ns == (0 if dies else NOW + 50)


@given(states(), st.integers(1, 5))
def test_dead_letters_beyond_a_bound_are_discarded_oldest_first(
    state: QueueState, most: int
) -> None:
    dead = list(state.groups[0].dead)
    discarded = [e for e in due(state, dead_max_messages=most) if e.type is EventType.DISCARDED]
    seqs = [seq for event in discarded for seq in event.seqs]
    assert seqs == dead[: max(len(dead) - most, 0)]


@given(states(), st.sets(st.sampled_from(SEQS)), st.sets(st.sampled_from(SEQS)), st.integers(1, 9))
def test_chosen_are_the_first_that_can_be_delivered(
    state: QueueState, gone: set[int], unreadable: set[int], count: int
) -> None:
    def entry_of(seq: int) -> Entry:
        if seq in gone:
            raise EntryGone(f"{seq} is gone")
        return _entry(seq, expires_at_ns=NOW if seq % 7 == 0 else 0)

    def message_of(entry: Entry) -> Message:
        if entry.seq in unreadable:
            raise PayloadUnreadable("no")
        return _message(entry)

    group = state.groups[0]
    order = in_order(group)
    skipped: set[int] = set()
    chosen, events = choose(
        group, order, entry_of, message_of, count=count, now_ns=NOW, skipped=skipped
    )
    good = [seq for seq in order if not (seq in gone or seq % 7 == 0 or seq in unreadable)]
    assert [message.seq for message in chosen] == good[:count]
    kinds = {seq: event.type for event in events for seq in event.seqs}
    assert kinds.keys() == skipped
    seen = order if len(good) < count else order[: order.index(good[count - 1]) + 1]
    assert kinds == {
        seq: EventType.LOST
        if seq in gone
        else EventType.EXPIRED
        if seq % 7 == 0
        else EventType.DEAD
        for seq in seen
        if seq not in good
    }


@given(states(), st.integers(1, MESSAGES))
def test_leased_messages_are_held_by_their_receipts_and_settled(
    state: QueueState, count: int
) -> None:
    seqs = in_order(state.groups[0])[:count]
    attempts = by_attempt(state.groups[0], seqs)
    parts = [(attempt, as_runs(found)) for attempt, found in attempts.items()]
    leases = decide_lease(
        EventType.LEASED, state.groups[0], parts, nonce=5, now_ns=NOW, length_ns=9, holder="h"
    )
    leased = after(state, leases)
    group = leased.groups[0]
    receipts = [
        Receipt(IDENTITY, 0, attempt, seq, 5).pack()
        for attempt, found in attempts.items()
        for seq in found
    ]
    if not seqs:
        return
    held = held_by(leased, IDENTITY, receipts)
    assert sorted(seq for one in held for seq in one.seqs) == sorted(seqs)
    assert {one.attempt for one in held_by_holder(group, "h")} == set(attempts)
    acked = after(leased, decide_settle(EventType.ACKED, held))
    assert all(acked.groups[0].state_of(seq, NOW) is State.DONE for seq in seqs)
    with pytest.raises(ReceiptInvalid):
        held_by(acked, IDENTITY, receipts)
    with pytest.raises(ReceiptInvalid):
        held_by(leased, IDENTITY + 1, receipts)


@given(states(), st.integers(0, 2 * MESSAGES), st.integers(1, MESSAGES))
def test_dropping_makes_room_or_does_nothing(state: QueueState, count: int, most: int) -> None:
    group = state.groups[0]
    waiting = [seq for seq in SEQS if group.state_of(seq, NOW) in WAITING_STATES]
    events = decide_drop_oldest(state, count, most)
    excess = max(group.undelivered + count - most, 0)
    assert (events is None) == (excess > len(waiting))
    if events is not None:
        assert [seq for event in events for seq in event.seqs] == waiting[:excess]
        assert after(state, events).groups[0].undelivered + count <= max(most, count)


@given(states(), st.sampled_from(SEQS), st.integers(0, MESSAGES))
def test_cancelled_messages_are_done(state: QueueState, seq: int, limit: int) -> None:
    before = state_names(state)
    events = decide_cancel(state, seq, NOW)
    assert bool(events) == (before[seq - 1] is not State.DONE)
    assert after(state, events).groups[0].state_of(seq, NOW) is State.DONE
    many = decide_cancel_deliverable(state.groups[0], limit)
    changed = state_names(after(state, many))
    for was, now in zip(before, changed, strict=True):
        assert was not in (State.SCHEDULED, State.DEAD, State.DONE) or now in (was, State.READY)


@given(states())
def test_a_purge_removes_what_waits_and_counts_it(state: QueueState) -> None:
    before = state_names(state)
    changed = state_names(after(state, decide_purge(state, state.groups[0])))
    for was, now in zip(before, changed, strict=True):
        assert now is (State.DONE if was in WAITING_STATES else was)
    assert count_purged(state, None) == sum(was in WAITING_STATES for was in before)
