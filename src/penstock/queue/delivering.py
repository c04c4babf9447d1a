"""Delivering: choosing what goes next, leasing it, or taking it at once."""

import heapq
import secrets
from array import array
from collections.abc import Iterator, Sequence

from penstock.checking import check_number, check_whole
from penstock.codec.layout import MAX_PRIORITY
from penstock.errors import EntryGone, PayloadUnreadable
from penstock.model import NS, LeasedMessage, Message, Settler, Ticket
from penstock.queue.core import QueueCore
from penstock.queue.events import Cause, Event, EventType
from penstock.queue.group import Group
from penstock.queue.messages import to_message
from penstock.queue.runs import as_runs
from penstock.queue.settings import MAX_LEASE_S, MIN_LEASE_S

MAX_LEASE_COUNT = 10_000


class Delivering:
    """The delivering side of a queue."""

    def __init__(self, core: QueueCore, settler: Settler) -> None:
        self._core = core
        self._settler = settler
        self._nonces = _Nonces()

    # -- the two ways out --------------------------------------------------------------------------

    def lease(self, count: int, lease_s: float | None, group_name: str, holder: str) -> list[LeasedMessage]:
        """Lease up to so many ready messages, now."""
        core = self._core
        length_ns = self._length_ns(lease_s)
        _check_count(count)
        with core.lock:
            now_ns = core.tick()
            group = core.group(group_name)
            if core.state.paused:
                return []
            chosen, events = self._choose(group, count, now_ns)
            if not chosen:
                if events:
                    core.record(events)
                return []
            nonce = self._nonces.next()
            deadline_ns = now_ns + length_ns
            tickets: dict[int, Ticket] = {}
            by_attempt: dict[int, list[int]] = {}
            leased = []
            flights = group.flights
            for message in chosen:
                seq = message.seq
                attempt = flights[seq].attempt + 1 if seq in flights else 1
                ticket = tickets.get(attempt)
                if ticket is None:
                    ticket = tickets[attempt] = Ticket(
                        core.identity,
                        group.number,
                        group.name,
                        attempt,
                        nonce,
                        deadline_ns,
                        self._settler,
                    )
                    by_attempt[attempt] = []
                by_attempt[attempt].append(seq)
                leased.append(tuple.__new__(LeasedMessage, (message, ticket)))
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
        _check_count(count)
        with core.lock:
            now_ns = core.tick()
            group = core.group(group_name)
            if core.state.paused:
                return []
            chosen, events = self._choose(group, count, now_ns)
            if chosen:
                runs = tuple(as_runs([message.seq for message in chosen]))
                events.append(Event(EventType.TAKEN, group=group.number, attempt=1, runs=runs))
            if events:
                core.record(events)
            self._count(chosen, now_ns)
            core.metrics.acked += len(chosen)
            return chosen

    def _count(self, chosen: Sequence[Message], now_ns: int) -> None:
        metrics = self._core.metrics
        metrics.leased += len(chosen)
        if chosen:
            metrics.wait.add(now_ns - chosen[0].published_ns, len(chosen))

    def _length_ns(self, lease_s: float | None) -> int:
        if lease_s is None:
            lease_s = self._core.settings.lease_s
        return round(check_number("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S) * NS)

    # -- choosing ----------------------------------------------------------------------------------

    def _choose(
        self, group: Group, count: int, now_ns: int
    ) -> tuple[list[Message], list[Event]]:
        """The next messages, and what was found out on the way: expired, lost, unreadable."""
        core = self._core
        if not group.special:
            plain = self._choose_plain(group, count)
            if plain is not None:
                return plain, []
        chosen: list[Message] = []
        expired: list[int] = []
        events: list[Event] = []
        for seq in self._in_order(group, now_ns):
            try:
                entry = core.reader.get(seq)
            except EntryGone as error:
                events.append(_about(EventType.LOST, group, [seq], reason=str(error)))
                continue
            if 0 < entry.expires_at_ns <= now_ns:
                expired.append(seq)
                continue
            try:
                chosen.append(core.message(entry))
            except PayloadUnreadable as error:
                event = _about(EventType.DEAD, group, [seq], reason=str(error))
                events.append(event._replace(cause=Cause.UNREADABLE))
                continue
            if len(chosen) == count:
                break
        if expired:
            events.append(_about(EventType.EXPIRED, group, expired))
        return chosen, events

    def _choose_plain(self, group: Group, count: int) -> list[Message] | None:
        """The short way where nothing but plain messages wait: the next run of them, whole.

        None where it must be looked at one by one, because something may be expired or unreadable.
        """
        first, end = group.plain.first_run(count)
        if first == end:
            return []
        try:
            entries = self._core.reader.get_run(first, end - first)
            if any([entry.expires_at_ns or entry.compression for entry in entries]):
                return None
            identity = self._core.identity
            return [to_message(entry, identity, 0) for entry in entries]
        except EntryGone:
            return None

    def _in_order(self, group: Group, now_ns: int) -> Iterator[int]:
        core = self._core
        lanes = [priority for priority, lane in enumerate(group.lanes) if len(lane)]
        if len(lanes) > 1:
            if not core.settings.starvation_after_s:
                return group.candidates(reversed(lanes), core.published_ns)
            return self._aged(group, lanes, now_ns)
        return group.candidates(lanes, core.published_ns)

    def _aged(self, group: Group, lanes: Sequence[int], now_ns: int) -> Iterator[int]:
        """As `candidates`, but what has waited long is served as of a higher priority."""
        core = self._core
        level_ns = round(core.settings.starvation_after_s * NS)
        heads: list[tuple[tuple[int, int, int], int, Iterator[int]]] = []

        def take_head(priority: int, seqs: Iterator[int]) -> None:
            seq = next(seqs, None)
            if seq is not None:
                since_ns = self._waiting_since(group, seq)
                level = min(priority + max(now_ns - since_ns, 0) // level_ns, MAX_PRIORITY)
                heapq.heappush(heads, ((-level, since_ns, -priority), seq, seqs))

        for priority in lanes:
            take_head(priority, group.lanes[priority].in_order(core.published_ns))
        while heads:
            (_, _, negative), seq, seqs = heapq.heappop(heads)
            yield seq
            take_head(-negative, seqs)

    def _waiting_since(self, group: Group, seq: int) -> int:
        flight = group.flights.get(seq)
        return self._core.due_ns(seq) if flight is None else flight.due_ns


class _Nonces:
    """Unguessable numbers, fetched from the system many at a time."""

    def __init__(self) -> None:
        self._pool = array("Q")

    def next(self) -> int:
        if not self._pool:
            self._pool.frombytes(secrets.token_bytes(4096))
        return self._pool.pop()


def _about(kind: EventType, group: Group, seqs: list[int], reason: str = "") -> Event:
    return Event(kind, group=group.number, runs=tuple(as_runs(seqs)), reason=reason)


def _check_count(count: int) -> None:
    check_whole("n", count, 1, MAX_LEASE_COUNT)
