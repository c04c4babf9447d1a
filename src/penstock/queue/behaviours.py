"""The behaviours of a queue over one core, which all its handles share."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeVar

from penstock.checking import Duration, check_seconds
from penstock.errors import InvalidInput
from penstock.model import NO_LEASED, NS, LeasedMessage, NewMessage, Payload, Settler, TypedPayload
from penstock.queue.compaction import LONGEST_WAIT_S
from penstock.queue.core import QueueCore
from penstock.queue.delivering import Delivering
from penstock.queue.fast_path import FastPath, Nonces
from penstock.queue.inspecting import Inspecting
from penstock.queue.publishing import Publishing
from penstock.queue.quick_page import QuickPages
from penstock.queue.settings import MOST_IN_BATCH, YEARS_S
from penstock.queue.settling import Leased, Settling

_T = TypeVar("_T")
_ONLY_BYTES = {bytes}
_ONLY_TYPED = {TypedPayload}


class Behaviours:
    """Publishing, delivering, settling and inspecting, over one core."""

    def __init__(self, core: QueueCore, settler: Settler) -> None:
        self.core = core
        self.publishing = Publishing(core)
        self.settling = Settling(core, self.publishing)
        nonces = Nonces()
        self.inspecting = Inspecting(core)
        self.quick_pages = QuickPages(core)
        self.fast_path = FastPath(core, settler, nonces)
        self.delivering = Delivering(core, self.inspecting, settler, nonces, self.fast_path)
        # The longest payload that the fast path takes; -1: it takes none.
        plain = self.publishing.plain_is_enough
        self.max_plain_bytes = core.settings.max_payload_bytes if plain else -1

    def all_plain(self, messages: "Sequence[Payload | NewMessage | TypedPayload]") -> bool:
        """Return whether a batch may take the fast path."""
        limit = self.max_plain_bytes
        return (
            limit >= 0
            and 0 < len(messages) <= self.core.settings.max_batch
            and set(map(type, messages)) == _ONLY_BYTES
            and max(map(len, messages)) <= limit  # type: ignore[arg-type]
        )

    def all_typed(self, messages: "Sequence[Payload | NewMessage | TypedPayload]") -> bool:
        """Return whether a batch may take the fast path as payloads with a content type."""
        limit = self.max_plain_bytes
        return (
            limit >= 0
            and 0 < len(messages) <= self.core.settings.max_batch
            and set(map(type, messages)) == _ONLY_TYPED
            and max(len(one[0]) for one in messages) <= limit  # type: ignore[index,arg-type]
        )


def several(leased: Leased | Iterable[Leased]) -> Iterable[Leased]:
    """Return one leased message, or several, as an iterable."""
    if isinstance(leased, LeasedMessage | str):
        return [leased]
    if not isinstance(leased, Iterable):
        raise InvalidInput(NO_LEASED)
    return leased


def as_new(messages: Iterable[Payload | NewMessage | TypedPayload]) -> list[NewMessage]:
    """Return messages; payloads become messages without options."""
    return [m if isinstance(m, NewMessage) else _new(m) for m in as_list(messages)]


def as_list(messages: Iterable[_T]) -> list[_T]:
    """Return a batch as a list; of an endless one, a message more than any queue takes."""
    if isinstance(messages, list):
        return messages
    if isinstance(messages, str | bytes | bytearray | memoryview | dict | NewMessage):
        raise InvalidInput("this is one payload or message: put it into a list, or use enqueue")
    if not isinstance(messages, Iterable):
        raise InvalidInput(f"a batch is a list of messages, not {type(messages).__name__}")
    return list(islice(messages, MOST_IN_BATCH + 1))


def _new(payload: Payload | TypedPayload) -> NewMessage:
    if isinstance(payload, TypedPayload):
        return NewMessage(payload=payload.payload, content_type=payload.content_type)
    return NewMessage(payload=payload)


def half_time_ns(leased: LeasedMessage, now_ns: int) -> int:
    """Return when half of a lease is over. Messages leased ahead are not delivered after that."""
    return (now_ns + leased.ticket.deadline_ns) // 2


def wait_ns_of(wait_s: Duration) -> int:
    """Check a waiting time, and return it in nanoseconds."""
    return round(min(check_seconds("wait_s", wait_s, 0, YEARS_S), LONGEST_WAIT_S) * NS)
