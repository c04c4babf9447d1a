"""Calls that wait until a message has ended: woken by events of its queue, without polling.

One look serves all calls that wait for messages of a queue. Looking takes at most a tenth of the
time, however much happens in the queue and however many calls wait.
"""

import asyncio
from asyncio import Future

from penstock.broker.store import Store
from penstock.errors import NoSuchQueue, PenstockError, TooManyRequests
from penstock.names import QueueName
from penstock.operations.following import AwaitEnding, GetEndings
from penstock.queue.events import Outcome

_REST = 10  # times as long as a look takes is waited before the next one
_TRY_AGAIN_S = 1.0


class _Watched:
    """The calls that wait for messages of one queue."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Future[bool]]] = {}  # by the id of the message
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Endings:
    """The calls of a broker that wait for the end of a message."""

    def __init__(self, store: Store, *, most: int) -> None:
        self._store = store
        self._most = most
        self._watched: dict[QueueName, _Watched] = {}
        self._count = 0
        self._is_closed = False

    async def wait(self, queue: QueueName, asked: AwaitEnding) -> bool:
        """Return whether a message has ended, at the latest after the time that is asked for."""
        if await self._store.run(queue, asked):
            await self._store.run(queue, GetEndings([asked.id]))  # answered when it is durable
            return True
        if self._is_closed or not asked.wait_s:
            return False
        if self._count >= self._most:
            raise TooManyRequests(
                f"{self._most} calls are waiting for the end of messages already (max_waiters): "
                f"retry later, or ask without waiting",
                _TRY_AGAIN_S,
            )
        loop = asyncio.get_running_loop()
        call: Future[bool] = loop.create_future()
        watched = self._join(queue, asked.id, call)
        timer = loop.call_later(asked.wait_s, _answer, call, False)
        try:
            return await call
        finally:
            timer.cancel()
            self._leave(queue, watched, asked.id, call)

    def on_ready(self, queue: QueueName) -> None:
        """Something happened in a queue."""
        watched = self._watched.get(queue)
        if watched is not None:
            watched.changed.set()

    def on_missed(self) -> None:
        """Notices may have been missed: look at everything."""
        for watched in self._watched.values():
            watched.changed.set()

    def close(self) -> None:
        """Answer all calls. Later ones do not wait."""
        self._is_closed = True
        for watched in self._watched.values():
            for calls in watched.calls.values():
                for call in calls:
                    _answer(call, False)

    # -- looking -----------------------------------------------------------------------------------

    def _join(self, queue: QueueName, id_: str, call: "Future[bool]") -> _Watched:
        watched = self._watched.get(queue)
        if watched is None:
            watched = self._watched[queue] = _Watched()
            self._store.watch(queue)
            watched.task = asyncio.ensure_future(self._look(queue, watched))
        watched.calls.setdefault(id_, []).append(call)
        watched.changed.set()  # it may have ended before the queue was watched
        self._count += 1
        return watched

    def _leave(self, queue: QueueName, watched: _Watched, id_: str, call: "Future[bool]") -> None:
        self._count -= 1
        calls = watched.calls[id_]
        calls.remove(call)
        if not calls:
            del watched.calls[id_]
        if not watched.calls and self._watched.get(queue) is watched:
            del self._watched[queue]
            self._store.unwatch(queue)
            if watched.task is not None:
                watched.task.cancel()

    async def _look(self, queue: QueueName, watched: _Watched) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await watched.changed.wait()
            watched.changed.clear()
            began_s = loop.time()
            try:
                endings = await self._store.run(queue, GetEndings(list(watched.calls)))
            except (PenstockError, OSError) as error:
                self._fail(watched, error)
                continue
            for ending in endings:
                if ending.outcome != Outcome.WAITING:
                    for call in watched.calls.get(ending.id, ()):
                        _answer(call, True)
            await asyncio.sleep((loop.time() - began_s) * _REST)

    @staticmethod
    def _fail(watched: _Watched, error: Exception) -> None:
        for calls in watched.calls.values():
            for call in calls:
                if not call.done():
                    call.set_exception(error)

    def gone(self, queue: QueueName) -> None:
        """Answer the calls for a deleted queue with NoSuchQueue."""
        watched = self._watched.get(queue)
        if watched is not None:
            self._fail(watched, NoSuchQueue(f"queue {queue} was deleted"))


def _answer(call: "Future[bool]", ended: bool) -> None:
    if not call.done():
        call.set_result(ended)
