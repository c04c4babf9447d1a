"""The fast path: dequeue, lease and ack of one message.

These calls are most of a queue's work. The general behaviours make about a hundred function calls
for each, most of which find nothing to do. Here all conditions are checked at once: no lease has
ended, and the next message is neither expired nor unreadable. `take` also needs that only plain
messages are ready. If any condition fails, the fast path does not apply and the caller uses the
general behaviours.

The event is the same as from `events.encode`. The state changes as `group_events.apply` changes it:
`lease_one` and `ack_one` are the functions that `apply` calls, `lease_next` does as `lease_plain`,
and `take` repeats `take_plain` in line. tests/queue/test_fast_path.py compares every field of
random states.

Callables are taken into locals before the call, which is faster than calling an attribute.
"""

import secrets
import struct
from array import array
from collections.abc import Callable

from penstock.errors import EntryGone, PayloadUnreadable, PenstockError
from penstock.model import MAIN_GROUP_NAME, NS, LeasedMessage, Message, Settler, Ticket
from penstock.queue.core import QueueCore
from penstock.queue.events import MAIN_GROUP, EventType, format_of_one
from penstock.queue.group import Group
from penstock.queue.group_leases import lease_next, lease_one, take_plain
from penstock.queue.group_outcomes import ack_one
from penstock.queue.messages import MessageReader
from penstock.queue.schedule import NEVER_NS
from penstock.queue.settings import MOST_ATTEMPTS

_pack_one = struct.Struct(format_of_one(EventType.ACKED)).pack
_pack_lease = struct.Struct(format_of_one(EventType.LEASED)).pack  # without holder
_LEASED, _TAKEN, _ACKED = int(EventType.LEASED), int(EventType.TAKEN), int(EventType.ACKED)
_new = tuple.__new__
# Latency is measured for the first messages. After those, it is measured for two neighbours of 64
# events: a lease and its ack, whichever is even.
_ALL_MEASURED = 1024
_NOT_MEASURED, _STANDS_FOR = 62, 32


class Nonces:
    """Random numbers that cannot be guessed, fetched from the system many at a time."""

    def __init__(self) -> None:
        self._pool = array("Q")

    def next(self) -> int:
        if not self._pool:
            self._pool.frombytes(secrets.token_bytes(4096))
        return self._pool.pop()


