"""The fast path: dequeue, lease and ack of one plain message.

These calls are most of a queue's work. The general behaviours make about a hundred function calls
for each, most of which find nothing to do. Here all conditions are checked at once: only plain
messages are ready, nothing is due, no lease has ended. If any condition fails, the fast path does
not apply and the caller uses the general behaviours.

The event is the same as from `events.encode`. The state changes as `Group.apply` changes it:
`lease_plain` and `ack_plain` are the functions that `apply` calls, and `take` repeats `take_plain`
in line. tests/queue/test_fast_path.py compares every field of random states.

Callables are taken into locals before the call, which is faster than calling an attribute.
"""

import struct

from penstock.errors import PenstockError
from penstock.model import MAIN_GROUP_NAME, NS, LeasedMessage, Message, Settler, Ticket
from penstock.queue.core import QueueCore
from penstock.queue.delivering import Nonces
from penstock.queue.events import MAIN_GROUP, EventType, format_of_one

_pack_one = struct.Struct(format_of_one(EventType.ACKED)).pack
_pack_lease = struct.Struct(format_of_one(EventType.LEASED)).pack  # without holder
_LEASED, _TAKEN, _ACKED = int(EventType.LEASED), int(EventType.TAKEN), int(EventType.ACKED)
_new = tuple.__new__
# Latency is measured for two neighbours of 64 events: a lease and its ack, whichever is even.
_NOT_MEASURED, _STANDS_FOR = 62, 32


class FastPath:
    """Deliver one plain message of group `main`, or ack one message of any group."""

    def __init__(self, core: QueueCore, settler: Settler, nonces: Nonces) -> None:
        self._core = core
        self._settler = settler
        # Calling them takes half as long as `with`. They are called within `try`, because an
        # interrupt may come right after the call.
        self._acquire, self._release = core.lock.acquire, core.lock.release
        self._next_nonce = nonces.next
        self._metrics, self._messages = core.metrics, core.messages
        self._events = core.ledger.events
        self._length_ns = round(core.settings.lease_s * NS)
        self._discards_dead = core.settings.dead_retention_s > 0

    def take(self) -> Message | None:
        """Take a message. Return None if there is none, or if the fast path does not apply."""
        core, acquire, release = self._core, self._acquire, self._release
        try:
            acquire()
            if core.torn:
                return None
            group, ahead = core.main, self._messages.ahead
            waiting = group.waiting
            if (group.leases or waiting.scheduled) and not group.is_quiet(*core.clock.read()):
                return None
            if waiting.special or core.state.paused or (self._discards_dead and group.dead):
                return None
            plain = waiting.plain
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
        """Lease a message for the queue's `lease_s`. Return None as `take` does."""
        core, acquire, release = self._core, self._acquire, self._release
        try:
            acquire()
            if core.torn:
                return None
            group, ahead = core.main, self._messages.ahead
            now_ns, mono_ns = core.clock.read()
            if not group.is_quiet(now_ns, mono_ns):
                return None
            waiting = group.waiting
            if waiting.special or core.state.paused or (self._discards_dead and group.dead):
                return None
            message = ahead.pop() if ahead else self._next()
            if message is None:
                return None
            seq = message[1]
            if seq != waiting.plain.first:  # it was read ahead for another order
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
        """Ack a message. Return False if the fast path does not apply."""
        message, (identity, number, _, attempt, nonce, _, _) = leased
        return self.ack_receipt(identity, number, attempt, message[1], nonce)

    def ack_receipt(self, identity: int, number: int, attempt: int, seq: int, nonce: int) -> bool:
        """Ack by the fields of a receipt."""
        core, acquire, release = self._core, self._acquire, self._release
        try:
            acquire()
            if core.torn:
                return False
            group = core.state.groups.get(number)
            if group is None or identity != core.identity or seq in group.deliveries:
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
        """Read the next message of group `main`. Return None if it is not a plain one."""
        core = self._core
        plain = core.main.waiting.plain
        seq = plain.first
        if seq is None:
            core.catch_up()  # feed messages that were published without the lock
            seq = plain.first
        return None if seq is None else self._messages.get(seq)
