"""Every state of a message in a group, met by every event: what happens to it.

What is not in a row of the table is ignored: the message stays where it is, and nothing is counted.
Events come from a log that may have been damaged, so all pairs must be safe.
"""

import pytest

from penstock.queue.after import After, pack_after
from penstock.queue.attributes import AFTER
from penstock.queue.events import Cause, Event, EventType
from penstock.queue.group import Group, Moment
from penstock.queue.group_events import apply
from penstock.queue.group_feeding import feed
from penstock.queue.schedule_table import SCHEDULE_EVENTS

SEQ = 5
EARLIER = 4  # the message that a parked one of the same key, or a blocked one, waits for
NOW = 1_000
LATER = 5_000
RETRY = 3_000
KEY = b"key"
ABOUT_OTHERS = {
    EventType.GROUP_CREATED,
    EventType.GROUP_DELETED,
    EventType.PAUSED,
    EventType.RESUMED,
    EventType.DEDUPLICATED,
    *SCHEDULE_EVENTS,
    EventType.RESOLVED,
}
EVENTS = [kind for kind in EventType if kind not in ABOUT_OTHERS]
REMOVALS = dict.fromkeys(("EXPIRED", "CANCELLED", "DISCARDED", "DROPPED", "LOST"), "done")

# The states, and for each event that does something the state it leads to.
TABLE: dict[str, dict[str, str]] = {
    "ready": {
        "LEASED": "leased",
        "TAKEN": "done",
        "ACKED": "done",  # late: its lease ran out, and nobody got it since
        "DEAD": "dead",  # its payload turned out to be unreadable
        "PURGED": "done",
        "SOUGHT": "ready",
        **REMOVALS,
    },
    "ready, of high priority": {
        "LEASED": "leased",
        "TAKEN": "done",
        "ACKED": "done",
        "DEAD": "dead",
        "PURGED": "done",
        "SOUGHT": "ready",
        **REMOVALS,
    },
    "ready, delayed before": {
        "LEASED": "leased",
        "TAKEN": "done",
        "ACKED": "done",
        "DEAD": "dead",
        "PURGED": "done",
        "SOUGHT": "ready",
        **REMOVALS,
    },
    "ready, failed before": {
        "LEASED": "leased",
        "TAKEN": "done",
        "ACKED": "done",
        "DEAD": "dead",
        "PURGED": "done",
        "SOUGHT": "ready",
        **REMOVALS,
    },
    "scheduled": {
        "LEASED": "leased",
        "TAKEN": "done",
        "ACKED": "done",
        "DEAD": "dead",
        "PURGED": "done",
        "SOUGHT": "scheduled",
        **REMOVALS,
    },
    "scheduled, backing off": {
        "LEASED": "leased",
        "TAKEN": "done",
        "ACKED": "done",
        "DEAD": "dead",
        "PURGED": "done",
        "SOUGHT": "ready",
        **REMOVALS,
    },
    "leased": {
        "ACKED": "done",
        "NACKED": "scheduled",
        "TIMED_OUT": "scheduled",
        "DEAD": "dead",
        "EXTENDED": "leased",
        "PROGRESSED": "leased",
        "RELEASED": "ready",
        "SOUGHT": "ready",
        **REMOVALS,
    },
    "leased, of a key": {
        "ACKED": "done",
        "NACKED": "scheduled",
        "TIMED_OUT": "scheduled",
        "DEAD": "dead",
        "EXTENDED": "leased",
        "PROGRESSED": "leased",
        "RELEASED": "ready",
        "SOUGHT": "ready",
        **REMOVALS,
    },
    "parked": {
        "ACKED": "done",  # late: an earlier one was redriven after its lease ran out
        "PURGED": "done",
        "SOUGHT": "ready",  # alone: the earlier one lies before the place sought
        **REMOVALS,
    },
    "blocked": {
        "ACKED": "done",
        "DEAD": "dead",  # a message that it comes after failed
        "PURGED": "done",
        "SOUGHT": "ready",  # the earlier one lies before the place sought
        **REMOVALS,
    },
    "dead": {
        "ACKED": "done",  # late: its last lease ran out
        "REDRIVEN": "ready",
        "DEAD_LEASED": "leased",
        "SOUGHT": "ready",
        **REMOVALS,
    },
    "dead, leased": {
        "ACKED": "done",
        "NACKED": "scheduled",
        "TIMED_OUT": "scheduled",
        "DEAD": "dead",
        "EXTENDED": "leased",
        "PROGRESSED": "leased",
        "RELEASED": "dead",
        "SOUGHT": "ready",
        **REMOVALS,
    },
    "done": {"SOUGHT": "ready"},
    "never published": {},
}


