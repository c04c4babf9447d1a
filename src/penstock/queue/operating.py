"""Operating a queue: seek, cancel, purge, pause, redrive, groups, compaction."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from penstock.checking import Time, check_time, check_whole
from penstock.codec import Entry
from penstock.errors import InvalidInput, NoSuchMessage, QueueError
from penstock.ledger import seq_at_time
from penstock.ledger.compaction import CompactionResult
from penstock.model import MAIN_GROUP_NAME, NS
from penstock.names import check_name
from penstock.queue.compacting import Compacting
from penstock.queue.core import QueueCore
from penstock.queue.events import ALL_GROUPS, Event, EventType
from penstock.queue.flight import State
from penstock.queue.group import Group
from penstock.queue.inspecting import Inspecting
from penstock.queue.runs import as_runs

MAX_GROUPS = 1000


class Operating:
    """The operator's side of a queue."""

    def __init__(self, core: QueueCore, inspecting: Inspecting) -> None:
        self._core = core
        self._inspecting = inspecting
        self._compacting = Compacting(core)

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
        """Deliver from there on (again): the seq it came down to."""
        core = self._core
        with core.lock, core.change:
            core.tick()
            group = core.group(group_name)
            with self._compacting.stepping:
                self._compacting.look_again()
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
        """Take a message out, in every group; False if it is done in all of them already."""
        core = self._core
        entry = self._inspecting.entry(id_)
        with core.lock, core.change:
            core.tick()
            if not any(self._is_live(group, entry) for group in core.state.groups.values()):
                return False
            core.record([Event(EventType.CANCELLED, group=ALL_GROUPS, runs=((entry.seq, 1),))])
            return True

    def _is_live(self, group: Group, entry: Entry) -> bool:
        now_ns = self._core.clock.now_ns()
        state = group.state_of(entry.seq, now_ns)
        return state is not State.DONE

    def purge(self, group_name: str | None) -> int:
        """Throw away all that waits (not what is leased or dead); how many that were."""
        core = self._core
        with core.lock, core.change:
            core.tick()
            groups = core.state.groups.values() if group_name is None else [core.group(group_name)]
            before = sum(group.totals[EventType.PURGED] for group in groups)
            number = ALL_GROUPS if group_name is None else core.group(group_name).number
            target = core.ledger.messages.next_seq
            core.record([Event(EventType.PURGED, group=number, target_seq=target)])
            return sum(group.totals[EventType.PURGED] for group in groups) - before

    def cancel_deliverable(self, group_name: str, limit: int) -> int:
        """Cancel up to `limit` messages that are ready, parked or leased. Return how many.

        Scheduled messages and dead letters stay, leased dead letters too.
        """
        core = self._core
        with core.lock, core.change:
            core.tick()
            group = core.group(group_name)
            seqs = list(islice(_deliverable(group), limit))
            if seqs:
                runs = tuple(as_runs(seqs))
                core.record([Event(EventType.CANCELLED, group=group.number, runs=runs)])
            return len(seqs)

    def pause(self, paused: bool) -> None:
        """Stop handing out, or go on. Publishing and settling are not affected."""
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
        """Redrive or discard dead letters: those named, those that match, or all; how many.

        `dry_run`: only tell how many it would be.
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
            seqs = self._dead_seqs(group, ids, reason, since_s, until_s)[:limit]
            if seqs and not dry_run:
                core.record([Event(kind, group=group.number, runs=tuple(as_runs(seqs)))])
            return len(seqs)

    def _dead_seqs(
        self,
        group: Group,
        ids: Iterable[str] | None,
        reason: str | None,
        since: float | None,
        until: float | None,
    ) -> list[int]:
        if ids is None:
            wanted = list(group.dead)
        else:
            wanted = list(dict.fromkeys(self._inspecting.entry(id_).seq for id_ in ids))
            missing = [seq for seq in wanted if seq not in group.dead]
            if missing:
                raise NoSuchMessage(f"message {missing[0]} is not a dead letter of {group.name!r}")
        found = []
        for seq in wanted:
            flight = group.dead[seq]
            at = flight.last_failure_ns / NS
            if reason is not None and reason not in flight.reason:
                continue
            if (since is not None and at < since) or (until is not None and at >= until):
                continue
            found.append(seq)
        return found

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
        """Make a group that starts there; nothing happens if it exists."""
        core = self._core
        check_name("group", name)
        with core.lock, core.change:
            core.tick()
            if core.state.group_named(name) is not None:
                return
            if len(core.state.groups) >= MAX_GROUPS:
                raise QueueError(f"a queue has at most {MAX_GROUPS} groups; delete some")
            if to is None and seq is None and id is None and time is None:
                to = "beginning"
            number = core.state.next_group
            if number >= ALL_GROUPS:  # after 65,000 of them: one that is free again
                number = next(n for n in range(1, ALL_GROUPS) if n not in core.state.groups)
            with self._compacting.stepping:
                self._compacting.look_again()
                target = self._target(to=to, seq=seq, id=id, time=time)
                core.record(
                    [Event(EventType.GROUP_CREATED, group=number, target_seq=target, name=name)]
                )

    def delete_group(self, name: str) -> None:
        """Forget a group and everything about it."""
        core = self._core
        if name == MAIN_GROUP_NAME:
            raise InvalidInput("the group 'main' cannot be deleted")
        with core.lock, core.change:
            group = core.group(name)
            core.record([Event(EventType.GROUP_DELETED, group=group.number)])

    def compact(
        self,
        on_progress: Callable[[CompactionResult], None] | None = None,
        *,
        seals: bool = False,
    ) -> CompactionResult:
        """Give back the disk space of messages that every group is done with, past retention.

        What was done with last stays for replay and history, unless `seals` asks for all of it.
        """
        return self._compacting.compact(on_progress, seals=seals)


def _at_or_before_ns(time: float) -> int:
    """In nanoseconds. A float is exact to 238 ns only: one taken from a message must find it."""
    if isinstance(time, int):
        return time * NS
    numerator, denominator = math.nextafter(time, 0).as_integer_ratio()  # exact, unlike a product
    return numerator * NS // denominator


def _deliverable(group: Group) -> Iterator[int]:
    """The seqs that are leased, parked or ready; not those of leased dead letters."""
    for seq in group.leases:
        flight = group.flights.get(seq)
        if flight is None or not flight.cause:
            yield seq
    yield from (seq for seq, flight in group.flights.items() if flight.state is State.PARKED)
    for lane in group.lanes:
        yield from lane.fresh
        yield from (seq for _, seq in lane.due)
