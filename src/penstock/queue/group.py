"""One consumer group: what each event changes about its messages.

A group changes in two ways only: `feed…` (a message was published) and `apply` (an event happened).
Both are called with what the logs hold, live and at recovery alike. Every decision of a caller is
an event. Pure: no file, no clock, no lock.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from penstock.codec.layout import DEFAULT_PRIORITY
from penstock.codec.notes_py import Note
from penstock.errors import InvalidInput
from penstock.model import Message
from penstock.queue.after import After, id_bytes, unpack_after
from penstock.queue.attributes import AFTER, TENANT
from penstock.queue.delivery import Delivery, Lease, LeaseEnds, State
from penstock.queue.dependencies import HOW, Dependencies, Failure, Gone
from penstock.queue.events import MAIN_GROUP, Cause, Event, EventType, Outcome
from penstock.queue.fair_share import FairShare
from penstock.queue.key_order import KeyOrder
from penstock.queue.limits import NO_LIMIT, Gate, Limits
from penstock.queue.progress import ProgressTable
from penstock.queue.schedule import Delays, Timetable
from penstock.queue.waiting import Waiting

_LEASED, _TAKEN, _ACKED = EventType.LEASED, EventType.TAKEN, EventType.ACKED
_STATE_READY, _STATE_LEASED = State.READY, State.LEASED
_ID_LENGTH = 26


class Moment:
    """The time of the monotonic clock, set by the caller before each change."""

    __slots__ = ("mono_ns",)

    def __init__(self) -> None:
        self.mono_ns = 0


class Group:
    """The fold of one group's messages and events."""

    def __init__(
        self,
        number: int,
        name: str,
        start_seq: int,
        moment: Moment,
        limits: Limits | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.fed_upto = start_seq  # messages below it were fed, or are not this group's
        self.totals = [0] * (max(EventType) + 1)  # by type of event; a list is fastest
        self._moment = moment
        self.gone = Gone()
        self.limits = limits
        # What limits count; None if nothing is limited.
        self.gate = Gate(limits.queue) if limits is not None else None
        self.fair = FairShare(limits) if limits is not None and limits.has_tenants else None
        self._empty()

    def _empty(self) -> None:
        """Forget every message."""
        self.deliveries: dict[int, Delivery] = {}
        self.waiting = Waiting(self.deliveries, self.fair)
        self.leases: dict[int, Lease] = {}
        self.lease_ends = LeaseEnds(self.leases)
        self.dead: dict[int, Delivery] = {}  # oldest death first
        self.dead_bytes = 0  # of dead letters whose size is known
        self.retrying = 0  # messages that failed and are neither settled nor dead
        self.parked = 0
        self._keys = KeyOrder()
        # When messages with keys expire: all that wait, and leased ones whose time has not come.
        self.expiries = Timetable()
        self.progress = ProgressTable()
        self.blocked = 0
        self._set_dependencies(Dependencies())

    def _set_dependencies(self, dependencies: Dependencies) -> None:
        self.dependencies = dependencies
        self.dependents = dependencies.dependents  # looked at by each ack

    # -- counts ------------------------------------------------------------------------------------

    @property
    def has_keys(self) -> bool:
        """Return whether any unsettled message has a key."""
        return bool(self._keys.seqs)

    @property
    def may_free_others(self) -> bool:
        """Return whether messages wait for others or for a limit, so that an ack may make one
        due."""
        return bool(self._keys.seqs or self.dependencies.waits or self.gate is not None)

    def key_backlogs(self, most: int) -> tuple[int, list[tuple[int, bytes, int]]]:
        """Return how many keys there are, and of `most` of them: the number of unsettled messages,
        the key, and the first message."""
        keys = self._keys.seqs
        return len(keys), [(len(seqs), key, seqs[0]) for key, seqs in islice(keys.items(), most)]

    @property
    def undelivered(self) -> int:
        """Return the number of messages that are neither done nor dead."""
        waiting = self.waiting
        return waiting.ready + waiting.scheduled + self.parked + self.blocked + len(self.leases)

    # -- publishing --------------------------------------------------------------------------------

    def feed_plain(self, first: int, end: int) -> None:
        """Add messages [first, end) of the default priority, due at once, without key."""
        self.waiting.add_plain(first, end)
        self.fed_upto = end

    def feed(
        self,
        seq: int,
        *,
        priority: int,
        published_ns: int,
        deliver_at_ns: int,
        key: bytes | None,
        expires_at_ns: int = 0,
        attributes: Mapping[int, bytes] | None = None,
    ) -> None:
        """Add any other message."""
        due_ns = deliver_at_ns if deliver_at_ns > published_ns else 0
        self.fed_upto = seq + 1
        if self.fair is not None and attributes is not None:
            self.fair.join(seq, attributes.get(TENANT))
        if attributes is not None and AFTER in attributes and self.number == MAIN_GROUP:
            delivery = self.deliveries[seq] = Delivery(_STATE_READY, priority, due_ns, key)
            if expires_at_ns:
                delivery.expires_at_ns = expires_at_ns
                self.expiries.add(expires_at_ns, seq)
            self._feed_after(seq, delivery, attributes[AFTER], published_ns)
            return
        if key is not None:
            delivery = self.deliveries[seq] = Delivery(_STATE_READY, priority, due_ns, key)
            if expires_at_ns:
                delivery.expires_at_ns = expires_at_ns
                self.expiries.add(expires_at_ns, seq)
            if not self._keys.join(key, seq):
                self.waiting.park(seq, delivery)
                self.parked += 1
            elif due_ns:
                self.waiting.schedule(seq, delivery, due_ns)
            else:
                self.waiting.add_fresh(priority, seq, is_new=True)
        elif due_ns:
            self.waiting.add_delayed(seq, due_ns, priority)
        else:
            self.waiting.add_fresh(priority, seq, is_new=True)

    def feed_noted(self, first: int, end: int, noted: Sequence[Note]) -> None:
        """Add messages [first, end): those that were noted, and plain ones between them."""
        waiting = self.waiting
        # No order to keep, so by priority.
        together = not waiting.upcoming.seqs and self.fair is None
        fresh: list[list[int]] = [[] for _ in waiting.lanes]
        for seq, published_ns, priority, deliver_at_ns, key, attributes, expires_at_ns in noted:
            if seq < first:
                continue
            if seq > first:
                waiting.add_plain(first, seq)
            first = seq + 1
            is_after = attributes is not None and AFTER in attributes
            if is_after and together:  # it may come after some of those that were put off
                self._add_put_off(fresh)
            if key is not None or deliver_at_ns > published_ns or is_after or self.fair is not None:
                self.feed(
                    seq,
                    priority=priority,
                    published_ns=published_ns,
                    deliver_at_ns=deliver_at_ns,
                    key=key,
                    expires_at_ns=expires_at_ns,
                    attributes=attributes,
                )
            elif together and priority != DEFAULT_PRIORITY:
                fresh[priority].append(seq)
            else:
                waiting.add_fresh(priority, seq, is_new=True)
        self._add_put_off(fresh)
        if first < end:
            waiting.add_plain(first, end)
        self.fed_upto = end

    def _add_put_off(self, fresh: list[list[int]]) -> None:
        for priority, seqs in enumerate(fresh):
            if seqs:
                self.waiting.add_all_fresh(priority, seqs)
                seqs.clear()

    # -- time --------------------------------------------------------------------------------------

    def is_quiet(self, now_ns: int, mono_ns: int) -> bool:
        """Return whether no message is due, no lease has ended, and no key is held too long."""
        ends = self.lease_ends.heap
        return (
            self.waiting.timetable.next_ns > now_ns
            and self.expiries.next_ns > now_ns
            and (not ends or ends[0][0] > mono_ns)
        )

    def expired_keyed(self, now_ns: int) -> list[int]:
        """Return the messages with keys that wait and have expired.

        A leased one is kept for its consumer. It is looked at again if it waits again.
        """
        waiting: list[tuple[int, int]] = []
        leased: list[tuple[int, int]] = []
        for pair in self.expiries:
            if pair[0] > now_ns:
                break
            (leased if pair[1] in self.leases else waiting).append(pair)
        for pair in leased:
            self.expiries.remove(*pair)
        return [seq for _, seq in waiting]

    # -- looking -----------------------------------------------------------------------------------

    def state_of(self, seq: int, now_ns: int) -> State:
        if seq in self.leases:
            return State.LEASED
        delivery = self.deliveries.get(seq)
        if delivery is None:
            return self.waiting.state_of(seq, now_ns)
        ready_by_now = delivery.state is State.SCHEDULED and delivery.due_ns <= now_ns
        return State.READY if ready_by_now else delivery.state

    def room(self, now_ns: int) -> int:
        """Return how many messages the limits of the queue let go now."""
        return NO_LIMIT if self.gate is None else self.gate.room(now_ns)

    def may_deliver(self, seq: int, now_ns: int) -> bool:
        """Return whether the limits let a message go now."""
        return (self.gate is None or self.gate.is_open(now_ns)) and (
            self.fair is None or self.fair.tenant_of(seq).gate.is_open(now_ns)
        )

    def next_free_ns(self, now_ns: int) -> int | None:
        """Return when a rate lets the next message go, if one waits for that."""
        if self.gate is None or not self.waiting.ready:
            return None
        free_ns = self.gate.free_ns(now_ns)
        if free_ns > now_ns:
            return free_ns
        return None if self.fair is None else self.fair.next_free_ns(now_ns)

    def attempts_of(self, seq: int) -> int:
        """Return the number of deliveries of a message so far."""
        held = self.leases.get(seq) or self.deliveries.get(seq)
        return held.attempt if held else 0

    def is_settled(self, seq: int) -> bool:
        """Return whether a message is neither waiting nor leased nor dead."""
        if seq in self.leases or seq in self.deliveries:
            return False
        return self.waiting.state_of(seq, 0) is State.DONE

    @property
    def lowest_unsettled(self) -> int:
        """Return the lowest seq that is not settled; `fed_upto` if there is none."""
        firsts = (first for first, _ in self.waiting.fresh_pairs())
        others = (self.leases, self.deliveries, self.waiting.delays)
        lowest = (min(one, default=self.fed_upto) for one in (*others, firsts))
        return min(lowest)

    def ahead_of(self, seq: int) -> list[int]:
        """Return the messages of the same key that are delivered before a parked one."""
        return self._keys.ahead(self.deliveries[seq].key or b"", seq)

    def restore(self, delays: Delays) -> None:
        """Fill in what follows from the runs, deliveries and leases of a snapshot."""
        self.waiting.restore(delays)
        parked = []
        for seq, delivery in sorted(self.deliveries.items()):
            if delivery.state is State.PARKED:
                parked.append((seq, delivery))
            elif delivery.state is State.BLOCKED:
                self.blocked += 1
            elif delivery.key is not None and not delivery.cause:
                self._keys.join(delivery.key, seq)
            if delivery.expires_at_ns and not delivery.cause:
                self.expiries.add(delivery.expires_at_ns, seq)
        for seq, delivery in parked:
            if self._keys.join(delivery.key or b"", seq):
                raise ValueError(f"message {seq} is parked, and no other is before it")
        self.parked = len(parked)
        self.retrying = sum(delivery.is_retried for delivery in self.deliveries.values())

    def share(self) -> None:
        """After `restore`, when tenants are known: share what is ready between them."""
        if self.fair is not None:
            self.waiting.share(self.fair)

    def rebase(self, now_ns: int, mono_ns: int) -> None:
        """After a fold: set when each lease ends on this monotonic clock, and count for limits."""
        self.lease_ends.rebase(now_ns, mono_ns)
        if self.gate is None:
            return
        deliveries = self.deliveries
        leased = [s for s in self.leases if s not in deliveries or not deliveries[s].cause]
        self.gate.rebase(now_ns)
        self.gate.in_flight = len(leased)
        if self.fair is not None:
            self.fair.rebase(now_ns, leased)

    # -- events ------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Change the group by an event. There is no other way."""
        self.waiting.promote(event.timestamp_ns)
        _HANDLERS[event.type](self, event)

    def _leased(self, event: Event) -> None:
        if len(event.runs) == 1 and event.attempt == 1:
            first, run = event.runs[0]
            if self.waiting.plain.holds(first, first + run):
                self.lease_plain(
                    first,
                    first + run,
                    event.nonce,
                    event.deadline_ns,
                    event.length_ns,
                    event.holder,
                )
                return
        shared: dict[int, Lease] = {}
        for seq in event.seqs:
            priority = self._take_to_lease(seq, event.attempt, event.nonce)
            if priority is not None:
                if priority not in shared:
                    shared[priority] = self._new_lease(event, priority)
                shared[priority].seqs.append(seq)
                self.leases[seq] = shared[priority]
                self.totals[_LEASED] += 1
                if self.gate is not None:
                    self._count_lease(seq, priority, event.deadline_ns - event.length_ns)

    def _count_lease(self, seq: int, priority: int, at_ns: int) -> None:
        """Count a lease for the limits."""
        assert self.gate is not None
        self.gate.delivered(at_ns)
        self.gate.in_flight += 1
        if self.fair is not None:
            self.fair.delivered(seq, priority, at_ns, is_leased=True)

    def _end_lease(self, seq: int) -> Lease | None:
        """Take a message from its lease. Return None if it is not leased."""
        lease = self.leases.pop(seq, None)
        if lease is not None and self.gate is not None:
            delivery = self.deliveries.get(seq)
            if delivery is None or not delivery.cause:  # leases of dead letters do not count
                self.gate.in_flight -= 1
                if self.fair is not None:
                    self.fair.ended(seq)
        return lease

    def lease_one(
        self,
        message: Message,
        delivery: Delivery | None,
        attempt: int,
        nonce: int,
        deadline_ns: int,
        length_ns: int,
        holder: str,
    ) -> None:
        """Apply a LEASED event about one ready message of any kind."""
        seq, priority, waiting = message[1], message[3], self.waiting
        if delivery is not None:
            waiting.take_delivery(seq, delivery)
            delivery.state = _STATE_LEASED
            delivery.attempt, delivery.nonce, delivery.timed_out = attempt, nonce, False
        elif not message[5] or not (delay := waiting.take_delayed(seq)):
            waiting.take_fresh(seq, priority)
        else:
            delivery = self.deliveries[seq] = Delivery(_STATE_LEASED, priority, delay[0])
            delivery.attempt, delivery.nonce = attempt, nonce
        ends_mono_ns = self._moment.mono_ns + length_ns
        lease = Lease(attempt, nonce, deadline_ns, length_ns, ends_mono_ns, holder, priority, [seq])
        self.lease_ends.add(lease)
        self.leases[seq] = lease
        self.totals[_LEASED] += 1
        if self.gate is not None:
            self._count_lease(seq, priority, deadline_ns - length_ns)

    def _take_to_lease(self, seq: int, attempt: int, nonce: int) -> int | None:
        """Take a waiting message to lease it. Return its priority, or None if it does not wait."""
        waited = self.waiting.take(seq)
        if waited is None:
            return None
        priority, due_ns, was_fresh = waited
        if not was_fresh:
            delivery = self.deliveries.get(seq)
            if delivery is None:
                delivery = self.deliveries[seq] = Delivery(_STATE_LEASED, priority, due_ns)
            delivery.state = _STATE_LEASED
            delivery.attempt, delivery.nonce, delivery.timed_out = attempt, nonce, False
        return priority

    def _dead_leased(self, event: Event) -> None:
        for seq in event.seqs:
            delivery = self._leave_dead(seq)
            if delivery is None:
                continue
            delivery.state = State.LEASED
            delivery.attempt, delivery.nonce, delivery.timed_out = event.attempt, event.nonce, False
            lease = self._new_lease(event, delivery.priority)
            lease.seqs.append(seq)
            self.leases[seq] = lease
            self.totals[EventType.DEAD_LEASED] += 1

    def lease_plain(
        self, first: int, end: int, nonce: int, deadline_ns: int, length_ns: int, holder: str
    ) -> None:
        """Apply a LEASED event about a run of plain messages."""
        self.waiting.take_plain(first, end)
        seqs = [first] if end == first + 1 else list(range(first, end))
        ends_mono_ns = self._moment.mono_ns + length_ns
        lease = Lease(
            1, nonce, deadline_ns, length_ns, ends_mono_ns, holder, DEFAULT_PRIORITY, seqs
        )
        self.lease_ends.add(lease)
        for seq in seqs:
            self.leases[seq] = lease
        if self.deliveries:  # it may have keys
            for seq in seqs:
                delivery = self.deliveries.get(seq)
                if delivery is not None:
                    delivery.state = _STATE_LEASED
                    delivery.attempt, delivery.nonce = 1, nonce
        self.totals[_LEASED] += end - first
        if self.gate is not None:
            for seq in seqs:
                self._count_lease(seq, DEFAULT_PRIORITY, deadline_ns - length_ns)

    def lease_next(
        self, seq: int, nonce: int, deadline_ns: int, length_ns: int, holder: str
    ) -> None:
        """Do as `lease_plain` for the first plain message, in fewer steps.

        `upcoming` must be empty.
        """
        plain, end = self.waiting.plain, seq + 1
        if end < plain.front_end:
            plain.first = end
        else:
            plain.discard(seq, end)
        ends_mono_ns = self._moment.mono_ns + length_ns
        lease = Lease(
            1, nonce, deadline_ns, length_ns, ends_mono_ns, holder, DEFAULT_PRIORITY, [seq]
        )
        self.lease_ends.add(lease)
        self.leases[seq] = lease
        if self.deliveries:  # it may have a key
            delivery = self.deliveries.get(seq)
            if delivery is not None:
                delivery.state = _STATE_LEASED
                delivery.attempt, delivery.nonce = 1, nonce
        self.totals[_LEASED] += 1
        if self.gate is not None:
            self._count_lease(seq, DEFAULT_PRIORITY, deadline_ns - length_ns)

    def _new_lease(self, event: Event, priority: int) -> Lease:
        lease = Lease(
            attempt=event.attempt,
            nonce=event.nonce,
            deadline_ns=event.deadline_ns,
            length_ns=event.length_ns,
            ends_mono_ns=self._moment.mono_ns + event.length_ns,
            holder=event.holder,
            priority=priority,
            seqs=[],
        )
        self.lease_ends.add(lease)
        return lease

    def _taken(self, event: Event) -> None:
        done = 0
        for first, count in event.runs:
            if self.waiting.plain.holds(first, first + count):
                self.take_plain(first, first + count)
                if self.gate is not None:
                    for _ in range(count):
                        self.gate.delivered(event.timestamp_ns)
                continue
            for seq in range(first, first + count):
                waited = self.waiting.take(seq)
                if waited is not None:
                    if self.gate is not None:
                        self.gate.delivered(event.timestamp_ns)
                    if self.fair is not None:
                        at_ns = event.timestamp_ns
                        self.fair.delivered(seq, waited[0], at_ns, is_leased=False)
                    self._finish(seq)
                    done += 1
        self.totals[EventType.TAKEN] += done
        if self.dependents:
            self.free_after(event.seqs, event.timestamp_ns)

    def take_plain(self, first: int, end: int) -> None:
        """Apply a TAKEN event about a run of plain messages."""
        self.waiting.take_plain(first, end)
        if self.deliveries:  # it may have keys
            for seq in range(first, end):
                if seq in self.deliveries:
                    self._finish(seq)
        self.totals[_TAKEN] += end - first

    def ack_one(self, seq: int) -> None:
        """Apply an ACKED event about one leased message."""
        lease, ends = self.leases[seq], self.lease_ends.heap
        if self.gate is None:
            del self.leases[seq]
        else:
            self._end_lease(seq)
            if self.fair is not None:
                self.fair.leave(seq)
        if ends and ends[-1][2] is lease and len(lease.seqs) == 1:
            ends.pop()  # it was the newest; the last item can be taken off a heap
        self.totals[_ACKED] += 1
        delivery = self.deliveries.pop(seq, None)
        if delivery is None:
            return
        if delivery.first_failure_ns:
            self.retrying -= delivery.is_retried
            if delivery.cause:
                self.dependencies.waits.pop(seq, None)
        if delivery.expires_at_ns:
            self.expiries.remove(delivery.expires_at_ns, seq)
        if delivery.key is not None:
            following = self._keys.leave(delivery.key, seq)
            if following is not None:
                self._unpark(following)

    def _acked(self, event: Event) -> None:
        leases, deliveries = self.leases, self.deliveries
        if len(event.runs) == 1 and event.runs[0][1] == 1:
            seq = event.runs[0][0]
            if seq in leases:
                self.ack_one(seq)
                if self.dependents:
                    self.free_after(event.seqs, event.timestamp_ns)
                return
        done = 0
        for seq in event.seqs:
            if self._end_lease(seq) is not None:
                done += 1
                if seq in deliveries:
                    self._finish(seq)
                elif self.fair is not None:
                    self.fair.leave(seq)
            elif self.waiting.take(seq) is not None or seq in self.dead:
                # A late ack: the lease ran out, and the message was not leased since. At recovery
                # also an ack with follow-up messages, before its lease was replayed.
                done += 1
                self._finish(seq)
            elif seq in deliveries and deliveries[seq].state is State.PARKED:  # late as well
                done += 1
                self._leave_key(seq, deliveries[seq])
                self._forget(seq)
            elif seq in deliveries and deliveries[seq].state is State.BLOCKED:
                done += 1
                self._finish(seq)
        self.totals[EventType.ACKED] += done
        if self.dependents:
            self.free_after(event.seqs, event.timestamp_ns)

    def _nacked(self, event: Event) -> None:
        self._failed(event, event.reason, timed_out=False)

    def _timed_out(self, event: Event) -> None:
        self._failed(event, "lease ran out", timed_out=True)

    def _failed(self, event: Event, reason: str, *, timed_out: bool) -> None:
        for seq in event.seqs:
            lease = self._end_lease(seq)
            if lease is None:
                continue
            delivery = self._note_failure(seq, lease, event, reason)
            delivery.timed_out = timed_out
            self.waiting.schedule(seq, delivery, event.retry_at_ns)
            self._watch_expiry(seq, delivery)
            self._keep_key_order(delivery)
            self.totals[event.type] += 1

    def _note_failure(self, seq: int, lease: Lease, event: Event, reason: str) -> Delivery:
        delivery = self.deliveries.get(seq)
        if delivery is None:
            delivery = self.deliveries[seq] = Delivery(State.LEASED, lease.priority, 0)
        delivery.attempt, delivery.nonce = lease.attempt, lease.nonce
        was_retried = delivery.is_retried
        delivery.first_failure_ns = delivery.first_failure_ns or event.timestamp_ns
        self.retrying += delivery.is_retried - was_retried
        delivery.last_failure_ns = event.timestamp_ns
        delivery.reason = reason
        return delivery

    def _died(self, event: Event) -> None:
        for seq in event.seqs:
            lease = self._end_lease(seq)
            if lease is None:
                priority = self._take_to_die(seq)
                if priority is None:
                    continue
                lease = self._new_lease(event, priority)
            delivery = self._note_failure(seq, lease, event, event.reason)
            self.retrying -= delivery.is_retried
            if not delivery.cause:  # else it was a dead letter already, and leased as one
                self.totals[EventType.DEAD] += 1
                if seq in self.dependents:
                    self.dependencies.died(seq)
            delivery.cause = event.cause
            delivery.timed_out = event.cause == Cause.TIMEOUT
            if event.cause == Cause.DEPENDENCY and seq in self.dependencies.waits:
                self.dependencies.waits[seq].failure = None  # the event has the reason
            self._join_dead(seq, delivery)
            self._leave_key(seq, delivery)

    def _take_to_die(self, seq: int) -> int | None:
        """Take a waiting or blocked message. Return its priority, or None if it is neither."""
        waited = self.waiting.take(seq)
        if waited is not None:
            return waited[0]
        delivery = self.deliveries.get(seq)
        if delivery is None or delivery.state is not State.BLOCKED:
            return None
        self.blocked -= 1
        return delivery.priority

    def _extended(self, event: Event) -> None:
        for seq in event.seqs:
            lease = self.leases.get(seq)
            if lease is None:
                continue
            longer = self._new_lease(event, lease.priority)
            longer.attempt, longer.nonce, longer.holder = lease.attempt, lease.nonce, lease.holder
            longer.seqs.append(seq)
            self.leases[seq] = longer
            self.totals[event.type] += 1

    def _progressed(self, event: Event) -> None:
        self._extended(event)
        for seq in event.seqs:
            if seq in self.leases:
                self.progress.note(seq, event, self.leases)

    def _released(self, event: Event) -> None:
        for seq in event.seqs:
            lease = self._end_lease(seq)
            if lease is None:
                continue
            delivery = self.deliveries.get(seq)
            if delivery is None:
                self.waiting.add_fresh(lease.priority, seq, is_new=False)
            elif delivery.cause:
                delivery.attempt, delivery.nonce = lease.attempt - 1, 0
                self._join_dead(seq, delivery)
                if delivery.cause == Cause.DEPENDENCY:  # that one may have been redriven
                    self.dependencies.touched.add(seq)
            else:
                delivery.attempt = lease.attempt - 1  # this delivery does not count
                delivery.nonce = 0
                self.waiting.schedule(seq, delivery, delivery.due_ns)
                self._watch_expiry(seq, delivery)
                self._keep_key_order(delivery)
            self.totals[EventType.RELEASED] += 1

    def _redriven(self, event: Event) -> None:
        for seq in event.seqs:
            delivery = self._leave_dead(seq)
            if delivery is None:
                continue
            fresh = Delivery(State.READY, delivery.priority, event.timestamp_ns, delivery.key)
            fresh.expires_at_ns = delivery.expires_at_ns
            self.deliveries[seq] = fresh
            self._watch_expiry(seq, fresh)
            self.totals[EventType.REDRIVEN] += 1
            if seq in self.dependents:
                self.dependencies.redriven(seq)
            if not self._blocks_again(seq, fresh):
                self._enter(seq, fresh)

    def _removed(self, event: Event) -> None:
        """Apply an event that ends a message in any state: expired, cancelled, dropped …"""
        for seq in event.seqs:
            if (
                self._end_lease(seq) is None
                and self.waiting.take(seq) is None
                and seq not in self.deliveries
            ):
                continue
            self._finish(seq)
            self.totals[event.type] += 1
            if self.number == MAIN_GROUP:
                self._note_gone(seq, event)

    def _purged(self, event: Event) -> None:
        target = event.target_seq
        # Parked and blocked messages first: they are freed when those before them are removed.
        parked = [
            seq
            for seq, one in self.deliveries.items()
            if seq < target and one.state in (State.PARKED, State.BLOCKED)
        ]
        for seq in parked:
            delivery = self.deliveries[seq]
            self.blocked -= delivery.state is State.BLOCKED
            self._leave_key(seq, delivery)
            self._forget(seq)
        self.totals[EventType.PURGED] += len(parked)
        plain = self.waiting.fresh_pairs()
        count, others = self.waiting.take_below(target)
        for seq in others:
            self._finish(seq)
        self.totals[EventType.PURGED] += count + len(others)
        if self.number == MAIN_GROUP:
            for first, end in plain:
                if first < target:
                    self.gone.add(event.type, first, min(end, target))
            later = self.dependents.keys() & {*others, *parked}
            later |= {seq for seq in self.dependents if self.gone.how(seq)}
            for seq in (*others, *parked):
                self.gone.add(event.type, seq, seq + 1)
            for seq in sorted(later):
                self._note_gone(seq, event)

    def _sought(self, event: Event) -> None:
        """Deliver everything from the target on, again if need be, and nothing before it."""
        target = event.target_seq
        kept = {seq: delivery for seq, delivery in self.dead.items() if seq < target}
        for seq in self.leases:
            delivery = self.deliveries.get(seq)
            if (
                delivery is not None and delivery.cause and seq < target
            ):  # a dead letter, handed out
                delivery.state = State.DEAD
                kept[seq] = delivery
        dependencies = self.dependencies.keep(kept)
        self.gone.forget_from(target)
        if self.gate is not None:
            self.gate.in_flight = 0
        if self.fair is not None:
            self.fair.clear(kept)
        self._empty()
        self._set_dependencies(dependencies)
        self.deliveries.update(kept)
        self.dead = kept
        self.dead_bytes = sum(delivery.size_bytes for delivery in kept.values())
        self.fed_upto = target
        self.totals[EventType.SOUGHT] += 1

    # -- moving one message ------------------------------------------------------------------------

    def _finish(self, seq: int) -> None:
        """Forget a message that is done. The next of its key may be delivered."""
        delivery = self._forget(seq)
        if delivery is not None and delivery.state is State.BLOCKED:
            self.blocked -= 1
        if self.dead:
            self._leave_dead(seq)
        if delivery is not None and delivery.state is not State.DEAD:
            self._leave_key(seq, delivery)

    def _forget(self, seq: int) -> Delivery | None:
        delivery = self.deliveries.pop(seq, None)
        if self.fair is not None:
            self.fair.leave(seq)
        if delivery is not None:
            if delivery.first_failure_ns:
                self.retrying -= delivery.is_retried
            if delivery.expires_at_ns:
                self.expiries.remove(delivery.expires_at_ns, seq)
            if self.dependencies.waits:
                self.dependencies.waits.pop(seq, None)
        return delivery

    def _join_dead(self, seq: int, delivery: Delivery) -> None:
        """Make it the newest dead letter."""
        delivery.state = State.DEAD
        self.dead[seq] = delivery
        self.dead_bytes += delivery.size_bytes
        if delivery.expires_at_ns:
            self.expiries.remove(delivery.expires_at_ns, seq)

    def _leave_dead(self, seq: int) -> Delivery | None:
        """Remove a dead letter. Return None if it is not one."""
        delivery = self.dead.pop(seq, None)
        if delivery is not None:
            self.dead_bytes -= delivery.size_bytes
        return delivery

    def weigh_dead(self, seq: int, size_bytes: int) -> None:
        """Note the size of a dead letter, leased or not, for a bound by size."""
        delivery = self.deliveries.get(seq)
        if delivery is not None:
            self.dead_bytes += size_bytes - delivery.size_bytes if seq in self.dead else 0
            delivery.size_bytes = size_bytes

    # -- messages that come after others -----------------------------------------------------------

    def _feed_after(self, seq: int, delivery: Delivery, data: bytes, published_ns: int) -> None:
        try:
            after = unpack_after(data)
        except (ValueError, struct.error):  # only a damaged or foreign file has one
            after = After()
        unsettled: list[int] = []
        gone: list[Failure] = []
        for earlier in after.seqs(seq):
            if not self.is_settled(earlier):
                unsettled.append(earlier)
            elif how := self.gone.how(earlier):
                gone.append(Failure(earlier, how))
        dead = {one for one in unsettled if one in self.deliveries and self.deliveries[one].cause}
        waits = self.dependencies.add(
            seq, after, published_ns, unsettled=unsettled, dead=dead, gone=gone
        )
        if waits:
            self.waiting.block(seq, delivery)
            self.blocked += 1
        else:
            self._enter(seq, delivery)

    def _enter(self, seq: int, delivery: Delivery) -> None:
        """Let a message wait for its delivery that waits for nothing else."""
        if delivery.key is not None:
            self._join_key(seq, delivery, delivery.key)
            self._keep_key_order(delivery)
        else:
            self.waiting.schedule(seq, delivery, delivery.due_ns)

    def free_after(self, seqs: Iterable[int], at_ns: int) -> None:
        """Let go the messages that come after these, as far as these are done."""
        self.waiting.promote(at_ns)
        for seq in seqs:
            if seq in self.dependents and self.is_settled(seq):
                self._unblock(self.dependencies.done(seq), at_ns)

    def _unblock(self, seqs: Iterable[int], at_ns: int) -> None:
        """Let blocked messages wait for their delivery. Those that died stay dead for now."""
        for seq in seqs:
            delivery = self.deliveries[seq]
            if delivery.state is not State.BLOCKED:
                self.dependencies.touched.add(seq)
                continue
            wait = self.dependencies.waits.pop(seq)
            self.blocked -= 1
            # At recovery a message is fed before the events that came before it: as if it had never
            # been blocked.
            if at_ns > wait.published_ns and at_ns > delivery.due_ns:
                delivery.due_ns = at_ns
            self._enter(seq, delivery)

    def _blocks_again(self, seq: int, delivery: Delivery) -> bool:
        """Block a redriven message if it still waits for others. What is gone does not count."""
        wait = self.dependencies.waits.get(seq)
        if wait is None:
            return False
        wait.is_lost = False
        self.dependencies.touched.add(seq)
        if not wait.missing:
            del self.dependencies.waits[seq]
            return False
        self.waiting.block(seq, delivery)
        self.blocked += 1
        return True

    def _note_gone(self, seq: int, event: Event) -> None:
        """Note a message of the group that will never be done."""
        self.gone.add(event.type, seq, seq + 1)
        if seq in self.dependents:
            self._unblock(self.dependencies.gone(seq, HOW[event.type]), event.timestamp_ns)

    def _resolved(self, event: Event) -> None:
        """Note what became of a message of another queue, or that dead ones are ignored."""
        if event.cause == Outcome.IGNORED:
            blocked = [seq for seq in event.seqs if seq in self.dependencies.waits]
            self._unblock(blocked, event.timestamp_ns)
            return
        try:
            earlier, outcome = id_bytes(event.reason[:_ID_LENGTH]), Outcome(event.cause)
        except (InvalidInput, ValueError):
            return  # only a damaged log has one
        how = event.reason[_ID_LENGTH + 2 :] or outcome.name.lower()
        free = self.dependencies.resolved(earlier, event.seqs, outcome, how)
        self._unblock(free, event.timestamp_ns)

    # -- keys --------------------------------------------------------------------------------------

    def _watch_expiry(self, seq: int, delivery: Delivery) -> None:
        """Note when a message that waits again expires."""
        expires_at_ns = delivery.expires_at_ns
        if expires_at_ns:
            self.expiries.remove(expires_at_ns, seq)  # still there if its time has not come
            self.expiries.add(expires_at_ns, seq)

    def _join_key(self, seq: int, delivery: Delivery, key: bytes) -> None:
        """Wait until it is the first of its key, which may be now."""
        if self._keys.join(key, seq):
            self.waiting.schedule(seq, delivery, delivery.due_ns)
        else:
            self.waiting.park(seq, delivery)
            self.parked += 1

    def _leave_key(self, seq: int, delivery: Delivery) -> None:
        """Leave the key order, parked or not. The next of the key may be delivered."""
        if delivery.key is None:
            return
        self.parked -= delivery.state is State.PARKED
        following = self._keys.leave(delivery.key, seq)
        if following is not None:
            self._unpark(following)

    def _keep_key_order(self, delivery: Delivery) -> None:
        """If the first of a key is neither leased nor the lowest, let the lowest go first."""
        first = None if delivery.key is None else self._keys.first_behind(delivery.key)
        if first is None or first in self.leases:
            return
        assert delivery.key is not None
        self.waiting.take(first)
        following = self._keys.leave(delivery.key, first)
        assert following is not None
        self._join_key(first, self.deliveries[first], delivery.key)
        self._unpark(following)

    def _unpark(self, seq: int) -> None:
        self.parked -= 1
        self.waiting.unpark(seq, self.deliveries[seq])


_HANDLERS: dict[EventType, Callable[[Group, Event], None]] = {
    EventType.LEASED: Group._leased,
    EventType.TAKEN: Group._taken,
    EventType.ACKED: Group._acked,
    EventType.NACKED: Group._nacked,
    EventType.TIMED_OUT: Group._timed_out,
    EventType.DEAD: Group._died,
    EventType.DEAD_LEASED: Group._dead_leased,
    EventType.EXTENDED: Group._extended,
    EventType.PROGRESSED: Group._progressed,
    EventType.RELEASED: Group._released,
    EventType.REDRIVEN: Group._redriven,
    EventType.EXPIRED: Group._removed,
    EventType.CANCELLED: Group._removed,
    EventType.DISCARDED: Group._removed,
    EventType.DROPPED: Group._removed,
    EventType.LOST: Group._removed,
    EventType.PURGED: Group._purged,
    EventType.SOUGHT: Group._sought,
    EventType.RESOLVED: Group._resolved,
}
