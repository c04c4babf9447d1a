"""Move messages of committed transactions from the table `outbox` into their queues.

One broker at a time moves, oldest first. A row is published under a dedup id of its own, and then
deleted: if the broker dies in between, the next one publishes it again, and the queue drops the
duplicate. A row that its queue refuses stays in the table, with the reason.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.postgres.database import Database, Session
from penstock.codec import parse_id
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    NoSuchMessage,
    NoSuchQueue,
    PenstockError,
    QuotaExceeded,
)
from penstock.model import NewMessage
from penstock.names import QueueName
from penstock.queue.after import check_after
from penstock.queue.dedup import OUTBOX_PREFIX
from penstock.queue.settings import QueueSettings

if TYPE_CHECKING:
    from penstock.broker.postgres.store import PostgresStore

log = logging.getLogger("penstock.broker")

_LOCK = "outbox"
_LOCK_S = 30.0
_ROWS = 500
_DEDUP_WINDOW_S = 7 * 86400.0  # after a crash in the middle, a broker must go on within it

OPTIONS = tuple(sorted(field.name for field in fields(NewMessage) if field.name != "payload"))


class _Row(NamedTuple):
    id: int
    queue: QueueName
    payload: bytes
    options: str

    def message(self) -> NewMessage:
        """Return the message; raise InvalidInput if the options are not those of a message."""
        try:
            options: dict[str, Any] = json.loads(self.options)
            if not isinstance(options, dict):
                raise InvalidInput(f"the options are {self.options}; they must be a JSON object")
            for name in options:
                if name not in OPTIONS:
                    raise InvalidInput(
                        f"there is no option {name!r}; the options are {', '.join(OPTIONS)}"
                    )
            QueueName.checked(*self.queue)
            options.setdefault("dedup_id", f"{OUTBOX_PREFIX}{self.id}")
            options.setdefault("dedup_window_s", _DEDUP_WINDOW_S)
            message = NewMessage(payload=self.payload, **options)
            check_after(message.after, message.after_failed, 0)  # it is no item of a batch
            return message
        except InvalidInput:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the options are not those of a message: {error}") from None


class Outbox:
    """The task of one broker that moves messages, while it has the lock."""

    def __init__(
        self,
        database: Database,
        store: "PostgresStore",
        every_s: float,
        new_settings: Callable[[QueueName], QueueSettings],
    ) -> None:
        self._database = database
        self._store = store
        self._every_s = every_s
        self._new_settings = new_settings
        self._owner = ""
        self._task: asyncio.Task[None] | None = None

    def start(self, owner: str) -> None:
        self._owner = owner
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        renew_at = 0.0
        while True:
            await asyncio.sleep(self._every_s)
            try:
                if loop.time() >= renew_at:
                    if not await self._store.acquire_lock(_LOCK, self._owner, _LOCK_S):
                        await asyncio.sleep(_LOCK_S / 6)
                        continue
                    renew_at = loop.time() + _LOCK_S / 3
                while await self.move() == _ROWS and loop.time() < renew_at:
                    pass
            except (PenstockError, OSError) as error:
                log.warning("the outbox is not moved now: %s", error)

    async def move(self) -> int:
        """Move the oldest rows. Return how many were looked at."""
        rows = await asyncio.to_thread(self._database.read, _oldest)
        by_queue: dict[QueueName, list[_Row]] = {}
        for row in rows:
            by_queue.setdefault(row.queue, []).append(row)
        moved: list[int] = []
        for queue, waiting in by_queue.items():
            try:
                moved += await self._publish(queue, waiting)
            except InvalidInput:
                for row in waiting:  # one of them is bad: each by itself
                    try:
                        moved += await self._publish(queue, [row])
                    except InvalidInput as error:
                        await asyncio.to_thread(self._set_aside, row.id, str(error))
            except (PenstockError, OSError) as error:
                log.warning("the outbox waits for queue %s: %s", queue, error)
        if moved:
            delete = "delete from outbox where id = any(%s)"
            work = lambda session: session.execute(delete, (moved,))  # noqa: E731
            await asyncio.to_thread(self._database.transact, work)
        return len(rows) if moved else 0

    async def _publish(self, queue: QueueName, rows: list[_Row]) -> list[int]:
        messages = [row.message() for row in rows]
        try:
            if any(message.after for message in messages):
                await self._check_after(queue, messages)
            await self._store.publish(queue, messages)
        except NoSuchMessage as error:  # one that it should come after
            raise InvalidInput(str(error)) from None
        except NoSuchQueue:
            try:
                await self._store.create(queue, self._new_settings(queue))
            except AlreadyExists:
                pass
            except QuotaExceeded as error:
                raise InvalidInput(str(error)) from None
            await self._store.publish(queue, messages)
        return [row.id for row in rows]

    async def _check_after(self, queue: QueueName, messages: list[NewMessage]) -> None:
        """Raise InvalidInput if a message comes after one of another queue: only a call to a broker
        makes it follow that one."""
        identity = (await self._store.info(queue)).identity
        for message in messages:
            for one in message.after or ():
                if parse_id(str(one))[1] != identity:
                    raise InvalidInput(
                        f"after names {one}, a message of another queue: a message of the outbox "
                        f"can only come after messages of its own queue"
                    )

    def _set_aside(self, id: int, reason: str) -> None:
        log.warning("a message of the outbox is refused: row %d: %s", id, reason)
        update = "update outbox set error = %s where id = %s"
        self._database.transact(lambda session: session.execute(update, (reason, id)))


def _oldest(session: Session) -> list[_Row]:
    rows = session.execute(
        "select id, namespace, queue, payload, options from outbox where error is null "
        "order by id limit %s",
        (_ROWS,),
    ).fetchall()
    return [_Row(id_, QueueName(space, name), bytes(data), o) for id_, space, name, data, o in rows]
