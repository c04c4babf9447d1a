"""The short ways: dequeue, lease and ack of one plain message. The same record, the same change.

They are what a queue does most. Done by the general behaviours, each passes through some hundred
calls, most of which find nothing to do: no priorities, nothing due, no lease over, nothing expired,
one message in one run of one attempt. Here all that is asked for once, together; where any of it
is otherwise, the answer says so and the caller goes the general way. What is written is what
`events.encode` would write, and the group changes by the methods that its handlers call.
"""

import struct

from penstock.model import MAIN_GROUP_NAME, NS, LeasedMessage, Message, Settler, Ticket
from penstock.queue.core import QueueCore
from penstock.queue.delivering import Nonces
from penstock.queue.events import MAIN_GROUP, EventType

_pack_one = struct.Struct("<HHHQI").pack  # group, attempt, one run: seq, 1
_pack_lease = struct.Struct("<HHHQIQQQH").pack  # and nonce, deadline, length, no holder
_LEASED, _TAKEN, _ACKED = int(EventType.LEASED), int(EventType.TAKEN), int(EventType.ACKED)
_new = tuple.__new__
_SAMPLED = 63  # one latency in 64 is measured here


class ShortWays:
    """One plain message of group `main` out, or one message of any group settled."""

    def __init__(self, core: QueueCore, settler: Settler, nonces: Nonces) -> None:
        self._core = core
        self._settler = settler
        # Called, not entered by `with`, which takes twice as long.
        self._acquire, self._release = core.lock.acquire, core.lock.release
        self._next_nonce = nonces.next
        self._state, self._metrics, self._messages = core.state, core.metrics, core.messages
        self._main = core.state.groups[MAIN_GROUP]
        self._append_event = core.ledger.events.append_event
        self._length_ns = round(core.settings.lease_s * NS)
        self._discards_dead = core.settings.dead_retention_s > 0

    def take(self) -> Message | None:
        """A message, for good; None where the general way must be gone, or where there is none."""
        core = self._core
        self._acquire()
        try:
            group, ahead = self._main, self._messages.ahead
            if (group.leases or group.scheduled) and not group.is_quiet(*core.clock.read()):
                return None
            if group.special or self._state.paused or (self._discards_dead and group.dead):
                return None
            message = ahead.pop() if ahead and ahead[-1][1] == group.plain.first else self._next()
            if message is None:
                return None
            seq = message[1]
            event_seq = self._append_event(_TAKEN, _pack_one(MAIN_GROUP, 1, 1, seq, 1))
            group.take_plain(seq, seq + 1)
            metrics = self._metrics
            metrics.leased += 1
            metrics.acked += 1
            if not metrics.leased & _SAMPLED:
                metrics.wait.add(core.clock.now_ns() - message.published_ns, _SAMPLED + 1)
            if core.waiting_threads or core.listeners or event_seq >= core.snapshot_event:
                core.recorded()
            return message
        finally:
            self._release()

    def lease(self) -> LeasedMessage | None:
        """A message, for the queue's `lease_s`; None as above."""
        core = self._core
        self._acquire()
        try:
            group, ahead = self._main, self._messages.ahead
            now_ns, mono_ns = core.clock.read()
            if not group.is_quiet(now_ns, mono_ns):
                return None
            if group.special or self._state.paused or (self._discards_dead and group.dead):
                return None
            message = ahead.pop() if ahead and ahead[-1][1] == group.plain.first else self._next()
            if message is None:
                return None
            seq = message[1]
            nonce, length_ns = self._next_nonce(), self._length_ns
            deadline_ns = now_ns + length_ns
            body = _pack_lease(MAIN_GROUP, 1, 1, seq, 1, nonce, deadline_ns, length_ns, 0)
            event_seq = self._append_event(_LEASED, body)
            self._state.moment.mono_ns = mono_ns
            group.lease_plain(seq, seq + 1, nonce, deadline_ns, length_ns, "")
            metrics = self._metrics
            metrics.leased += 1
            if not metrics.leased & _SAMPLED:
                metrics.wait.add(now_ns - message.published_ns, _SAMPLED + 1)
            if core.waiting_threads or core.listeners or event_seq >= core.snapshot_event:
                core.recorded()
        finally:
            self._release()
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
        core = self._core
        self._acquire()
        try:
            group = self._state.groups.get(number)
            if group is None or identity != core.identity or seq in group.flights:
                return False
            lease = group.leases.get(seq)
            if lease is None or lease.nonce != nonce or lease.attempt != attempt:
                return False
            event_seq = self._append_event(_ACKED, _pack_one(number, attempt, 1, seq, 1))
            group.ack_plain(seq)
            metrics = self._metrics
            metrics.acked += 1
            if not metrics.acked & _SAMPLED:
                started_ns = lease.deadline_ns - lease.length_ns
                metrics.work.add(max(core.clock.now_ns() - started_ns, 0), _SAMPLED + 1)
            if core.waiting_threads or core.listeners or event_seq >= core.snapshot_event:
                core.recorded()
            return True
        finally:
            self._release()

    def _next(self) -> Message | None:
        """The next message of group `main`, if it is a plain one; was not read ahead."""
        seq = self._main.plain.first
        if seq is None:
            self._core.catch_up()  # what was published since comes behind; it matters only now
            seq = self._main.plain.first
        return None if seq is None else self._messages.get(seq)
