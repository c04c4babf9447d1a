"""Messages of one queue that come after messages of another queue of the namespace.

The two queues cannot be written in one step. So the later message is blocked when it is published,
and a broker resolves it afterwards:

1. Before the publish, the name of the queue is added to a document. So every broker that starts
   later knows that the queue may have messages that wait for others.
2. After the publish, the broker asks the other queue what became of the messages there, and is
   woken whenever something happens in that queue. The answer is durable before it is used.
3. It records what it learned in the waiting queue, as an event. That event is idempotent: brokers
   may do this at the same time, and again after a restart.

A broker that dies between the steps loses nothing: the next one begins with step 2. Between two
looks it rests, for longer if more messages wait, and never longer than `MAX_REST_S`.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Iterable, Sequence

import msgspec

from penstock.broker.background import Background
from penstock.broker.store import Publishable, Store, update_document
from penstock.codec import parse_id
from penstock.errors import InvalidInput, NoSuchMessage, NoSuchQueue, PenstockError
from penstock.model import NewMessage, Published
from penstock.names import QueueName
from penstock.operations.following import Ending, GetEndings, ListAwaited, Resolve
from penstock.queue.events import Outcome

log = logging.getLogger("penstock.broker")

DOCUMENT = "following.json"
MAX_REST_S = 0.25
_REST = 20  # times as long as the waiting messages took to list is rested: asking costs as much
_TROUBLE_S = 1.0


class Following:
    """The queues of a store whose messages wait for other queues, as one broker follows them."""

    def __init__(self, store: Store, background: Background) -> None:
        self._store = store
        self._background = background
        self._known: set[QueueName] = set()  # in the document
        self._watched: dict[QueueName, set[QueueName]] = {}  # earlier queue -> later ones
        self._due: set[QueueName] = set()  # later queues to look at
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the document, and look at the queues that it names."""
        await self._load()

    async def close(self) -> None:
        """Stop looking. What is not resolved yet is resolved after the next start."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def on_document(self, name: str) -> None:
        """For `Broker.on_document_changed`."""
        if name == DOCUMENT:
            self._background.run(self._load())

    def on_ready(self, queue: QueueName) -> None:
        """Something happened in a queue."""
        later = self._watched.get(queue)
        if later:
            self._look_at(later)

    def on_missed(self) -> None:
        """Notices may have been missed: look at everything."""
        self._look_at(self._known)

    async def _load(self) -> None:
        found = _names(await self._store.load_document(DOCUMENT))
        new = found - self._known
        self._known |= found
        self._look_at(new)

    # -- publishing --------------------------------------------------------------------------------

    def elsewhere(self, messages: Sequence[Publishable], identity: int | None) -> list[str]:
        """Return the ids of other queues that messages come after."""
        found = {
            one
            for message in messages
            if isinstance(message, NewMessage)
            for one in message.after or ()
            if isinstance(one, str) and parse_id(one)[1] != identity
        }
        return sorted(found)

    async def publish(
        self,
        queue: QueueName,
        ids: Sequence[str],
        publish: Callable[[], Future[list[Published]]],
        *,
        are_gated: bool = False,
    ) -> list[Published]:
        """Publish messages that come after these of other queues.

        Raise NoSuchMessage if one of them was never published, InvalidInput if it is of another
        namespace.
        """
        if are_gated and self._store.has_one_queue:
            return await publish()  # the others are not here: workers of tasks follow them
        for earlier, its_ids in (await self._by_queue(ids)).items():
            if earlier is None:
                raise NoSuchMessage(f"after names {its_ids[0]}, a message of no queue here")
            if earlier.namespace != queue.namespace:
                raise InvalidInput(
                    f"after names {its_ids[0]}, a message of another namespace: messages can only "
                    f"come after those of their own namespace, {queue.namespace}"
                )
            await self._store.run(earlier, GetEndings(its_ids, check=True))
        if queue not in self._known:
            await update_document(self._store, DOCUMENT, lambda old: _with(old, queue))
            self._known.add(queue)
        published = await publish()
        self._look_at([queue])
        return published

    async def _by_queue(self, ids: Iterable[str]) -> dict[QueueName | None, list[str]]:
        queues: dict[int, QueueName | None] = {}
        found: dict[QueueName | None, list[str]] = {}
        for id_ in ids:
            identity = parse_id(id_)[1]
            if identity not in queues:
                queues[identity] = await self._store.find(identity)
            found.setdefault(queues[identity], []).append(id_)
        return found

    # -- looking -----------------------------------------------------------------------------------

    def _look_at(self, queues: Iterable[QueueName]) -> None:
        self._due.update(queues)
        if not self._due or self._is_closed:
            return
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            # Queues that are due again meanwhile have their turn after the rest.
            due, self._due = self._due, set()
            listing_s = 0.0
            while due:
                listing_s += await self._try_look(due.pop())
            await asyncio.sleep(min(listing_s * _REST, MAX_REST_S))

    async def _try_look(self, queue: QueueName) -> float:
        """Look at a queue, and later again if that fails. Return the seconds to rest for."""
        try:
            return await self._look(queue)
        except NoSuchQueue:
            self._watch(queue, ())
        except (PenstockError, OSError) as error:
            log.warning("what %s waits for in other queues is not known: %s", queue, error)
            asyncio.get_running_loop().call_later(_TROUBLE_S, self._look_at, [queue])
        return 0.0

    async def _look(self, queue: QueueName) -> float:
        """Learn what became of the messages that a queue waits for, and note it there.

        Return the seconds that listing them took. The rest of the time passes in waiting for the
        disk, beside others, or brings news, of which there is one for each message.
        """
        store, loop = self._store, asyncio.get_running_loop()
        began_s = loop.time()
        awaited = {one.id: one.outcome for one in await store.run(queue, ListAwaited())}
        listing_s = loop.time() - began_s
        by_queue = await self._by_queue(awaited)
        # Watch first: what happens between an answer and the watch would be missed.
        self._watch(queue, [one for one in by_queue if one is not None])
        for earlier, ids in by_queue.items():
            for ending in await self._endings(earlier, ids):
                if ending.outcome != awaited[ending.id]:
                    await store.run(queue, Resolve(ending.id, int(ending.outcome), ending.how))
        return listing_s

    async def _endings(self, earlier: QueueName | None, ids: Sequence[str]) -> list[Ending]:
        if earlier is not None:
            try:
                return await self._store.run(earlier, GetEndings(ids))
            except NoSuchQueue:
                pass
        return [Ending(id_, Outcome.GONE, "gone with its queue") for id_ in ids]

    def _watch(self, queue: QueueName, earlier: Iterable[QueueName]) -> None:
        """Be woken by these queues, and by no others, for a queue."""
        wanted = set(earlier)
        for one in wanted:
            later = self._watched.get(one)
            if later is None:
                self._store.watch(one)
                later = self._watched[one] = set()
            later.add(queue)
        for one in [one for one, later in self._watched.items() if queue in later]:
            if one not in wanted:
                self._watched[one].discard(queue)
                if not self._watched[one]:
                    del self._watched[one]
                    self._store.unwatch(one)


def _names(document: bytes | None) -> set[QueueName]:
    if document is None:
        return set()
    try:
        return {QueueName(*pair) for pair in msgspec.json.decode(document, type=list[list[str]])}
    except (msgspec.DecodeError, TypeError) as error:
        log.error("%s is damaged: %s", DOCUMENT, error)
        return set()


def _with(document: bytes | None, queue: QueueName) -> bytes:
    pairs = sorted(list(one) for one in _names(document) | {queue})
    return msgspec.json.encode(pairs)
