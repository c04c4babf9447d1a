"""A queue at another broker, its owner, for calls that need no future."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.broker.limits import SMALL_BYTES
from penstock.broker.postgres.channel import Peer
from penstock.broker.postgres.together import ACK, LEASE, OPTIONS, PLAIN, Kind
from penstock.broker.store import Pending, Publishable
from penstock.model import NewMessage, TypedPayload
from penstock.names import QueueName

# Look for the owner of the queue, after a call has failed: where, and how.
CallAgain = Callable[[QueueName, Kind, Any, Pending, tuple[str, Exception]], None]


class Elsewhere:
    """Forwards the usual calls of one queue; see `together`."""

    __slots__ = ("_call_again", "_peer", "_queue")

    def __init__(self, peer: Peer, queue: QueueName, call_again: CallAgain) -> None:
        self._peer = peer
        self._queue = queue
        self._call_again = call_again

    def publish_for(self, pending: Pending, messages: Sequence[Publishable]) -> bool:
        """Publish one small message with other calls of this turn."""
        if len(messages) != 1:
            return False
        message: Any = messages[0]
        kind = type(message)
        if kind is bytes:
            if len(message) > SMALL_BYTES:
                return False
            self._peer.gather(self._queue, PLAIN, message, pending, self._refused)
        elif kind is TypedPayload:
            payload, content_type = message
            if len(payload) > SMALL_BYTES:
                return False
            self._peer.gather(self._queue, content_type, payload, pending, self._refused)
        elif kind is NewMessage and _size_of(message.payload) <= SMALL_BYTES:
            self._peer.gather(self._queue, OPTIONS, message, pending, self._refused)
        else:
            return False
        return True

    def lease_one_for(self, pending: Pending, max_bytes: int) -> None:
        self._peer.gather(self._queue, LEASE, max_bytes, pending, self._refused)

    def ack_one_for(self, pending: Pending, receipt: str) -> None:
        self._peer.gather(self._queue, ACK, receipt, pending, self._refused)

    def _refused(self, kind: Kind, argument: Any, pending: Pending, error: Exception) -> None:
        self._call_again(self._queue, kind, argument, pending, (self._peer.address, error))


def _size_of(payload: Any) -> int:
    return len(payload) if isinstance(payload, bytes | str) else SMALL_BYTES + 1
