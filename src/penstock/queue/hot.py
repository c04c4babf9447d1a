"""The short ways: dequeue, lease and ack of one plain message. The same record, the same change.

They are what a queue does most. Done by the general behaviours, each passes through some hundred
calls, most of which find nothing to do: no priorities, nothing due, no lease over, nothing expired,
one message in one run of one attempt. Here all that is asked for once, together; where any of it
is otherwise, the answer says so and the caller goes the general way. What is written is what
`events.encode` would write, and the group changes as its handlers change it.

What is called is taken into a local first: Python finds a callable in an attribute slowly where it
is called from there. And the event log's packer is tried here, without a call between.
"""

import struct

from penstock.codec.layout import EVENT_OF_ONE_FORMAT
from penstock.errors import PenstockError
from penstock.model import MAIN_GROUP_NAME, NS, LeasedMessage, Message, Settler, Ticket
from penstock.queue.core import QueueCore
from penstock.queue.delivering import Nonces
from penstock.queue.events import MAIN_GROUP, EventType

_pack_one = struct.Struct(EVENT_OF_ONE_FORMAT).pack
_pack_lease = struct.Struct("<HHHQIQQQH").pack  # and nonce, deadline, length, no holder
_LEASED, _TAKEN, _ACKED = int(EventType.LEASED), int(EventType.TAKEN), int(EventType.ACKED)
_new = tuple.__new__
# Latencies are measured of two neighbours in 64 events, so that both of a lease and its ack are,
# whichever of them has the even numbers; each stands for 32.
_NOT_MEASURED, _STANDS_FOR = 62, 32