def event(kind: EventType, seq: int = SEQ, at: int = NOW) -> Event:
    """An event of each kind about one message, with all that any kind carries."""
    return Event(
        kind,
        timestamp_ns=at,
        attempt=1,
        runs=((seq, 1),),
        nonce=7,
        deadline_ns=at + 100,
        length_ns=100,
        retry_at_ns=RETRY,
        target_seq=SEQ + 1 if kind is EventType.PURGED else SEQ,
        cause=Cause.NACK,
        reason="because",
    )


def publish(group: Group, name: str) -> None:
    """The message, as its state's name says it was published."""
    later = name in ("scheduled", "ready, delayed before")
    keyed = name in ("parked", "leased, of a key")
    if name in ("parked", "blocked") and group.fed_upto <= EARLIER:
        key = KEY if keyed else None
        feed(group, EARLIER, priority=5, published_ns=1, deliver_at_ns=0, key=key)
    if name != "never published":
        feed(
            group,
            SEQ,
            priority=9 if name == "ready, of high priority" else 5,
            published_ns=1,
            deliver_at_ns=(LATER if name == "scheduled" else NOW - 1) if later else 0,
            key=KEY if keyed else None,
            attributes={AFTER: pack_after(After(near=((1, 1),)))} if name == "blocked" else None,
        )


HISTORIES: dict[str, list[Event]] = {
    "ready, failed before": [
        event(EventType.LEASED, at=10),
        event(EventType.NACKED, at=20)._replace(retry_at_ns=500),
    ],
    "scheduled, backing off": [event(EventType.LEASED, at=10), event(EventType.TIMED_OUT, at=20)],
    "leased": [event(EventType.LEASED, at=10)],
    "leased, of a key": [event(EventType.LEASED, at=10)],
    "dead": [event(EventType.LEASED, at=10), event(EventType.DEAD, at=20)],
    "dead, leased": [
        event(EventType.LEASED, at=10),
        event(EventType.DEAD, at=20),
        event(EventType.DEAD_LEASED, at=30),
    ],
    "done": [event(EventType.TAKEN, at=10)],
}


def in_state(name: str) -> Group:
    group = Group(0, "main", 1, Moment())
    publish(group, name)
    for past in HISTORIES.get(name, []):
        apply(group, past)
    group.waiting.promote(NOW)
    return group


def state_of(group: Group, name: str) -> str:
    return group.state_of(SEQ, NOW).name.lower()


def counts(group: Group) -> dict[str, int]:
    return {
        "ready": group.waiting.ready,
        "scheduled": group.waiting.scheduled,
        "leased": len(group.leases),
        "parked": group.parked,
        "blocked": group.blocked,
        "dead": len(group.dead),
    }


