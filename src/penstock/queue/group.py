"""One consumer group: the messages that it has, and how one of them is moved.

A group changes in two ways only: by `group_feeding` (a message was published) and by `group_events`
(an event happened). Both are called with what the logs hold, live and at recovery alike. Every
decision of a caller is an event. Pure: no file, no clock, no lock.

    group_feeding      a message was published
    group_events       which function applies which event
    group_leases       leased, taken, extended, released
    group_outcomes     acked, failed, dead
    group_removals     redriven, removed, purged, sought
    group_after        messages that come after others
"""

from itertools import islice

from penstock.queue.delivery import Delivery, Lease, LeaseEnds, State
from penstock.queue.dependencies import Dependencies, Gone
from penstock.queue.events import Event, EventType
from penstock.queue.fair_share import FairShare
from penstock.queue.keyed import Keyed
from penstock.queue.limits import NO_LIMIT, Gate, Limits
from penstock.queue.progress import ProgressTable
from penstock.queue.schedule import Delays, Timetable
from penstock.queue.waiting import Waiting


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
        self.moment = moment
        self.gone = Gone()
        self.limits = limits
        # What limits count; None if nothing is limited.
        self.gate = Gate(limits.queue) if limits is not None else None
        self.fair = FairShare(limits) if limits is not None and limits.has_tenants else None
        self.empty()

    def empty(self) -> None:
        """Forget every message."""
        self.deliveries: dict[int, Delivery] = {}
        self.waiting = Waiting(self.deliveries, self.fair)
        self.leases: dict[int, Lease] = {}
        self.lease_ends = LeaseEnds(self.leases)
        self.dead: dict[int, Delivery] = {}  # oldest death first
        self.dead_bytes = 0  # of dead letters whose size is known
        self.retrying = 0  # messages that failed and are neither settled nor dead
        self.keyed = Keyed(self.waiting, self.deliveries, self.leases)
        # When messages with keys expire: all that wait, and leased ones whose time has not come.
        self.expiries = Timetable()
        self.progress = ProgressTable()
        self.blocked = 0
        self.set_dependencies(Dependencies())

    def set_dependencies(self, dependencies: Dependencies) -> None:
        """Use these dependencies, which others may be left of."""
        self.dependencies = dependencies
        self.dependents = dependencies.dependents  # looked at by each ack

    # -- counts ------------------------------------------------------------------------------------

    @property
    def has_keys(self) -> bool:
        """Return whether any unsettled message has a key."""
        return bool(self.keyed.order.seqs)

    @property
    def parked(self) -> int:
        """Return the number of messages that wait for another of their key."""
        return self.keyed.parked

    @property
    def may_free_others(self) -> bool:
        """Return whether messages wait for others or for a limit, so that an ack may make one
        due."""
        return bool(self.keyed.order.seqs or self.dependencies.waits or self.gate is not None)

    def key_backlogs(self, most: int) -> tuple[int, list[tuple[int, bytes, int]]]:
        """Return how many keys there are, and of `most` of them: the number of unsettled messages,
        the key, and the first message."""
        keys = self.keyed.order.seqs
        return len(keys), [(len(seqs), key, seqs[0]) for key, seqs in islice(keys.items(), most)]

    @property
    def undelivered(self) -> int:
        """Return the number of messages that are neither done nor dead."""
        waiting = self.waiting
        return waiting.ready + waiting.scheduled + self.parked + self.blocked + len(self.leases)

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
        return self.keyed.order.ahead(self.deliveries[seq].key or b"", seq)

    # -- limits ------------------------------------------------------------------------------------

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

    # -- after a fold ------------------------------------------------------------------------------

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
                self.keyed.order.join(delivery.key, seq)
            if delivery.expires_at_ns and not delivery.cause:
                self.expiries.add(delivery.expires_at_ns, seq)
        for seq, delivery in parked:
            if self.keyed.order.join(delivery.key or b"", seq):
                raise ValueError(f"message {seq} is parked, and no other is before it")
        self.keyed.parked = len(parked)
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

    # -- leases ------------------------------------------------------------------------------------

    def new_lease(self, event: Event, priority: int) -> Lease:
        lease = Lease(
            attempt=event.attempt,
            nonce=event.nonce,
            deadline_ns=event.deadline_ns,
            length_ns=event.length_ns,
            ends_mono_ns=self.moment.mono_ns + event.length_ns,
            holder=event.holder,
            priority=priority,
            seqs=[],
        )
        self.lease_ends.add(lease)
        return lease

    def count_lease(self, seq: int, priority: int, at_ns: int) -> None:
        """Count a lease for the limits."""
        assert self.gate is not None
        self.gate.delivered(at_ns)
        self.gate.in_flight += 1
        if self.fair is not None:
            self.fair.delivered(seq, priority, at_ns, is_leased=True)

    def end_lease(self, seq: int) -> Lease | None:
        """Take a message from its lease. Return None if it is not leased."""
        lease = self.leases.pop(seq, None)
        if lease is not None and self.gate is not None:
            delivery = self.deliveries.get(seq)
            if delivery is None or not delivery.cause:  # leases of dead letters do not count
                self.gate.in_flight -= 1
                if self.fair is not None:
                    self.fair.ended(seq)
        return lease

    # -- moving one message ------------------------------------------------------------------------

    def enter(self, seq: int, delivery: Delivery) -> None:
        """Let a message wait for its delivery that waits for nothing else."""
        if delivery.key is not None:
            self.keyed.join(seq, delivery, delivery.key)
            self.keyed.keep_order(delivery)
        else:
            self.waiting.schedule(seq, delivery, delivery.due_ns)

    def watch_expiry(self, seq: int, delivery: Delivery) -> None:
        """Note when a message that waits again expires."""
        expires_at_ns = delivery.expires_at_ns
        if expires_at_ns:
            self.expiries.remove(expires_at_ns, seq)  # still there if its time has not come
            self.expiries.add(expires_at_ns, seq)

    def finish(self, seq: int) -> None:
        """Forget a message that is done. The next of its key may be delivered."""
        delivery = self.forget(seq)
        if delivery is not None and delivery.state is State.BLOCKED:
            self.blocked -= 1
        if self.dead:
            self.leave_dead(seq)
        if delivery is not None and delivery.state is not State.DEAD:
            self.keyed.leave(seq, delivery)

    def forget(self, seq: int) -> Delivery | None:
        """Forget what is known about a message, except that it is dead or of a key."""
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

    def join_dead(self, seq: int, delivery: Delivery) -> None:
        """Make it the newest dead letter."""
        delivery.state = State.DEAD
        self.dead[seq] = delivery
        self.dead_bytes += delivery.size_bytes
        if delivery.expires_at_ns:
            self.expiries.remove(delivery.expires_at_ns, seq)

    def leave_dead(self, seq: int) -> Delivery | None:
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
