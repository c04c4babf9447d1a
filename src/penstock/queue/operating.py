"""Operating a queue: seek, cancel, purge, pause, redrive, groups, compaction."""

import math
from collections.abc import Callable, Iterable

from penstock.checking import Time, check_time, check_whole
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.ledger import seq_at_time
from penstock.ledger.compaction import CompactionResult
from penstock.model import MAIN_GROUP_NAME, NS
from penstock.names import check_name
from penstock.queue.core import QueueCore
from penstock.queue.decisions import (
    about,
    dead_matching,
    decide_cancel,
    decide_cancel_deliverable,
    decide_create_group,
)
from penstock.queue.events import ALL_GROUPS, Event, EventType
from penstock.queue.group import Group
from penstock.queue.inspecting import Inspecting


class Operating:
    """The operator's side of a queue."""

    def __init__(self, core: QueueCore, inspecting: Inspecting) -> None:
        self._core = core
        self._inspecting = inspecting

    # -- position ----------------------------------------------------------------------------------

    def seek(
        self,
        group_name: str,
        *,
        to: str | None = None,
        seq: int | None = None,
        id: str | None = None,
        time: Time | None = None,
    ) -> int:
        """Deliver from a position on, again if need be. Return its seq."""
        core = self._core
        with core.lock, core.change:
            core.tick()
            group = core.group(group_name)
            with core.compacting.stepping:
                core.compacting.look_again()
                target = self._target(to=to, seq=seq, id=id, time=time)
                core.record([Event(EventType.SOUGHT, group=group.number, target_seq=target)])
            return target

    def _target(self, *, to: str | None, seq: int | None, id: str | None, time: Time | None) -> int:
        given = [value for value in (to, seq, id, time) if value is not None]
        if len(given) != 1:
            raise InvalidInput("give one of to ('beginning' or 'end'), seq, id, or time")
        log = self._core.ledger.messages
        if to is not None:
            if to not in ("beginning", "end"):
                raise InvalidInput(f"to is {to!r}; it must be 'beginning' or 'end'")
            return log.first_seq if to == "beginning" else log.next_seq
        if id is not None:
            return self._inspecting.entry(id).seq
        if time is not None:
            return seq_at_time(log, _at_or_before_ns(check_time("time", time, 0, 9e9)))
        return max(check_whole("seq", seq, 1, log.next_seq), log.first_seq)

    # -- messages ----------------------------------------------------------------------------------

    def cancel(self, id_: str) -> bool:
        """Cancel a message in every group. Return False if it is done in all of them."""
        core = self._core
        entry = self._inspecting.entry(id_)
        with core.lock, core.change:
            events = decide_cancel(core.state, entry.seq, core.tick())
            if events:
                core.record(events)
            return bool(events)

    def cancel_deliverable(self, group_name: str, limit: int) -> int:
        """Cancel up to `limit` messages that are ready, parked or leased. Return how many.

        Scheduled messages and dead letters stay, leased dead letters too.
        """
        core = self._core
        with core.lock, core.change:
            core.tick()
            events = decide_cancel_deliverable(core.group(group_name), limit)
            if events:
                core.record(events)
            return sum(count for event in events for _, count in event.runs)

    def purge(self, group_name: str | None) -> int:
        """Remove all waiting messages, not leased or dead ones. Return how many."""
        core = self._core
        with core.lock, core.change:
            core.tick()
            groups = core.state.groups.values() if group_name is None else [core.group(group_name)]
            before = sum(group.totals[EventType.PURGED] for group in groups)
            number = ALL_GROUPS if group_name is None else core.group(group_name).number
            target = core.ledger.messages.next_seq
            core.record([Event(EventType.PURGED, group=number, target_seq=target)])
            return sum(group.totals[EventType.PURGED] for group in groups) - before

    def pause(self, paused: bool) -> None:
        """Stop or resume delivery. Publishing and settling are not affected."""
        core = self._core
        with core.lock, core.change:
            if core.state.paused != paused:
                kind = EventType.PAUSED if paused else EventType.RESUMED
                core.record([Event(kind, group=ALL_GROUPS)])

    # -- dead letters ------------------------------------------------------------------------------

    def settle_dead(
        self,
        kind: EventType,
        group_name: str,
        *,
        ids: Iterable[str] | None,
        reason: str | None,
        since: Time | None,
        until: Time | None,
        limit: int | None,
        dry_run: bool = False,
    ) -> int:
        """Redrive or discard dead letters: those named, those that match, or all.

        Return how many. With `dry_run`, change nothing.
        """
        core = self._core
        if limit is not None:
            check_whole("limit", limit, 0, 1 << 60)
        if reason is not None and not isinstance(reason, str):
            raise InvalidInput(f"reason is text, not {type(reason).__name__}")
        since_s = None if since is None else check_time("since (Unix seconds)", since, 0, 9e9)
        until_s = None if until is None else check_time("until (Unix seconds)", until, 0, 9e9)
        with core.lock, core.change:
            core.tick()
            group = core.group(group_name)
            wanted = self._named(group, ids)
            seqs = dead_matching(group, wanted, reason=reason, since=since_s, until=until_s)[:limit]
            if seqs and not dry_run:
                core.record([about(kind, group, seqs)])
            return len(seqs)

    def _named(self, group: Group, ids: Iterable[str] | None) -> list[int]:
        if ids is None:
            return list(group.dead)
        seqs = list(dict.fromkeys(self._inspecting.entry(id_).seq for id_ in ids))
        missing = [seq for seq in seqs if seq not in group.dead]
        if missing:
            raise NoSuchMessage(f"message {missing[0]} is not a dead letter of {group.name!r}")
        return seqs

    # -- groups ------------------------------------------------------------------------------------

    def create_group(
        self,
        name: str,
        *,
        to: str | None,
        seq: int | None,
        id: str | None,
        time: Time | None,
    ) -> None:
        """Create a group that starts at a position, by default the beginning.

        Do nothing if it exists.
        """
        core = self._core
        check_name("group", name)
        with core.lock, core.change:
            core.tick()
            if core.state.group_named(name) is not None:
                return
            if to is None and seq is None and id is None and time is None:
                to = "beginning"
            with core.compacting.stepping:
                core.compacting.look_again()
                target = self._target(to=to, seq=seq, id=id, time=time)
                core.record([decide_create_group(core.state, name, target)])

    def delete_group(self, name: str) -> None:
        """Forget a group and everything about it."""
        core = self._core
        if name == MAIN_GROUP_NAME:
            raise InvalidInput("the group 'main' cannot be deleted")
        with core.lock, core.change:
            core.record([Event(EventType.GROUP_DELETED, group=core.group(name).number)])

    def compact(
        self,
        on_progress: Callable[[CompactionResult], None] | None = None,
        *,
        seals: bool = False,
    ) -> CompactionResult:
        """Free the disk space of messages that every group is done with, past retention.

        The newest segment stays for replay and history, unless `seals` is set.
        """
        return self._core.compacting.compact(on_progress, seals=seals)


def _at_or_before_ns(time: float) -> int:
    """Return nanoseconds. A float is exact to 238 ns only: a message's own time must find it."""
    if isinstance(time, int):
        return time * NS
    numerator, denominator = math.nextafter(time, 0).as_integer_ratio()  # exact, unlike a product
    return numerator * NS // denominator