@pytest.mark.parametrize("name", TABLE)
def test_each_state_can_be_reached(name: str) -> None:
    group = in_state(name)
    word = {"dead, leased": "leased", "never published": "done"}.get(name, name.split(",")[0])
    assert state_of(group, name) == word
    expected = dict.fromkeys(counts(group), 0)
    if word != "done":
        expected[word] += 1
    if name in ("parked", "blocked"):
        expected["ready"] += 1  # the one before it
    assert counts(group) == expected


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", TABLE)
def test_each_state_meets_each_event(name: str, kind: EventType) -> None:
    group = in_state(name)
    before, counted = state_of(group, name), group.totals[kind]
    apply(group, event(kind))
    if kind is EventType.SOUGHT:
        publish(group, name)  # as whoever applied it does: the group reads on from there
    group.waiting.promote(NOW)
    expected = TABLE[name].get(kind.name)
    assert state_of(group, name) == (expected or before)
    if expected is None and kind is not EventType.SOUGHT:
        assert group.totals[kind] == counted, "what is ignored is not counted"
        assert counts(group) == counts(in_state(name))
    elif kind is not EventType.PURGED:
        # A dead letter that was leased and fails again has died before.
        died_before = name == "dead, leased" and kind is EventType.DEAD
        assert group.totals[kind] == counted + (not died_before)
    only = dict.fromkeys(counts(group), 0)
    if (expected or before) != "done":
        only[expected or before] += 1
    if name in ("parked", "blocked") and kind not in (EventType.PURGED, EventType.SOUGHT):
        only["ready"] += 1
    assert counts(group) == only


@pytest.mark.parametrize("name", TABLE)
def test_seeking_past_a_message_leaves_only_the_dead(name: str) -> None:
    group = in_state(name)
    apply(group, event(EventType.SOUGHT)._replace(target_seq=SEQ + 1))
    assert state_of(group, name) == ("dead" if name.startswith("dead") else "done")


@pytest.mark.parametrize("name", TABLE)
def test_purging_up_to_a_message_leaves_it(name: str) -> None:
    group = in_state(name)
    before = state_of(group, name)
    apply(group, event(EventType.PURGED)._replace(target_seq=SEQ))
    group.waiting.promote(NOW)
    assert state_of(group, name) == ("ready" if name == "parked" else before)
    assert bool(group.dependencies.touched) == (name == "blocked")  # it is to die


@pytest.mark.parametrize("kind", ["ACKED", "DEAD", *REMOVALS])
def test_the_next_of_a_key_gets_its_turn_when_the_one_before_it_goes(kind: str) -> None:
    group = in_state("parked")
    apply(group, event(EventType.LEASED, EARLIER))
    apply(group, event(EventType[kind], EARLIER))
    group.waiting.promote(NOW)
    assert state_of(group, "parked") == "ready"


@pytest.mark.parametrize("kind", ["NACKED", "TIMED_OUT", "RELEASED", "EXTENDED", "PROGRESSED"])
def test_the_next_of_a_key_stays_parked_while_the_one_before_it_is_not_settled(kind: str) -> None:
    group = in_state("parked")
    apply(group, event(EventType.LEASED, EARLIER))
    apply(group, event(EventType[kind], EARLIER))
    group.waiting.promote(NOW)
    assert state_of(group, "parked") == "parked"


@pytest.mark.parametrize("kind", ["ACKED", "TAKEN"])
def test_a_blocked_message_is_ready_when_the_one_before_it_is_done(kind: str) -> None:
    group = in_state("blocked")
    if kind == "ACKED":
        apply(group, event(EventType.LEASED, EARLIER))
    apply(group, event(EventType[kind], EARLIER))
    assert state_of(group, "blocked") == "ready"
    assert not group.dependencies.touched


@pytest.mark.parametrize("kind", ["DEAD", *REMOVALS])
def test_a_blocked_message_is_to_die_when_the_one_before_it_fails(kind: str) -> None:
    group = in_state("blocked")
    apply(group, event(EventType.LEASED, EARLIER))
    apply(group, event(EventType[kind], EARLIER))
    assert state_of(group, "blocked") == "blocked"
    assert list(group.dependencies.doomed(group.deliveries).values()) == [[SEQ]]


@pytest.mark.parametrize("kind", ["NACKED", "TIMED_OUT", "RELEASED", "EXTENDED", "PROGRESSED"])
def test_a_blocked_message_stays_so_while_the_one_before_it_is_not_settled(kind: str) -> None:
    group = in_state("blocked")
    apply(group, event(EventType.LEASED, EARLIER))
    apply(group, event(EventType[kind], EARLIER))
    assert state_of(group, "blocked") == "blocked"
    assert not group.dependencies.touched


def test_every_event_about_messages_has_a_column() -> None:
    for name, row in TABLE.items():
        assert {EventType[kind] for kind in row} <= set(EVENTS), name