class FastPath:
    """Take a plain message of group `main`, or lease or ack one message of any group."""

    def __init__(self, core: QueueCore, settler: Settler, nonces: Nonces) -> None:
        self._core = core
        self._settler = settler
        self._lock = core.lock
        # For `take`: calling them is faster than `with`. They are called within `try`, because an
        # interrupt may come right after the call.
        self._acquire, self._release = core.lock.acquire, core.lock.release
        self._next_nonce = nonces.next
        self._metrics, self._messages = core.metrics, core.messages
        self._log, self._events = core.ledger.messages, core.ledger.events
        self._notes = core.notes
        self._length_ns = round(core.settings.lease_s * NS)
        self._discards_dead = core.settings.dead_retention_s > 0
        self._is_limited = core.limits is not None

    def take(self) -> Message | None:
        """Take a message. Return None if there is none, or if the fast path does not apply."""
        core, acquire, release = self._core, self._acquire, self._release
        try:
            acquire()
            if core.torn:
                return None
            if len(self._notes):
                core.catch_up()
            group, ahead = core.main, self._messages.ahead
            waiting = group.waiting
            if (
                group.leases or waiting.scheduled or group.expiries.next_ns != NEVER_NS
            ) and not group.is_quiet(*core.clock.read()):
                return None
            if (
                waiting.special
                or waiting.upcoming.seqs
                or core.state.paused
                or self._is_limited
                or (self._discards_dead and group.dead)
            ):
                return None
            plain = waiting.plain
            message = ahead.pop() if ahead else self._next(group, self._messages)
            if message is None:
                return None
            seq = message[1]
            if seq != plain.first:  # it was read ahead for another order
                message = self._next(group, self._messages)
                if message is None:
                    return None
                seq = message[1]
            if message[6] and message[6] <= core.clock.now_ns():
                return None  # it has expired
            events, after = self._events, seq + 1
            now_ns = events.now_ns
            event_seq = events.fast_packer.append_event_of_one(_TAKEN, MAIN_GROUP, 1, seq, now_ns())
            if event_seq < 0:
                event_seq = events.append_event(_TAKEN, _pack_one(MAIN_GROUP, 1, 1, seq, 1))
            if message[7] is not None or after >= plain.front_end or group.dependents:
                take_plain(group, seq, after)
                if group.dependents:
                    core.free_after(group, seq)
            else:
                plain.first = after
                group.totals[_TAKEN] += 1
            metrics = self._metrics
            metrics.taken += 1
            if metrics.taken <= _ALL_MEASURED:
                metrics.wait.add(core.clock.now_ns() - message.published_ns)
            elif not event_seq & _NOT_MEASURED:
                waited_ns = core.clock.now_ns() - message.published_ns
                metrics.wait.add(waited_ns, _STANDS_FOR)
            if core.waiting_threads or core.listeners or event_seq >= core.snapshot_event:
                core.recorded()
            return message
        except PenstockError:
            raise
        except BaseException:
            core.interrupted()
            raise
        finally:
            try:
                release()
            except RuntimeError:
                pass  # interrupted while it waited for the lock

    def lease(
        self,
        group_name: str = MAIN_GROUP_NAME,
        length_ns: int = 0,
        holder: str = "",
        length_of: Callable[[Message], int] | None = None,
    ) -> LeasedMessage | None:
        """Lease a message (0: for the queue's `lease_s`). Return None as `take` does.

        `length_of` returns the length of the lease, in nanoseconds, by the message.
        """
        core = self._core
        length_ns = length_ns or self._length_ns
        with self._lock:
            try:
                if core.torn:
                    return None
                if len(self._notes):  # messages with options may come first
                    core.catch_up()
                group = core.main if group_name is MAIN_GROUP_NAME else core.group(group_name)
                waiting = group.waiting
                now_ns, mono_ns = core.clock.read()
                ends = group.lease_ends.heap
                if ends and ends[0][0] <= mono_ns:
                    return None  # a lease has ended
                if group.expiries.next_ns <= now_ns:
                    return None  # a message with a key has expired
                if waiting.timetable.next_ns <= now_ns:
                    waiting.promote(now_ns)
                if core.state.paused or (self._discards_dead and group.dead):
                    return None
                if group.gate is not None and not group.gate.is_open(now_ns):
                    return None
                attempt, message, delivery = 1, None, None
                is_plain = not (waiting.special or waiting.upcoming.seqs)
                if is_plain:
                    messages = self._messages if group is core.main else core.messages_of(group)
                    ahead = messages.ahead
                    message = ahead.pop() if ahead else self._next(group, messages)
                    if message is not None and message[1] != waiting.plain.first:
                        message = self._next(group, messages)  # it was read ahead for another order
                    if message is not None and message[6] and message[6] <= now_ns:
                        return None  # it has expired
                if message is None:  # it has options
                    upcoming = waiting.upcoming
                    seqs = upcoming.seqs
                    if (
                        seqs
                        and now_ns < upcoming.until_ns
                        and self._log.fast_packer.next_seq == core.state.ingested_upto
                    ):  # the usual case of `_next_of_any_kind`
                        message = core.nearby_messages.ahead.pop(seqs[-1], None)
                    if message is None:
                        message = self._next_of_any_kind(group, now_ns)
                        if message is None:
                            return None
                    elif message[6] and message[6] <= now_ns:
                        return None  # it has expired
                    delivery = group.deliveries.get(message[1])
                    if delivery is not None and delivery.attempt:
                        attempt = min(delivery.attempt + 1, MOST_ATTEMPTS)
                    is_plain = False
                seq = message[1]
                if length_of is not None:
                    length_ns = length_of(message)
                next_nonce, number = self._next_nonce, group.number
                nonce = next_nonce()
                deadline_ns = now_ns + length_ns
                if holder:
                    name = holder.encode(errors="replace")
                    size = len(name)
                    body = _pack_lease(
                        number, attempt, 1, seq, 1, nonce, deadline_ns, length_ns, size
                    )
                    body += name
                else:
                    body = _pack_lease(number, attempt, 1, seq, 1, nonce, deadline_ns, length_ns, 0)
                events = self._events
                event_seq = events.fast_packer.append_event(_LEASED, body, now_ns)
                if event_seq < 0:
                    event_seq = events.append_event(_LEASED, body)
                core.state.moment.mono_ns = mono_ns
                if is_plain:
                    lease_next(group, seq, nonce, deadline_ns, length_ns, holder)
                else:
                    lease_one(
                        group, message, delivery, attempt, nonce, deadline_ns, length_ns, holder
                    )
                metrics = self._metrics
                metrics.leased += 1
                if metrics.leased <= _ALL_MEASURED:
                    metrics.wait.add(now_ns - message.published_ns)
                elif not event_seq & _NOT_MEASURED:
                    metrics.wait.add(now_ns - message.published_ns, _STANDS_FOR)
                if core.waiting_threads or core.listeners or event_seq >= core.snapshot_event:
                    core.recorded()
            except PenstockError:
                raise
            except BaseException:
                core.interrupted()
                raise
        ticket = _new(
            Ticket,
            (core.identity, number, group.name, attempt, nonce, deadline_ns, self._settler),
        )
        return _new(LeasedMessage, (message, ticket))

    def ack(self, leased: LeasedMessage) -> bool:
        """Ack a message. Return False if the fast path does not apply."""
        message, (identity, number, _, attempt, nonce, _, _) = leased
        return self.ack_receipt(identity, number, attempt, message[1], nonce)

    def ack_receipt(self, identity: int, number: int, attempt: int, seq: int, nonce: int) -> bool:
        """Ack by the fields of a receipt."""
        core = self._core
        with self._lock:
            try:
                if core.torn:
                    return False
                group = core.state.groups.get(number)
                if group is None or identity != core.identity:
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
                ack_one(group, seq)
                if group.dependents:
                    core.free_after(group, seq)
                metrics = self._metrics
                metrics.acked += 1
                is_sample = metrics.acked > _ALL_MEASURED
                if not (is_sample and event_seq & _NOT_MEASURED):
                    worked_ns = core.clock.now_ns() - lease.deadline_ns + lease.length_ns
                    metrics.work.add(max(worked_ns, 0), _STANDS_FOR if is_sample else 1)
                if core.waiting_threads or core.listeners or event_seq >= core.snapshot_event:
                    core.recorded()
                return True
            except PenstockError:
                raise
            except BaseException:
                core.interrupted()
                raise

    def _next(self, group: Group, messages: MessageReader) -> Message | None:
        """Read the next message of a group. Return None if it is not a plain one."""
        plain = group.waiting.plain
        seq = plain.first
        if seq is None:
            self._core.catch_up()  # feed messages that were published without the lock
            seq = plain.first
        return None if seq is None else messages.get(seq)

    def _next_of_any_kind(self, group: Group, now_ns: int) -> Message | None:
        """Read the next message of a group. Return None if there is none to deliver at once."""
        core, waiting = self._core, group.waiting
        if core.ledger.messages.next_seq != core.state.ingested_upto:
            core.catch_up()
        upcoming = waiting.upcoming
        if not upcoming.seqs or now_ns >= upcoming.until_ns:
            waiting.find_upcoming(
                core.published_ns, core.due_ns, now_ns=now_ns, level_ns=core.level_ns
            )
            if not upcoming.seqs:
                return None
        seq = upcoming.seqs[-1]
        message = core.nearby_messages.pop(upcoming.seqs)
        if message is not None:
            return None if 0 < message[6] <= now_ns else message
        try:
            entry = core.reader.get(seq)
            return None if 0 < entry.expires_at_ns <= now_ns else core.message(entry)
        except (EntryGone, PayloadUnreadable):
            return None
