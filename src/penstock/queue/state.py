"""The state of a queue: the fold of its two logs. Pure: no file, no clock, no lock.

    state = fold(snapshot, messages, events)

Messages are fed to every group, and events are applied. Live traffic and recovery make the same
two calls with the same values, so recovery repeats what happened.
"""

from collections.abc import Iterable, Mapping, Sequence

from penstock.codec import Entry
from penstock.codec.notes_py import Note
from penstock.queue.attributes import (
    AFTER,
    DEDUP,
    DUPLICATES,
    TENANT,
    UNIQUE,
    unpack_dedup,
)
from penstock.queue.dedup import DedupTable, kind_in
from penstock.queue.events import ALL_GROUPS, MAIN_GROUP, Event, EventType
from penstock.queue.group import Group, Moment
from penstock.queue.group_events import apply
from penstock.queue.group_feeding import feed, feed_noted, feed_plain
from penstock.queue.limits import Limits
from penstock.queue.schedule_table import SCHEDULE_EVENTS, ScheduleTable
from penstock.queue.unique import UniqueTable

MAIN_NAME = "main"
# The attributes that the state has to know.
NOTED_TAGS = 1 << DEDUP | 1 << DUPLICATES | 1 << AFTER | 1 << UNIQUE
NOTED_TENANT = 1 << TENANT  # and, if it shares between tenants


class QueueState:
    """All groups of a queue, its dedup table, its schedules, and whether it is paused."""

    def __init__(
        self,
        *,
        dedup_entries: int,
        result_entries: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.moment = Moment()
        self.limits = limits
        self.knows_tenants = False  # a snapshot said which message has which tenant
        self.groups: dict[int, Group] = {}
        self.groups[MAIN_GROUP] = self.new_group(MAIN_GROUP, MAIN_NAME, 1)
        self.dedup = DedupTable(dedup_entries, result_entries)
        self.unique = UniqueTable()
        self.deduplicated = 0  # messages that were not published again
        self.schedules = ScheduleTable()
        self.paused = False
        self.next_group = MAIN_GROUP + 1
        self.ingested_upto = 1  # messages below it were fed
        # After a fold: the first message and the first event that no log refers to.
        self.spoken_of = self.next_event = 1
        self.differs_from_log = False  # an event was ignored that must never count

    def new_group(self, number: int, name: str, start_seq: int) -> Group:
        """Return a group without messages."""
        return Group(number, name, start_seq, self.moment, self.limits)

    def group_named(self, name: str) -> Group | None:
        for group in self.groups.values():
            if group.name == name:
                return group
        return None

    # -- messages ----------------------------------------------------------------------------------

    def publish_plain(self, first: int, end: int) -> None:
        """Feed messages [first, end) without options."""
        for group in self.groups.values():
            if group.fed_upto <= first:
                feed_plain(group, first, end)
            elif group.fed_upto < end:
                feed_plain(group, group.fed_upto, end)
        self.ingested_upto = max(self.ingested_upto, end)

    def publish_noted(self, upto: int, noted: Sequence[Note]) -> None:
        """Feed the messages below `upto`: those that were noted, and plain ones between them."""
        first = self.ingested_upto
        for group in self.groups.values():
            if group.fed_upto < upto:
                feed_noted(group, max(first, group.fed_upto), upto, noted)
        self.ingested_upto = max(first, upto)
        for seq, timestamp_ns, _, _, _, attributes, expires_at_ns in noted:
            if attributes and seq >= first:
                self._note_dedup(attributes, seq, timestamp_ns, expires_at_ns)

    def publish(self, entry: Entry) -> None:
        """Feed a message of any kind."""
        for group in self.groups.values():
            if group.fed_upto <= entry.seq:
                feed_entry(group, entry)
        if entry.seq >= self.ingested_upto:
            self.ingested_upto = entry.seq + 1
            if entry.attributes:
                self._note_dedup(
                    entry.attributes, entry.seq, entry.timestamp_ns, entry.expires_at_ns
                )

    def _note_dedup(
        self, attributes: Mapping[int, bytes], seq: int, timestamp_ns: int, expires_at_ns: int
    ) -> None:
        if DEDUP in attributes:
            digest, until_ns = unpack_dedup(attributes[DEDUP])
            self.dedup.add(kind_in(attributes), digest, until_ns, seq, timestamp_ns)
        if UNIQUE in attributes:
            self.unique.add(attributes[UNIQUE], seq, timestamp_ns, expires_at_ns)
        if DUPLICATES in attributes:
            self.deduplicated += int.from_bytes(attributes[DUPLICATES], "little")

    # -- events ------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Change the state by an event. There is no other way."""
        if event.type is EventType.GROUP_CREATED:
            self.groups[event.group] = self.new_group(event.group, event.name, event.target_seq)
            self.next_group = max(self.next_group, event.group + 1)
        elif event.type is EventType.GROUP_DELETED:
            self.groups.pop(event.group, None)
        elif event.type in (EventType.PAUSED, EventType.RESUMED):
            self.paused = event.type is EventType.PAUSED
        elif event.type is EventType.DEDUPLICATED:
            self.deduplicated += event.duplicates
        elif event.type in SCHEDULE_EVENTS:
            self.schedules.apply(event)
        else:
            for group in self._groups_of(event):
                apply(group, event)

    def _groups_of(self, event: Event) -> Iterable[Group]:
        if event.group == ALL_GROUPS:
            return list(self.groups.values())
        group = self.groups.get(event.group)
        return () if group is None else (group,)

    def rebase(self, now_ns: int, mono_ns: int) -> None:
        """After a fold: set when each lease ends on the new monotonic clock."""
        self.moment.mono_ns = mono_ns
        for group in self.groups.values():
            group.rebase(now_ns, mono_ns)

    def promote(self, now_ns: int) -> None:
        """Make messages ready that are due."""
        for group in self.groups.values():
            group.waiting.promote(now_ns)


def feed_entry(group: Group, entry: Entry) -> None:
    """Feed one message to one group."""
    feed(
        group,
        entry.seq,
        priority=entry.priority,
        published_ns=entry.timestamp_ns,
        deliver_at_ns=entry.deliver_at_ns,
        key=entry.key,
        expires_at_ns=entry.expires_at_ns,
        attributes=entry.attributes,
    )
