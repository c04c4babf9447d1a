"""What SQS knows of a queue and Penstock does not: its delay, its dead-letter queue, its tags.

All records are one document of the store. A queue has one only if a client of SQS has set something
that is not a setting of the queue, or changed it later. A record names the identity of its queue:
it does not count for a later queue of that name.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from penstock.broker import Broker, QueueName
from penstock.broker.store import update_document
from penstock.errors import CorruptLedger
from penstock.model import NS
from penstock.server.sqs.errors import SqsError

DOCUMENT = "sqs.json"
MAX_DOCUMENT_BYTES = 16 << 20


class MoveTask(Struct, frozen=True, omit_defaults=True):
    """A redrive of dead letters that a client has started."""

    id: str
    started_ms: int
    rate_per_s: int  # 0: the client did not say
    to_move: int
    redrives: Mapping[str, str]  # the paced redrives, by the name of their queue
    destination: str = ""
    status: str = ""  # of one that was cancelled
    moved: int = 0  # until then


class Record(Struct, frozen=True, omit_defaults=True):
    """The record of one queue."""

    queue: tuple[str, str] = ("", "")
    identity: int = 0
    modified_s: int = 0
    delay_s: int = 0
    wait_s: int = 0
    max_bytes: int = 1 << 20
    dedups_by_content: bool = False
    dedups_by_group: bool = False
    has_group_throughput: bool = False
    dead_queue: str = ""  # in the same namespace
    allow_sources: dict[str, Any] = {}
    tags: dict[str, str] = {}
    tasks: tuple[MoveTask, ...] = ()


NO_RECORD = Record()
_decoder = msgspec.json.Decoder(list[Record])


class Records:
    """All records, in memory, kept up with the document."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._records: dict[QueueName, Record] = {}
        self._sources: dict[QueueName, list[QueueName]] = {}
        self._is_current = False
        self.turn = asyncio.Lock()  # one creation or change of a queue at a time
        broker.on_document_changed.append(self._on_document)
        broker.on_deleted.append(self._on_deleted)

    @property
    def is_current(self) -> bool:
        """Return whether the document has been read since it changed; else call `load`."""
        return self._is_current

    async def load(self) -> None:
        """Read the document if it was not read since it changed."""
        while not self._is_current:
            self._is_current = True  # before it is read: it may change meanwhile
            try:
                self._take(await self._broker.store.load_document(DOCUMENT))
            except BaseException:
                self._is_current = False
                raise

    def get(self, queue: QueueName) -> Record:
        """Return the record of a queue; NO_RECORD if it has none."""
        record = self._records.get(queue)
        if record is None or record.identity != self._broker.identity_of(queue):
            return NO_RECORD
        return record

    def sources(self, queue: QueueName) -> list[QueueName]:
        """Return the queues whose dead-letter queue this one is, sorted."""
        named = self._sources.get(queue)
        if not named:
            return []
        return [one for one in named if self.get(one).dead_queue == queue.name]

    async def change(self, queue: QueueName, identity: int, fields: Mapping[str, Any]) -> Record:
        """Change some fields of a record, or create it, durably."""
        return await self.edit(
            queue, identity, lambda record: msgspec.structs.replace(record, **fields)
        )

    async def edit(
        self, queue: QueueName, identity: int, edit: Callable[[Record], Record]
    ) -> Record:
        """Replace the record of a queue by what `edit` makes of it. It may be called again."""
        modified_s = self._broker.clock.now_ns() // NS

        def changed(old: bytes | None) -> bytes:
            records = _read(old)
            before = records.get(queue)
            if before is None or before.identity != identity:
                before = Record(queue, identity)
            records[queue] = msgspec.structs.replace(edit(before), modified_s=modified_s)
            return _write(records)

        self._take(await update_document(self._broker.store, DOCUMENT, changed))
        return self._records.get(queue, NO_RECORD)

    def _on_document(self, name: str) -> None:
        if name == DOCUMENT:
            self._is_current = False

    async def _on_deleted(self, queue: QueueName) -> None:
        """Remove the record of a queue that was deleted, unless there is a new one already."""
        await self.load()
        record = self._records.get(queue)
        if record is None or record.identity == self._broker.identity_of(queue):
            return

        def removed(old: bytes | None) -> bytes | None:
            records = _read(old)
            found = records.get(queue)
            if found is None or found.identity != record.identity:
                return old
            del records[queue]
            return _write(records)

        self._take(await update_document(self._broker.store, DOCUMENT, removed))

    def _take(self, document: bytes | None) -> None:
        self._records = _read(document)
        self._sources = {}
        for queue, record in sorted(self._records.items()):
            if record.dead_queue:
                target = QueueName(queue.namespace, record.dead_queue)
                self._sources.setdefault(target, []).append(queue)


def _read(document: bytes | None) -> dict[QueueName, Record]:
    try:
        records = _decoder.decode(document) if document else []
    except msgspec.MsgspecError as error:
        raise CorruptLedger(
            f"the broker's document {DOCUMENT} cannot be read ({error}): repair it, or move it "
            f"away to lose the delays, dead-letter queues and tags that SQS clients have set"
        ) from None
    return {QueueName(*record.queue): record for record in records}


def _write(records: Mapping[QueueName, Record]) -> bytes:
    document = msgspec.json.encode([*records.values()])
    if len(document) > MAX_DOCUMENT_BYTES:
        raise SqsError(
            "OverLimit",
            f"The attributes and tags of all queues together have {len(document)} bytes; the "
            f"maximum is {MAX_DOCUMENT_BYTES}.",
            403,
        )
    return document
