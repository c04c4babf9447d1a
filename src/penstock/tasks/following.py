"""Workflows over several queues in a directory or in memory: carry news from queue to queue.

At a broker, the broker does this (`broker/following.py`). Queues in a directory know nothing of
each other, so the processes of the tasks do it, in the same three steps: ask a queue which messages
of others it waits for, ask those queues what became of them, and record that in the first one. Only
what is on disk is carried, and recording it twice changes nothing. So any process may do it at any
time, several at once, and one that dies loses nothing.

It is done by the process that changed something: it published a workflow, settled a step, retried
or cancelled one. That may die before, and steps also end without a worker: a lease runs out, or
the command line cancels one. So a worker looks when it starts and every `LOOK_EVERY_S`, too.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from penstock.codec import parse_id
from penstock.errors import NoSuchMessage, NoSuchQueue, PenstockError
from penstock.locks import Lock
from penstock.model import LeasedMessage
from penstock.operations import Ending, GetEndings, ListAwaited, Resolve
from penstock.queue.events import Outcome
from penstock.queue.facade import AnyQueue
from penstock.tasks.envelope import feeds_of

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks

log = logging.getLogger("penstock.tasks")

LOOK_EVERY_S = 5.0
_MOST_IDS = 1000  # of one question


class Follower:
    """Carries news between the queues of a `Tasks`."""

    def __init__(self, tasks: "Tasks") -> None:
        self._tasks = tasks
        self._lock = Lock()
        self._names: dict[int, str] = {}  # queues by the identity in the ids of their messages

    def follow(self, queues: Iterable[str]) -> int:
        """Carry to these queues all news that concerns them. Return the number of news.

        News of one queue may be news for another: repeat until there are none.
        """
        names, count, before = sorted(queues), 0, -1
        while before < count:
            before = count
            for name in names:
                queue = self._tasks.queue(name)
                count += self._carry(queue, queue.run(ListAwaited()))
        return count

    def settled(self, ids: Iterable[str], queue: str, feeds: Sequence[str]) -> None:
        """Carry the news of settled messages of a queue to others, which have messages after them.

        That costs the same however many others are waited for.
        """
        unknown = [Ending(id_, Outcome.WAITING) for id_ in ids]
        for name in feeds:
            self._carry(self._tasks.queue(name), unknown, queue)
        endings = self._tasks.queue(queue).run(GetEndings([one.id for one in unknown]))
        if any(one.outcome in (Outcome.DEAD, Outcome.GONE) for one in endings):
            self.follow({*self._tasks.queue_names, *feeds})  # it fails those after them, too

    def _carry(self, later: AnyQueue, awaited: Sequence[Ending], earlier: str | None = None) -> int:
        """Tell a queue what became of messages that it awaits. Return the number of news."""
        known = {one.id: one.outcome for one in awaited}
        by_queue: dict[str, list[str]] = {}
        for id_ in known:
            name = earlier or self._queue_with(id_)
            if name is not None:
                by_queue.setdefault(name, []).append(id_)
        count = 0
        for name, ids in by_queue.items():
            queue = self._tasks.queue(name)
            news = [
                one
                for at in range(0, len(ids), _MOST_IDS)
                for one in queue.run(GetEndings(ids[at : at + _MOST_IDS]))
                if one.outcome != known[one.id]
            ]
            if news:
                queue.sync()  # a step whose end is lost runs again: others must not rely on it
            for one in news:
                count += later.run(Resolve(one.id, int(one.outcome), one.how))
        return count

    def _queue_with(self, id_: str) -> str | None:
        """Return the queue that has a message; None if there is none here."""
        identity = parse_id(id_)[1]
        with self._lock:
            if identity not in self._names:
                for name in self._tasks.known_queues():
                    try:
                        self._tasks.queue(name).run(GetEndings([id_]))
                    except (NoSuchMessage, NoSuchQueue):
                        continue
                    except PenstockError as error:  # another process has it for itself
                        log.warning("queue %s cannot be asked for message %s: %s", name, id_, error)
                        continue
                    self._names[identity] = name
                    break
            return self._names.get(identity)


class WorkerNews:
    """Carries the news of what a worker settled, and looks for other news now and then."""

    def __init__(self, tasks: "Tasks", queues: Sequence[str]) -> None:
        self._tasks = tasks
        self._queues = queues
        self._settled: list[tuple[str, LeasedMessage]] = []
        self._arrived = asyncio.Event()

    def settled(self, queue: str, messages: Sequence[LeasedMessage]) -> None:
        """Note settled messages of a queue. Called in the event loop."""
        fed = [(queue, message) for message in messages if feeds_of(message.payload)]
        if fed:
            self._settled += fed
            self._arrived.set()

    async def look(self) -> None:
        """Carry all news that concern the queues of the worker."""
        await self._try(partial(self._tasks.follow, self._queues))

    @asynccontextmanager
    async def carried(self) -> AsyncIterator[None]:
        """Carry news during a block, and what is left at its end."""
        carrying = asyncio.ensure_future(self._run())
        try:
            yield
        finally:
            carrying.cancel()
            await asyncio.wait([carrying])
            await self._carry_settled()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._arrived.wait()
            if self._arrived.is_set():
                self._arrived.clear()
                await asyncio.shield(self._carry_settled())
            else:
                await asyncio.shield(self.look())

    async def _carry_settled(self) -> None:
        settled, self._settled = self._settled, []
        by_queue: dict[str, list[LeasedMessage]] = {}
        for queue, message in settled:
            by_queue.setdefault(queue, []).append(message)
        for queue, messages in by_queue.items():
            await self._try(partial(self._tasks.settled, queue, messages))

    @staticmethod
    async def _try(call: Callable[[], object]) -> None:
        try:
            await asyncio.to_thread(call)
        except PenstockError as error:
            log.warning("news of steps were not carried, and will be later: %s", error)
