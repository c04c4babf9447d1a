"""What each event changes about the messages of a group. To add one: a line in `_HANDLERS`."""

from collections.abc import Callable

from penstock.queue.events import Event, EventType
from penstock.queue.group import Group
from penstock.queue.group_after import resolved
from penstock.queue.group_leases import dead_leased, extended, leased, progressed, released, taken
from penstock.queue.group_outcomes import acked, died, nacked, timed_out
from penstock.queue.group_removals import purged, redriven, removed, sought


def apply(group: Group, event: Event) -> None:
    """Change a group by an event. Beside `group_feeding`, there is no other way."""
    group.waiting.promote(event.timestamp_ns)
    _HANDLERS[event.type](group, event)


_HANDLERS: dict[EventType, Callable[[Group, Event], None]] = {
    EventType.LEASED: leased,
    EventType.TAKEN: taken,
    EventType.ACKED: acked,
    EventType.NACKED: nacked,
    EventType.TIMED_OUT: timed_out,
    EventType.DEAD: died,
    EventType.DEAD_LEASED: dead_leased,
    EventType.EXTENDED: extended,
    EventType.PROGRESSED: progressed,
    EventType.RELEASED: released,
    EventType.REDRIVEN: redriven,
    EventType.EXPIRED: removed,
    EventType.CANCELLED: removed,
    EventType.DISCARDED: removed,
    EventType.DROPPED: removed,
    EventType.LOST: removed,
    EventType.PURGED: purged,
    EventType.SOUGHT: sought,
    EventType.RESOLVED: resolved,
}
