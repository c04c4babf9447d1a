"""A database as the source or target of a move; see `penstock.broker.moving`.

The program that moves is a member of the cluster as a broker is, and owns the queues that it reads
or writes. So a broker that is started in the meantime cannot use them.
"""

from penstock.broker.moving import MARK, Copy
from penstock.broker.postgres import scheduled_queues, schema
from penstock.broker.postgres.caches import Caches
from penstock.broker.postgres.database import Database
from penstock.broker.postgres.membership import Membership
from penstock.broker.postgres.scheduled_queues import as_document
from penstock.broker.postgres.tables import Tables
from penstock.broker.store import NamespaceInfo
from penstock.checking import without_password
from penstock.clock import SystemClock
from penstock.errors import BrokerError, NotEmpty
from penstock.ledger.files import Files
from penstock.model import NS
from penstock.names import QueueName

_KEEP_NS = 2 * NS
_ADDRESS = "penstock-migrate-store:0"


class DatabaseSite:
    """One schema of a database."""

    def __init__(self, url: str, *, schema: str = "penstock", cache: str | None = None) -> None:
        """`cache`: the directory that holds copies of the files; None: that of temporary files."""
        self.name = f"{without_password(url)} (schema {schema})"
        self._clock = SystemClock()
        self._database = Database(url, schema=schema)
        self._tables = Tables(self._database, None)
        self._membership = Membership(self._database)
        self._caches = Caches(
            self._database,
            self._membership,
            cache,
            _ignore,
            _ignore,
            self._tables.made,
            self._tables.delete_queue,
        )
        self._kept_ns = 0

    def open(self, *, create: bool) -> None:
        try:
            (schema.migrate if create else schema.check)(self._database)
            rows = 0 if create else self._tables.outbox_rows()
            if rows:
                raise NotEmpty(
                    f"{rows} messages are in the outbox of {self.name} and in no queue yet: let a "
                    f"broker publish them, and delete those with an error"
                )
            self._refuse_brokers()  # before they see a member, which they would give queues to
            self._caches.open()
            self._membership.join(_ADDRESS)
            self._refuse_brokers()
            if not create:
                for queue in self.queues():
                    self._membership.take(queue)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        try:
            self._membership.leave()
        finally:
            self._caches.close()
            self._database.close()

    def keep(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._kept_ns >= _KEEP_NS:
            self._membership.renew()
            self._refuse_brokers()
            self._kept_ns = now_ns

    def _refuse_brokers(self) -> None:
        others = self._membership.others()
        if others:
            raise BrokerError(
                f"{len(others)} brokers use {self.name} (one is at {others[0]}): stop them first"
            )

    # -- what it holds -----------------------------------------------------------------------------

    def namespaces(self) -> list[NamespaceInfo]:
        return self._tables.catalogue()[1]

    def save_namespace(self, namespace: NamespaceInfo) -> None:
        known = {one.name: one for one in self.namespaces()}
        self._tables.replace_namespace(known.get(namespace.name), namespace)

    def queues(self) -> list[QueueName]:
        return sorted(row.queue for row in self._tables.catalogue()[2])

    def enter(self, queue: QueueName) -> tuple[str, Files]:
        return self._caches.enter(queue)

    def leave(self, queue: QueueName) -> None:
        self._caches.leave(queue, 0)

    def add(self, queue: QueueName, identity: int, copy: Copy) -> None:
        number = self._membership.number
        self._tables.reserve(queue, number, self._clock.now_ns(), identity)
        path, files = self._caches.enter(queue)
        try:
            size_bytes = copy(path, files)
        finally:
            self._caches.leave(queue, 0)
        self._tables.made(queue)
        self._tables.save_sizes(number, {queue: size_bytes})

    def documents(self) -> dict[str, bytes]:
        return self._tables.documents()

    def save_document(self, name: str, content: bytes | None) -> None:
        self._tables.replace_document(name, self._tables.load_document(name), content)
        if name == MARK and content is None and self.queues():
            # Brokers look into each queue once, to find those with schedules.
            self.save_document(scheduled_queues.DOCUMENT, as_document(self.queues()))


def _ignore(queue: QueueName) -> None:
    """Do nothing when a queue takes no more writes: the write raises an error as well."""
