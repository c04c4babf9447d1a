"""Which queues have schedules: some broker must have each of them open.

A queue is opened by the first call that uses it, and a schedule is no call. So a document lists the
queues that have schedules. With each sign of life, a broker opens those that are its own, or whose
owner is not alive. Only one broker can own a queue, and only the owner publishes.

A queue is listed before its first schedule is put. One that has none (any more) is taken off.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable

from penstock.broker.embedded.shelf import Shelf
from penstock.broker.postgres.database import Database, Session
from penstock.broker.postgres.membership import ALIVE, Membership
from penstock.broker.store import Documents, update_document
from penstock.errors import NoSuchQueue, PenstockError
from penstock.names import QueueName

log = logging.getLogger("penstock.broker")

DOCUMENT = "scheduled.json"
_MOST_OPENED = 20  # queues, with each sign of life


class ScheduledQueues:
    """The list of queues with schedules, as one broker keeps it."""

    def __init__(
        self,
        store: Documents,
        database: Database,
        membership: Membership,
        shelf: Shelf,
        open_queue: Callable[[QueueName], Awaitable[object]],
    ) -> None:
        """`open_queue`: open a queue here, or at its owner."""
        self._store = store
        self._database = database
        self._membership = membership
        self._shelf = shelf
        self._open_queue = open_queue

    async def add(self, queue: QueueName) -> None:
        """List a queue, durably."""
        await self._change(lambda listed: listed | {queue})

    async def tend(self) -> None:
        """Open queues that no broker has open, and bring the list up to date."""
        listed, to_open = await asyncio.to_thread(self._read)
        gone: set[QueueName] = set()
        for queue in to_open[:_MOST_OPENED]:
            try:
                await self._open_queue(queue)
            except NoSuchQueue:
                gone.add(queue)
            except PenstockError as error:
                log.warning("the schedules of %s wait: %s", queue, error)
        for queue, found in self._shelf.open_queues.items():
            if found.core.state.schedules:
                if queue not in listed:
                    await self.add(queue)
            elif queue in listed:
                gone.add(queue)
        gone |= listed - set(self._shelf.names(None))  # deleted
        if gone:
            await self._change(lambda listed: listed - gone)

    async def _change(self, change: Callable[[set[QueueName]], set[QueueName]]) -> None:
        def changed(document: bytes | None) -> bytes | None:
            queues = change(listed_in(document))
            return as_document(queues) if queues else None

        await update_document(self._store, DOCUMENT, changed)

    def _read(self) -> tuple[set[QueueName], list[QueueName]]:
        """Return the queues on the list, and those of them that are for this broker to open."""

        def read(session: Session) -> tuple[set[QueueName], list[QueueName]]:
            row = session.one("select content from document where name = %s", (DOCUMENT,))
            listed = listed_in(None if row is None else bytes(row[0]))
            if not listed:
                return listed, []
            rows = session.execute(
                "select q.namespace, q.name from queue q "
                "join unnest(%s::text[], %s::text[]) l (namespace, name) using (namespace, name) "
                "where q.is_made and (q.owner is null or q.owner = %s or not exists "
                f"(select from broker b where b.number = q.owner and {ALIVE}))",
                (
                    [queue.namespace for queue in listed],
                    [queue.name for queue in listed],
                    self._membership.number,
                    session.server,
                ),
            )
            found = [QueueName(*row) for row in rows]
            return listed, [queue for queue in found if queue not in self._shelf.open_queues]

        return self._database.read(read)


def as_document(queues: Iterable[QueueName]) -> bytes:
    """Return the list as a document."""
    return json.dumps(sorted([queue.namespace, queue.name] for queue in queues)).encode()


def listed_in(document: bytes | None) -> set[QueueName]:
    """Return the queues of the document. One that cannot be read lists none: it is made anew."""
    try:
        return {QueueName.checked(*item) for item in json.loads(document or b"[]")}
    except (ValueError, TypeError) as error:
        log.error("the document %s cannot be read: %s", DOCUMENT, error)
        return set()