class ShortWays:
    """One plain message of group `main` out, or one message of any group settled."""

    def __init__(self, core: QueueCore, settler: Settler, nonces: Nonces) -> None:
        self._core = core
        self._settler = settler
        # Called, not entered by `with`, which takes twice as long. Called within the `try`, as an
        # interrupt may come right after the call.
        self._acquire, self._release = core.lock.acquire, core.lock.release
        self._next_nonce = nonces.next
        self._metrics, self._messages = core.metrics, core.messages
        self._events = core.ledger.events
        self._length_ns = round(core.settings.lease_s * NS)
        self._discards_dead = core.settings.dead_retention_s > 0

    def take(self) -> Message | None:
        """A message, for good; None where the general way must be gone, or where there is none."""
        core, acquire, release = self._core, self._acquire, self._release
        try:
            acquire()
            if core.torn:
                return None
            group, ahead = core.main, self._messages.ahead
            if (group.leases or group.scheduled) and not group.is_quiet(*core.clock.read()):
                return None
            if group.special or core.state.paused or (self._discards_dead and group.dead):
                return None
            plain = group.plain
            message = ahead.pop() if ahead else self._next()
            if message is None:
                return None
            seq = message[1]
            if seq != plain.first:  # it was read ahead for another order
                message = self._next()
                if message is None:
                    return None
                seq = message[1]
            events, after = self._events, seq + 1
            now_ns = events.now_ns
            event_seq = events.fast_packer.append_event_of_one(_TAKEN, MAIN_GROUP, 1, seq, now_ns())
            if event_seq < 0:
                event_seq = events.append_event(_TAKEN, _pack_one(MAIN_GROUP, 1, 1, seq, 1))
            if after < plain.front_end:
                plain.first = after
            else:
                plain.discard(seq, after)
            group.totals[_TAKEN] += 1
            self._metrics.taken += 1
            if not event_seq & _NOT_MEASURED:
                waited_ns = core.clock.now_ns() - message.published_ns
                self._metrics.wait.add(waited_ns, _STANDS_FOR)
            if core.waiting_threads or core.listeners or event_seq >= core.snapshot_event:
                core.recorded()
            return message
        except PenstockError:
            raise
        except BaseException:  # an interrupt, perhaps in the middle of the change
            core.torn = True
            core.arrived()
            raise
        finally:
            try:
                release()
            except RuntimeError:
                pass  # interrupted while it waited for the lock

    def lease(self) -> LeasedMessage | None:
        """A message, for the queue's `lease_s`; None as above."""
        core, acquire, release = self._core, self._acquire, self._release
        try:
            acquire()
            if core.torn:
                return None
            group, ahead = core.main, self._messages.ahead
            now_ns, mono_ns = core.clock.read()
            if not group.is_quiet(now_ns, mono_ns):
                return None
            if group.special or core.state.paused or (self._discards_dead and group.dead):
                return None
            message = ahead.pop() if ahead else self._next()
            if message is None:
                return None
            seq = message[1]
            if seq != group.plain.first:  # it was read ahead for another order
                message = self._next()
                if message is None:
                    return None
                seq = message[1]
            next_nonce, length_ns = self._next_nonce, self._length_ns
            nonce = next_nonce()
            deadline_ns = now_ns + length_ns
            body = _pack_lease(MAIN_GROUP, 1, 1, seq, 1, nonce, deadline_ns, length_ns, 0)
            events = self._events
            event_seq = events.fast_packer.append_event(_LEASED, body, now_ns)
            if event_seq < 0:
                event_seq = events.append_event(_LEASED, body)
            core.state.moment.mono_ns = mono_ns
            group.lease_plain(seq, seq + 1, nonce, deadline_ns, length_ns, "")
            self._metrics.leased += 1
            if not event_seq & _NOT_MEASURED:
                self._metrics.wait.add(now_ns - message.published_ns, _STANDS_FOR)
            if core.waiting_threads or core.listeners or event_seq >= core.snapshot_event:
                core.recorded()
        except PenstockError:
            raise
        except BaseException:  # an interrupt, perhaps in the middle of the change
            core.torn = True
            core.arrived()
            raise
        finally:
            try:
                release()
            except RuntimeError:
                pass  # interrupted while it waited for the lock
        ticket = _new(
            Ticket,
            (core.identity, MAIN_GROUP, MAIN_GROUP_NAME, 1, nonce, deadline_ns, self._settler),
        )
        return _new(LeasedMessage, (message, ticket))

    def ack(self, leased: LeasedMessage) -> bool:
        """The work is done; False where the general way must be gone, and may say what is wrong."""
        message, (identity, number, _, attempt, nonce, _, _) = leased
        return self.ack_receipt(identity, number, attempt, message[1], nonce)

    def ack_receipt(self, identity: int, number: int, attempt: int, seq: int, nonce: int) -> bool:
        """The same by what a receipt says."""
        core, acquire, release = self._core, self._acquire, self._release
        try:
            acquire()
            if core.torn:
                return False
            group = core.state.groups.get(number)
            if group is None or identity != core.identity or seq in group.flights:
                return False
            lease = group.leases.get(seq)
            if lease is None or lease.nonce != nonce or lease.attempt != attempt:
                return False
            events = self._events
            now_ns = events.now_ns
            event_seq = events.fast_packer.append_event_of_one(
                _ACKED, number, attempt, seq, now_ns()
            )
            if event_seq < 0:
                event_seq = events.append_event(_ACKED, _pack_one(number, attempt, 1, seq, 1))
            group.ack_plain(seq)
            self._metrics.acked += 1
            if not event_seq & _NOT_MEASURED:
                worked_ns = core.clock.now_ns() - lease.deadline_ns + lease.length_ns
                self._metrics.work.add(max(worked_ns, 0), _STANDS_FOR)
            if core.waiting_threads or core.listeners or event_seq >= core.snapshot_event:
                core.recorded()
            return True
        except PenstockError:
            raise
        except BaseException:  # an interrupt, perhaps in the middle of the change
            core.torn = True
            core.arrived()
            raise
        finally:
            try:
                release()
            except RuntimeError:
                pass  # interrupted while it waited for the lock

    def _next(self) -> Message | None:
        """The next message of group `main`, if it is a plain one; was not read ahead."""
        core = self._core
        seq = core.main.plain.first
        if seq is None:
            core.catch_up()  # what was published since comes behind; it matters only now
            seq = core.main.plain.first
        return None if seq is None else self._messages.get(seq)
