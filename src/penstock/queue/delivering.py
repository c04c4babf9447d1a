"""Delivering: lease messages or dead letters, or take messages without a lease."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from penstock.checking import Duration, check_seconds, check_whole
from penstock.ledger import read_entry
from penstock.model import MAIN_GROUP_NAME, NS, LeasedMessage, Message, Settler, Ticket
from penstock.queue.core import QueueCore
from penstock.queue.decisions import about, by_attempt, choose, choose_dead, decide_lease
from penstock.queue.delivery import State
from penstock.queue.events import Event, EventType, as_written
from penstock.queue.fast_path import FastPath, Nonces
from penstock.queue.group import Group
from penstock.queue.inspecting import Inspecting
from penstock.queue.messages import NO_BYTE_LIMIT
from penstock.queue.runs import as_runs, in_given_order
from penstock.queue.settings import MAX_LEASE_S, MIN_LEASE_S

MAX_LEASE_COUNT = 10_000
ONE = 1  # `n is ONE` is false for True and 1.0, which are no counts
_LEASABLE = frozenset({State.READY, State.SCHEDULED})
_expires_at_ns = itemgetter(Message._fields.index("expires_at_ns"))


class Delivering:
    """The delivering side of a queue."""

    def __init__(
        self,
        core: QueueCore,
        inspecting: Inspecting,
        settler: Settler,
        nonces: Nonces,
        fast_path: FastPath,
    ) -> None:
        self._core = core
        self._fast_path = fast_path
        self._inspecting = inspecting
        self._settler = settler
        self._nonces = nonces

    def lease(
        self,
        count: int,
        lease_s: Duration | None,
        group_name: str,
        holder: str,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> list[LeasedMessage]:
        """Lease up to `count` ready messages: at least one, and not more than `max_bytes`."""
        core = self._core
        if count is ONE and lease_s is None and holder == "" and group_name is not MAIN_GROUP_NAME:
            one = self._fast_path.lease(group_name)  # of `main`, the caller has tried it
            if one is not None:
                return [one]
        length_ns, holder = self._checked(count, lease_s, holder)
        if count == 1 and (holder or lease_s is not None):
            one = self._fast_path.lease(group_name, length_ns, holder)
            if one is not None:
                return [one]
        with core.lock, core.change:
            now_ns = core.tick()
            group = core.group(group_name)
            if core.state.paused:
                return []
            chosen, events = self._choose(group, count, now_ns, max_bytes)
            if not chosen:
                return []
            leased = self._lease(EventType.LEASED, group, chosen, events, now_ns, length_ns, holder)
            self._count(chosen, now_ns)
            return leased

    def lease_dead(
        self,
        count: int,
        lease_s: Duration | None,
        group_name: str,
        holder: str,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> list[LeasedMessage]:
        """Lease up to `count` dead letters, oldest death first, within `max_bytes` as above.

        A dead letter keeps its id and place in the log. An ack settles it for good. A nack, a
        release or the end of the lease makes it dead again, at once.
        """
        core = self._core
        length_ns, holder = self._checked(count, lease_s, holder)
        with core.lock, core.change:
            now_ns = core.tick()
            group = core.group(group_name)
            chosen = choose_dead(
                group, self._inspecting.dead_letter, count=count, max_bytes=max_bytes
            )
            if not chosen:
                return []
            return self._lease(EventType.DEAD_LEASED, group, chosen, [], now_ns, length_ns, holder)

    def lease_seq(
        self, seq: int, lease_s: Duration | None, group_name: str, holder: str
    ) -> list[LeasedMessage]:
        """Lease one message that is ready, scheduled or dead. Return nothing for any other, or if
        a limit holds it back.

        A nack makes a scheduled one ready, or due when it says. A release restores its due time.
        """
        core = self._core
        length_ns, holder = self._checked(ONE, lease_s, holder)
        with core.lock, core.change:
            now_ns = core.tick()
            group = core.group(group_name)
            delivery = group.dead.get(seq)
            if delivery is not None:
                letter = self._inspecting.dead_letter(seq, delivery)
                if letter is None:
                    return []
                kind, chosen, events = EventType.DEAD_LEASED, [letter.message], list[Event]()
            else:
                is_leasable = group.state_of(seq, now_ns) in _LEASABLE
                if not is_leasable or not group.may_deliver(seq, now_ns):
                    return []
                kind = EventType.LEASED
                chosen, events = choose(
                    group,
                    [seq],
                    partial(read_entry, core.ledger.messages),
                    core.message,
                    count=1,
                    now_ns=now_ns,
                    skipped=set(),
                )
            if not chosen:
                core.record(events)
                return []
            leased = self._lease(kind, group, chosen, events, now_ns, length_ns, holder)
            self._count(chosen, now_ns)
            return leased

    def take(self, count: int, group_name: str) -> list[Message]:
        """Take up to `count` ready messages: lease and ack in one event."""
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
            seqs = [message.seq for message in chosen]
            taken = about(EventType.TAKEN, group, seqs, attempt=1)
            if group.fair is not None:
                taken = taken._replace(runs=tuple(in_given_order(seqs)))
            core.record([taken, *events])  # in this order, as in `_lease`
            self._count(chosen, now_ns)
            core.metrics.acked += len(chosen)
            return chosen

    def _checked(self, count: int, lease_s: Duration | None, holder: str) -> tuple[int, str]:
        """Check the arguments of a lease. Return its length and holder."""
        check_count(count)
        return lease_length_ns(lease_s, self._core.settings.lease_s), as_written("holder", holder)

    def _lease(
        self,
        kind: EventType,
        group: Group,
        chosen: list[Message],
        events: list[Event],
        now_ns: int,
        length_ns: int,
        holder: str,
    ) -> list[LeasedMessage]:
        """Record a lease, then other events. Caller holds the lock.

        The lease is first: the end of another message may let go one that is earlier in a key than
        a chosen message, and would displace it if that was not leased yet.
        """
        core, nonce = self._core, self._nonces.next()
        attempts = by_attempt(group, [message.seq for message in chosen])
        if group.fair is None:
            parts = [(attempt, as_runs(seqs)) for attempt, seqs in attempts.items()]
        else:  # the order in which tenants are served is on record
            parts = in_parts_by_attempt(chosen, attempts)
        tickets = {
            attempt: Ticket(
                core.identity,
                group.number,
                group.name,
                attempt,
                nonce,
                now_ns + length_ns,
                self._settler,
            )
            for attempt in attempts
        }
        leased = _with_tickets(chosen, attempts, tickets)
        leases = decide_lease(
            kind, group, parts, nonce=nonce, now_ns=now_ns, length_ns=length_ns, holder=holder
        )
        core.record([*leases, *events])
        return leased

    def _count(self, chosen: Sequence[Message], now_ns: int) -> None:
        metrics = self._core.metrics
        metrics.leased += len(chosen)
        metrics.wait.add(now_ns - chosen[0].published_ns, len(chosen))

    def _choose(
        self, group: Group, count: int, now_ns: int, max_bytes: int = NO_BYTE_LIMIT
    ) -> tuple[list[Message], list[Event]]:
        """Choose the next messages. Return also the events of undeliverable ones."""
        core = self._core
        count = min(count, group.room(now_ns))
        if not count:
            return [], []
        if not group.waiting.special:
            plain = self._choose_plain(group, count, now_ns, max_bytes)
            if plain is not None:
                return plain, []
        while True:
            skipped: set[int] = set()
            chosen, events = choose(
                group,
                core.in_order(group, now_ns, skipped),
                core.reader.get,
                core.message,
                count=count,
                now_ns=now_ns,
                skipped=skipped,
                max_bytes=max_bytes,
            )
            if chosen or not events:
                return chosen, events
            # Only undeliverable messages were found. Without them, the next of their keys may go.
            core.record(events)
            group.waiting.promote(now_ns)

    def _choose_plain(
        self, group: Group, count: int, now_ns: int, max_bytes: int
    ) -> list[Message] | None:
        """Return the next run of plain messages, if only plain messages are ready.

        Return None if they must be looked at one by one: a message may be expired or unreadable,
        or the first run is shorter than `count`.
        """
        plain = group.waiting.plain
        first, end = plain.first_run(count)
        if end - first < min(count, len(plain)):
            return None
        found = self._core.messages.get_run(first, end - first, max_bytes)
        may_expire = found and any(map(_expires_at_ns, found))
        if may_expire and any(0 < one.expires_at_ns <= now_ns for one in found or ()):
            return None
        return found


def _with_tickets(
    chosen: list[Message], attempts: dict[int, list[int]], tickets: dict[int, Ticket]
) -> list[LeasedMessage]:
    new = tuple.__new__
    if len(tickets) == 1:
        (ticket,) = tickets.values()
        return [new(LeasedMessage, (message, ticket)) for message in chosen]
    ticket_of = {seq: tickets[attempt] for attempt, seqs in attempts.items() for seq in seqs}
    return [new(LeasedMessage, (message, ticket_of[message.seq])) for message in chosen]


def in_parts_by_attempt(
    chosen: list[Message], attempts: dict[int, list[int]]
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return (attempt, runs) of messages in their order."""
    attempt_of = {seq: attempt for attempt, seqs in attempts.items() for seq in seqs}
    found = groupby((message.seq for message in chosen), attempt_of.__getitem__)
    return [(attempt, in_given_order(seqs)) for attempt, seqs in found]


def lease_length_ns(lease_s: Duration | None, default_s: float) -> int:
    """Check and return the length of a lease."""
    if lease_s is None:
        lease_s = default_s
    return round(check_lease_s(lease_s) * NS)


def check_lease_s(lease_s: Duration) -> float:
    """Check the length of a lease. Return it in seconds."""
    return check_seconds("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S)


def check_count(count: int) -> None:
    """Check the number of messages that one call asks for."""
    check_whole("n", count, 1, MAX_LEASE_COUNT)
