"""One timer for all queues: it fires when the next queue has work to do."""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)


class Timer(Generic[_K]):
    """Calls `wake` for each planned key. A replaced plan is skipped when it is due."""

    def __init__(self, wake: Callable[[_K], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._heap: list[tuple[float, int, _K]] = []
        self._planned: dict[_K, float] = {}
        self._count = 0  # breaks ties, because keys need not be comparable
        self._handle: asyncio.TimerHandle | None = None

    def plan(self, key: _K, after_s: float) -> None:
        """Wake a key after some seconds, unless an earlier time is planned."""
        at = self._loop.time() + after_s
        known = self._planned.get(key)
        if known is not None and known <= at:
            return
        self._planned[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))
        if self._heap[0][2] is key:
            self._set()

    def planned(self, key: _K) -> float | None:
        """Return when a key is woken, in the loop's time; None if it is not."""
        return self._planned.get(key)

    def forget(self, key: _K) -> None:
        """Cancel the plan of a key."""
        self._planned.pop(key, None)

    def close(self) -> None:
        self._planned.clear()
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._heap[0][0], self._fire) if self._heap else None

    def _fire(self) -> None:
        now = self._loop.time()
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._planned.get(key) == at:
                del self._planned[key]
                due.append(key)
        self._set()
        for key in due:
            self._wake(key)
