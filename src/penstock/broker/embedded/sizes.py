"""A running count of what the queues of a namespace hold, for its `max_bytes`.

A namespace is counted from the first time that somebody asks for it. From then on, each call in one
of its queues brings the size of that queue up to date. What changes a queue without a call (a
compaction in the background, leases that run out) is seen at the next call in it, or by a recount.
"""

from asyncio import Future
from typing import TYPE_CHECKING, Any

from penstock.names import QueueName

if TYPE_CHECKING:
    from penstock.broker.embedded.open_queue import OpenQueue


class Sizes:
    """The sizes of queues, by namespace. False while nobody asked for one."""

    def __init__(self) -> None:
        self._sizes: dict[str, dict[QueueName, int]] = {}
        self._totals: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._totals)

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._totals

    def total_of(self, namespace: str) -> int:
        return self._totals[namespace]

    def count(self, namespace: str, sizes: dict[QueueName, int]) -> None:
        """Begin anew with these."""
        self._sizes[namespace] = sizes
        self._totals[namespace] = sum(sizes.values())

    def drop(self, namespace: str) -> None:
        """Count it no more."""
        self._sizes.pop(namespace, None)
        self._totals.pop(namespace, None)

    def set(self, queue: QueueName, size: int) -> None:
        """A queue has this size now."""
        sizes = self._sizes.get(queue.namespace)
        if sizes is not None:
            self._totals[queue.namespace] += size - sizes.get(queue, 0)
            sizes[queue] = size

    def forget(self, queue: QueueName) -> None:
        """A queue is there no more."""
        self.set(queue, 0)
        self._sizes.get(queue.namespace, {}).pop(queue, None)

    def note(self, queue: "OpenQueue", answer: "Future[Any]") -> None:
        """Something was done in a queue, or will have been when it is answered."""
        if queue.name.namespace not in self._totals:
            return
        self.set(queue.name, queue.bytes())
        if not answer.done():
            answer.add_done_callback(lambda _: self._note_later(queue))

    def _note_later(self, queue: "OpenQueue") -> None:
        sizes = self._sizes.get(queue.name.namespace, {})
        if queue.name in sizes and not queue.is_closing:
            self.set(queue.name, queue.bytes())
