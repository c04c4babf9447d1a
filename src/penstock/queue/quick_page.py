"""A page of messages without filters, read in one piece.

`Inspecting.search` finds messages of any state, one by one. Most pages are of a queue whose
messages are plain, ready or leased, and neighbours in the log. These are read by one call.
"""

from collections.abc import Sequence
from functools import partial
from heapq import nsmallest
from itertools import repeat
from operator import itemgetter

from penstock.ledger.log import Log
from penstock.ledger.segment import Segment
from penstock.model import Message
from penstock.operations import Browse, Page, Row
from penstock.queue.core import QueueCore
from penstock.queue.messages import MESSAGE_OVERHEAD_BYTES, size_of

_FARTHEST = 4096  # from the first message of a page to its last
_MOST_LEASES = 1000  # to look through
_new_tuple = tuple.__new__  # a named tuple without a call of Python code
_new_row = partial(_new_tuple, Row)
_expires_at_ns = itemgetter(Message._fields.index("expires_at_ns"))
_READY, _LEASED = "ready", "leased"
_STATES = (None, _READY)


class QuickPages:
    """Makes pages of one queue, and remembers where the last one began."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._seq = 0  # of the first message of the last page
        self._segment: Segment | None = None
        self._offset = 0

    def page(self, operation: Browse, max_bytes: int) -> Page | None:
        """Return a page of at most `max_bytes`; None if it has to be searched for."""
        core, limit, after_seq = self._core, operation.limit, operation.after_seq
        if (
            operation.state not in _STATES
            or limit >= operation.budget
            or operation.key is not None
            or operation.since is not None
            or operation.until is not None
            or operation.text is not None
            or operation.header is not None
            or operation.priority is not None
        ):
            return None
        core.ledger.check_open()
        with core.lock, core.change:
            core.catch_up()
            group = core.group(operation.group)
            now_ns = core.clock.now_ns()
            waiting = group.waiting
            waiting.promote(now_ns)
            if waiting.special or waiting.scheduled or group.deliveries or group.dead:
                return None  # messages with priorities, delays, keys or failures
            seqs: list[int] = waiting.plain.after(after_seq, limit + 1)
            attempts: dict[int, int] = {}  # of leased messages
            if group.leases and operation.state is None:
                if len(group.leases) > _MOST_LEASES:
                    return None
                leased = [seq for seq in group.leases if seq > after_seq]
                seqs = sorted([*seqs, *nsmallest(limit + 1, leased)])[: limit + 1]
                attempts = {s: group.leases[s].attempt for s in seqs if s in group.leases}
        has_more = len(seqs) > limit
        del seqs[limit:]
        messages, size = self._read(seqs, max_bytes)
        if messages is None:
            return None
        most_bytes = size + len(messages) * MESSAGE_OVERHEAD_BYTES
        if most_bytes > max_bytes and sum(map(size_of, messages)) > max_bytes:
            return None
        if any(map(_expires_at_ns, messages)) and _has_expired(messages, now_ns):
            return None
        if attempts:
            rows = [
                Row(
                    message,
                    _LEASED if message.seq in attempts else _READY,
                    attempts.get(message.seq, 0),
                )
                for message in messages
            ]
        else:
            rows = list(map(_new_row, zip(messages, repeat(_READY), repeat(0))))
        log = core.ledger.messages
        next_seq = seqs[-1] if has_more else 0
        page = (rows, next_seq, len(rows), False, log.first_seq, log.next_seq)
        return _new_tuple(Page, page)

    def _read(self, seqs: Sequence[int], max_bytes: int) -> tuple[list[Message] | None, int]:
        """Return messages and their size in the log; None if they cannot be read together."""
        if not seqs:
            return [], 0
        first = seqs[0]
        if seqs[-1] - first > _FARTHEST:
            return None, 0
        log = self._core.ledger.messages
        log.check_readable()
        log.publish_tail()
        segment, offset = self._locate(log, first)
        if segment is None or offset < 0:
            return None, 0
        found, end = log.segments.used(segment).read_messages(
            offset,
            len(seqs),
            self._core.identity,
            max_bytes,
            None if seqs[-1] - first == len(seqs) - 1 else seqs,
        )
        is_all = len(found) == len(seqs) and found[0][1] == first and found[-1][1] == seqs[-1]
        return (found if is_all else None), end - offset

    def _locate(self, log: Log, seq: int) -> tuple[Segment | None, int]:
        segment = self._segment
        if seq == self._seq and segment is not None and not segment.gone:
            return segment, self._offset
        segment = log.segments.holding(seq)
        offset = -1 if segment is None else segment.offset_of(seq)
        if offset >= 0:
            self._seq, self._segment, self._offset = seq, segment, offset
        return segment, offset


def _has_expired(messages: Sequence[Message], now_ns: int) -> bool:
    return any(0 < one.expires_at_ns <= now_ns for one in messages)
