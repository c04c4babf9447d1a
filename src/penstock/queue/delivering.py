"""Delivering: choosing what goes next, leasing it, or taking it at once."""

import secrets
from array import array
from collections.abc import Sequence

from penstock.checking import Duration, check_seconds, check_whole
from penstock.errors import EntryGone, PayloadUnreadable
from penstock.model import NS, LeasedMessage, Message, Settler, Ticket
from penstock.queue.core import QueueCore
from penstock.queue.events import Cause, Event, EventType, as_written
from penstock.queue.group import Group
from penstock.queue.messages import NO_BYTE_LIMIT, size_of
from penstock.queue.order import in_order
from penstock.queue.runs import as_runs
from penstock.queue.settings import MAX_LEASE_S, MIN_LEASE_S

MAX_LEASE_COUNT = 10_000


class Delivering:
    """The delivering side of a queue."""

    def __init__(self, core: QueueCore, settler: Settler, nonces: "Nonces") -> None:
        self._core = core
        self.settler = settler
        self._nonces = nonces

    # -- the two ways out --------------------------------------------------------------------------

    def lease(
        self,
        count: int,
        lease_s: Duration | None,
        group_name: str,
        holder: str,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> list[LeasedMessage]:
        """Lease up to `count` ready messages, now: at least one, and no more than fit into
        `max_bytes` (see `size_of`). The rest stays ready."""
        core = self._core
        length_ns = self.length_ns(lease_s)
        holder = as_written("holder", holder)
        check_count(count)
        with core.lock, core.change:
            now_ns = core.tick()
            group = core.group(group_name)
            if core.state.paused:
                return []
            chosen, events = self._choose(group, count, now_ns, max_bytes)
            if not chosen:
                return []
            nonce = self._nonces.next()
            deadline_ns = now_ns + length_ns
            by_attempt = _by_attempt(group, [message.seq for message in chosen])
            tickets = {
                attempt: Ticket(
                    core.identity,
                    group.number,
                    group.name,
                    attempt,
                    nonce,
                    deadline_ns,
                    self.settler,
                )
                for attempt in by_attempt
            }
            leased = _handed_out(chosen, by_attempt, tickets)
            events += [
                Event(
                    EventType.LEASED,
                    group=group.number,
                    attempt=attempt,
                    runs=tuple(as_runs(seqs)),
                    nonce=nonce,
                    deadline_ns=deadline_ns,
                    length_ns=length_ns,
                    holder=holder,
                )
                for attempt, seqs in by_attempt.items()
            ]
            core.record(events)
            self._count(chosen, now_ns)
            return leased

    def take(self, count: int, group_name: str) -> list[Message]:
        """Take up to so many ready messages for good: delivered and settled in one event."""
        core = self._core
        check_count(count)
        with core.lock, core.change:
            now_ns = core.tick()
            group = core.group(group_name)
            if core.state.paused:
                return []
            chosen, events = self._choose(group, count, now_ns)
            if not chosen:
                return []
            runs = tuple(as_runs([message.seq for message in chosen]))
            core.record([*events, Event(EventType.TAKEN, group=group.number, attempt=1, runs=runs)])
            self._count(chosen, now_ns)
            core.metrics.acked += len(chosen)
            return chosen

    def _count(self, chosen: Sequence[Message], now_ns: int) -> None:
        metrics = self._core.metrics
        metrics.leased += len(chosen)
        if chosen:
            metrics.wait.add(now_ns - chosen[0].published_ns, len(chosen))

    def nonce(self) -> int:
        """A number that nobody can guess."""
        return self._nonces.next()

    def length_ns(self, lease_s: Duration | None) -> int:
        """How long a lease is to last, checked."""
        if lease_s is None:
            lease_s = self._core.settings.lease_s
        return round(check_seconds("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S) * NS)

    # -- choosing ----------------------------------------------------------------------------------

    def _choose(
        self, group: Group, count: int, now_ns: int, max_bytes: int = NO_BYTE_LIMIT
    ) -> tuple[list[Message], list[Event]]:
        """The next messages, and what was found out on the way: expired, lost, unreadable."""
        core = self._core
        if not group.special:
            plain = self._choose_plain(group, count, max_bytes)
            if plain is not None:
                return plain, []
        chosen, events = self._choose_any(group, count, now_ns, max_bytes)
        while events and not chosen:
            # Only such as cannot be delivered; with them gone, the next of their keys may be.
            core.record(events)
            group.promote(now_ns)
            chosen, events = self._choose_any(group, count, now_ns, max_bytes)
        return chosen, events

    def _choose_any(
        self, group: Group, count: int, now_ns: int, max_bytes: int
    ) -> tuple[list[Message], list[Event]]:
        core = self._core
        chosen: list[Message] = []
        expired: list[int] = []
        events: list[Event] = []
        size = 0
        for seq in in_order(core, group, now_ns):
            try:
                entry = core.reader.get(seq)
            except EntryGone as error:
                events.append(_about(EventType.LOST, group, [seq], reason=str(error)))
                continue
            if 0 < entry.expires_at_ns <= now_ns:
                expired.append(seq)
                continue
            if chosen and size + entry.size > max_bytes:
                break  # before it is unpacked, where the bytes in the log alone are too many
            try:
                message = core.message(entry)
            except PayloadUnreadable as error:
                event = _about(EventType.DEAD, group, [seq], reason=str(error))
                events.append(event._replace(cause=Cause.UNREADABLE))
                continue
            if max_bytes != NO_BYTE_LIMIT:
                size += size_of(message)
                if chosen and size > max_bytes:
                    break
            chosen.append(message)
            if len(chosen) == count:
                break
        if expired:
            events.append(_about(EventType.EXPIRED, group, expired))
        return chosen, events

    def _choose_plain(self, group: Group, count: int, max_bytes: int) -> list[Message] | None:
        """The short way where nothing but plain messages wait: the next run of them, whole.

        None where it must be looked at one by one, because something may be expired or unreadable,
        or because the run alone is less than was asked for.
        """
        first, end = group.plain.first_run(count)
        if end - first < min(count, len(group.plain)):
            return None
        return self._core.messages.get_run(first, end - first, max_bytes)


class Nonces:
    """Unguessable numbers, fetched from the system many at a time."""

    def __init__(self) -> None:
        self._pool = array("Q")

    def next(self) -> int:
        if not self._pool:
            self._pool.frombytes(secrets.token_bytes(4096))
        return self._pool.pop()


def _by_attempt(group: Group, seqs: list[int]) -> dict[int, list[int]]:
    """The messages by which delivery of theirs this is; mostly, all are at their first."""
    flights = group.flights
    if not flights or flights.keys().isdisjoint(seqs):
        return {1: seqs}
    by_attempt: dict[int, list[int]] = {}
    for seq in seqs:
        attempt = flights[seq].attempt + 1 if seq in flights else 1
        by_attempt.setdefault(attempt, []).append(seq)
    return by_attempt


def _handed_out(
    chosen: list[Message], by_attempt: dict[int, list[int]], tickets: dict[int, Ticket]
) -> list[LeasedMessage]:
    new = tuple.__new__
    if len(tickets) == 1:
        (ticket,) = tickets.values()
        return [new(LeasedMessage, (message, ticket)) for message in chosen]
    ticket_of = {seq: tickets[attempt] for attempt, seqs in by_attempt.items() for seq in seqs}
    return [new(LeasedMessage, (message, ticket_of[message.seq])) for message in chosen]


def _about(kind: EventType, group: Group, seqs: list[int], reason: str = "") -> Event:
    reason = as_written("reason", reason)
    return Event(kind, group=group.number, runs=tuple(as_runs(seqs)), reason=reason)


def check_count(count: int) -> None:
    """How many messages may be asked for at once."""
    check_whole("n", count, 1, MAX_LEASE_COUNT)
