"""Which publishes take too long for the event loop."""

from collections.abc import Sequence

from penstock.broker.store import Publishable
from penstock.model import NewMessage, TypedPayload

_MANY = 500
LARGE_BYTES = 256 * 1024


def is_heavy(messages: Sequence[Publishable]) -> bool:
    """Return whether to publish these in a thread: many of them, or much to check and compress."""
    return len(messages) > _MANY or sum(map(_size_of, messages)) > LARGE_BYTES


def _size_of(message: Publishable) -> int:
    payload = message.payload if isinstance(message, NewMessage | TypedPayload) else message
    return len(payload) if isinstance(payload, bytes | bytearray | memoryview | str) else 0
