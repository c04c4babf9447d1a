"""The quotas of namespaces: how many queues each may have, and how many bytes these may hold.

The bytes of a namespace are a running count. It begins when a namespace with a quota is first
asked for; from then on, each call in one of its queues updates the size of that queue. A change
without a call (a compaction in the background, leases that end) is seen at the next call, or by a
recount.
"""

from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.broker.store import NamespaceInfo
from penstock.clock import Clock
from penstock.errors import QuotaExceeded
from penstock.model import NS
from penstock.names import QueueName

if TYPE_CHECKING:
    from penstock.broker.embedded.open_queue import OpenQueue


class Quotas:
    """The namespaces of a store, and the bytes of those that have been asked for."""

    def __init__(self, clock: Clock, sizes_of: Callable[[str], dict[QueueName, int]]) -> None:
        """`sizes_of` returns the queues of a namespace with their sizes, counted anew."""
        self._clock = clock
        self._sizes_of = sizes_of
        self.namespaces: dict[str, NamespaceInfo] = {}
        self._sizes: dict[str, dict[QueueName, int]] = {}
        self._totals: dict[str, int] = {}
        self.limited: set[str] = set()  # namespaces whose bytes are limited, or counted
        self._recount_at_ns: dict[str, int] = {}

    def set_namespace(self, namespace: NamespaceInfo) -> None:
        """Add a namespace, or change its quotas."""
        self.namespaces[namespace.name] = namespace
        if namespace.max_bytes or namespace.name in self._totals:
            self.limited.add(namespace.name)
        else:
            self.limited.discard(namespace.name)

    # -- checks ------------------------------------------------------------------------------------

    def check_new_queue(self, name: str) -> None:
        """Raise QuotaExceeded if a namespace may not have another queue."""
        namespace = self.namespaces.get(name)
        if namespace is None:
            return
        if namespace.max_queues and len(self._sizes_of(name)) >= namespace.max_queues:
            raise QuotaExceeded(
                f"namespace {name!r} has {namespace.max_queues} queues, its quota (max_queues)"
            )
        self.check_bytes(name)

    def check_bytes(self, name: str) -> None:
        """Raise QuotaExceeded if the queues of a namespace hold as many bytes as they may."""
        namespace = self.namespaces.get(name)
        if namespace is None or not namespace.max_bytes:
            return
        held = self.bytes_of(name)
        if held >= namespace.max_bytes and self._may_recount(name):
            held = self.bytes_of(name, recount=True)  # a compaction may have freed some
        if held >= namespace.max_bytes:
            raise QuotaExceeded(
                f"the queues of namespace {name!r} hold {held} bytes, and may hold "
                f"{namespace.max_bytes}: consume and compact, or raise max_bytes"
            )

    def _may_recount(self, name: str) -> bool:
        """Return True once a second, so that refused publishes cost little."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._recount_at_ns.get(name, 0):
            return False
        self._recount_at_ns[name] = now_ns + NS
        return True

    # -- bytes -------------------------------------------------------------------------------------

    @property
    def is_counting(self) -> bool:
        return bool(self._totals)

    def bytes_of(self, name: str, *, recount: bool = False) -> int:
        if recount or name not in self._totals:
            self._sizes[name] = sizes = self._sizes_of(name)
            self._totals[name] = sum(sizes.values())
            self.limited.add(name)
        return self._totals[name]

    def set_size(self, queue: QueueName, size: int) -> None:
        sizes = self._sizes.get(queue.namespace)
        if sizes is not None:
            self._totals[queue.namespace] += size - sizes.get(queue, 0)
            sizes[queue] = size

    def forget_queue(self, queue: QueueName) -> None:
        self.set_size(queue, 0)
        self._sizes.get(queue.namespace, {}).pop(queue, None)

    def forget(self, name: str) -> None:
        """Forget a namespace that was deleted."""
        for table in (self.namespaces, self._sizes, self._totals, self._recount_at_ns):
            table.pop(name, None)
        self.limited.discard(name)

    def note(self, queue: "OpenQueue", answer: "Future[Any]") -> None:
        """Update the size of a queue now, and again when the call in it is answered."""
        if queue.name.namespace not in self._totals:
            return
        self.set_size(queue.name, queue.bytes())
        if not answer.done():
            answer.add_done_callback(lambda _: self._note_later(queue))

    def _note_later(self, queue: "OpenQueue") -> None:
        sizes = self._sizes.get(queue.name.namespace, {})
        if queue.name in sizes and not queue.threads.is_closing:
            self.set_size(queue.name, queue.bytes())
