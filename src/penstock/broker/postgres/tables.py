"""Namespaces, queues, documents and locks as rows. Every call blocks, and is for a thread.

A change of the catalogue adds a row to `change` in the same transaction. Other brokers read these
rows in order. They are written one transaction at a time, so that their ids are in commit order.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.broker.postgres.database import Database, Session
from penstock.broker.postgres.membership import ALIVE
from penstock.broker.store import NamespaceInfo
from penstock.clock import Clock
from penstock.errors import (
    AlreadyExists,
    NoSuchNamespace,
    NotEmpty,
    QuotaExceeded,
    Unavailable,
)
from penstock.names import QueueName

_CHANGES_LOCK = 0  # the brokers' locks have the numbers of the brokers, from 1 on
_NAMESPACE = "name, created_at_ns, defaults, max_queues, max_bytes"


class BeingMade(Unavailable):
    """Another broker is creating the queue at this moment."""


class QueueRow(NamedTuple):
    """A queue, as the catalogue has it."""

    queue: QueueName
    id: int
    identity: int
    size_bytes: int


class Change(NamedTuple):
    """A change of the catalogue: how the namespace or queue is now; None if it was deleted."""

    kind: str
    name: str
    namespace: NamespaceInfo | None = None
    queue: QueueRow | None = None


class Tables:
    """The catalogue of one schema."""

    def __init__(self, database: Database, clock: Clock | None) -> None:
        """`clock`: the clock of the locks, for tests; None: that of the database."""
        self._database = database
        self._clock = clock

    # -- reading -----------------------------------------------------------------------------------

    def catalogue(self) -> tuple[int, list[NamespaceInfo], list[QueueRow]]:
        """Return the number of the last change, and the whole catalogue after it."""

        def read(session: Session) -> tuple[int, list[NamespaceInfo], list[QueueRow]]:
            last = session.one("select coalesce(max(id), 0) from change")[0]
            return last, _namespaces(session), _queues(session, None)

        return self._database.read(read)

    def changes_since(self, last: int) -> tuple[int, list[Change]]:
        """Return the number of the last change, and the changes since an earlier one."""

        def read(session: Session) -> tuple[int, list[Change]]:
            query = "select id, kind, name from change where id > %s order by id"
            rows = session.execute(query, (last,)).fetchall()
            if not rows:
                return last, []
            spaces = {one.name: one for one in _namespaces(session)}
            names = [name for _, kind, name in rows if kind == "queue"]
            queues = {str(one.queue): one for one in _queues(session, names)} if names else {}
            found = [
                Change(
                    kind,
                    name,
                    spaces.get(name) if kind == "namespace" else None,
                    queues.get(name) if kind == "queue" else None,
                )
                for _, kind, name in rows
            ]
            return rows[-1][0], found

        return self._database.read(read)

    def forget_old_changes(self) -> None:
        """Delete changes that every broker has seen: one that is further behind reads all anew."""
        delete = "delete from change where at < clock_timestamp() - interval '1 hour'"
        self._database.transact(lambda session: session.execute(delete))

    def find(self, identity: int) -> QueueName | None:
        query = "select namespace, name from queue where identity = %s and is_made"
        row = self._database.read(lambda session: session.one(query, (identity,)))
        return None if row is None else QueueName(*row)

    # -- namespaces --------------------------------------------------------------------------------

    def replace_namespace(self, old: NamespaceInfo | None, new: NamespaceInfo) -> bool:
        def work(session: Session) -> bool:
            if old is None:
                return _add_namespace(session, new)
            query = f"select {_NAMESPACE} from namespace where name = %s for update"
            row = session.one(query, (new.name,))
            if row is None or _namespace(row) != old:
                return False
            session.execute(
                "update namespace set created_at_ns = %s, defaults = %s, max_queues = %s, "
                "max_bytes = %s where name = %s",
                (new.created_at_ns, json.dumps(dict(new.defaults)), *new[3:], new.name),
            )
            _note(session, "namespace", new.name)
            return True

        return self._database.transact(work)

    def queues_of(self, name: str) -> list[QueueName]:
        """Return the queues of a namespace; raise NoSuchNamespace if there is none."""

        def read(session: Session) -> list[QueueName]:
            if session.one("select from namespace where name = %s", (name,)) is None:
                raise NoSuchNamespace(f"there is no namespace {name!r}")
            query = "select name from queue where namespace = %s and is_made order by name"
            return [QueueName(name, row[0]) for row in session.execute(query, (name,))]

        return self._database.read(read)

    def delete_namespace(self, name: str) -> None:
        """Delete an empty namespace; raise NotEmpty if a queue was created meanwhile."""

        def work(session: Session) -> None:
            session.one("select from namespace where name = %s for update", (name,))
            held = session.one("select count(*) from queue where namespace = %s", (name,))[0]
            if held:
                raise NotEmpty(f"namespace {name!r} has {held} queues: delete them first")
            session.execute("delete from namespace where name = %s", (name,))
            _note(session, "namespace", name)

        self._database.transact(work)

    # -- queues ------------------------------------------------------------------------------------

    def reserve(
        self, queue: QueueName, owner: int, now_ns: int, identity: int | None = None
    ) -> None:
        """Add the row of a queue that `owner` is about to create, within its quotas.

        Other brokers do not see it before `made`. Raise BeingMade if another broker creates it.
        `identity`: that of a queue that is moved here; a new one is random.
        """

        def work(session: Session) -> None:
            name = queue.namespace
            _add_namespace(session, NamespaceInfo(name, now_ns, {}))
            query = "select max_queues, max_bytes from namespace where name = %s for update"
            quotas = session.one(query, (name,))
            if quotas is None:  # another broker deleted it in between
                raise BeingMade(f"namespace {name!r} was deleted a moment ago: try again")
            max_queues, max_bytes = quotas
            row = session.one(
                f"select q.id, is_made, b.number from queue q left join broker b on "
                f"b.number = q.owner and q.owner <> %s and {ALIVE} "
                f"where namespace = %s and name = %s",
                (owner, session.server, *queue),
            )
            if row is not None:
                if row[1]:
                    raise AlreadyExists(f"there is a queue {queue} already")
                if row[2] is not None:
                    raise BeingMade(f"queue {queue} is being created: try again in a moment")
                _delete(session, row[0])  # the broker that created it died in the middle
            count, held = session.one(
                "select count(*), coalesce(sum(size_bytes), 0) from queue where namespace = %s",
                (name,),
            )
            if max_queues and count >= max_queues:
                raise QuotaExceeded(
                    f"namespace {name!r} has {max_queues} queues, its quota (max_queues)"
                )
            if max_bytes and held >= max_bytes:
                raise QuotaExceeded(
                    f"the queues of namespace {name!r} hold {held} bytes, and may hold "
                    f"{max_bytes}: consume and compact, or raise max_bytes"
                )
            while True:  # random, taken with a chance of 1 in 2^32 for each queue
                done = session.execute(
                    "insert into queue (namespace, name, identity, owner) values (%s, %s, %s, %s) "
                    "on conflict (identity) do nothing",
                    (*queue, secrets.randbits(32) if identity is None else identity, owner),
                )
                if done.rowcount:
                    return
                if identity is not None:
                    raise AlreadyExists(f"there is a queue with the identity {identity:08x}")

        self._database.transact(work)

    def made(self, queue: QueueName) -> None:
        """Let the other brokers see a new queue."""

        def work(session: Session) -> None:
            update = "update queue set is_made = true where namespace = %s and name = %s"
            session.execute(update, queue)
            _note(session, "queue", str(queue))

        self._database.transact(work)

    def abandon(self, queue: QueueName, owner: int) -> None:
        """Delete the row of a queue whose creation by `owner` failed, if the others do not see it.

        They do if the outcome of `made` was unknown, or another broker has created it meanwhile.
        """
        query = (
            "select id from queue where namespace = %s and name = %s and owner = %s "
            "and not is_made for update"
        )

        def work(session: Session) -> None:
            row = session.one(query, (*queue, owner))
            if row is not None:
                _delete(session, row[0])

        self._database.transact(work)

    def delete_queue(self, queue: QueueName) -> None:
        def work(session: Session) -> None:
            query = "select id from queue where namespace = %s and name = %s for update"
            row = session.one(query, queue)
            if row is not None:
                _delete(session, row[0])
                _note(session, "queue", str(queue))

        self._database.transact(work)

    def save_sizes(self, owner: int, sizes: Mapping[QueueName, int]) -> None:
        """Note what the queues of a broker hold, for the quotas of the other brokers."""
        self._database.transact(
            lambda session: session.execute(
                "update queue set size_bytes = s.size from unnest(%s::text[], %s::text[], "
                "%s::bigint[]) as s(namespace, name, size) where queue.namespace = s.namespace "
                "and queue.name = s.name and owner = %s and size_bytes <> s.size",
                (
                    [queue.namespace for queue in sizes],
                    [queue.name for queue in sizes],
                    list(sizes.values()),
                    owner,
                ),
            )
        )

    def sizes_of(self, namespaces: Iterable[str]) -> list[QueueRow]:
        """Return the queues of some namespaces."""

        def read(session: Session) -> list[QueueRow]:
            wanted = set(namespaces)
            return [one for one in _queues(session, None) if one.queue.namespace in wanted]

        return self._database.read(read)

    # -- documents and locks -----------------------------------------------------------------------

    def load_document(self, name: str) -> bytes | None:
        query = "select content from document where name = %s"
        row = self._database.read(lambda session: session.one(query, (name,)))
        return None if row is None else bytes(row[0])

    def documents(self) -> dict[str, bytes]:
        """Return all documents, by name."""
        query = "select name, content from document"
        rows = self._database.read(lambda session: session.execute(query).fetchall())
        return {name: bytes(content) for name, content in rows}

    def outbox_rows(self) -> int:
        """Return the rows of the outbox that are in no queue yet."""
        query = "select count(*) from outbox"
        found: int = self._database.read(lambda session: session.one(query)[0])
        return found

    def replace_document(self, name: str, old: bytes | None, new: bytes | None) -> bool:
        def work(session: Session) -> bool:
            if old is None and new is not None:
                done = session.execute(
                    "insert into document values (%s, %s) on conflict do nothing", (name, new)
                )
            elif old is None:
                return session.one("select from document where name = %s", (name,)) is None
            elif new is None:
                delete = "delete from document where name = %s and content = %s"
                done = session.execute(delete, (name, old))
            else:
                update = "update document set content = %s where name = %s and content = %s"
                done = session.execute(update, (new, name, old))
            if not done.rowcount:
                return False
            if new != old:
                _note(session, "document", name)
            return True

        return self._database.transact(work)

    def acquire_lock(self, name: str, owner: str, for_s: float) -> bool:
        """Take a lock, or renew it, until a time by the database's clock.

        A lock that ends far in the future is of the time before that clock was set back.
        """
        now = None if self._clock is None else _as_time(self._clock)

        def work(session: Session) -> bool:
            done = session.execute(
                "insert into lock as old (name, owner, ends_at) values (%s, %s, "
                "coalesce(%s, clock_timestamp()) + make_interval(secs => %s)) "
                "on conflict (name) do update set owner = excluded.owner, "
                "ends_at = excluded.ends_at "
                "where old.owner = excluded.owner or old.ends_at <= coalesce(%s, clock_timestamp())"
                " or old.ends_at > coalesce(%s, clock_timestamp()) + make_interval(secs => %s)",
                (name, owner, now, for_s, now, now, 2 * for_s),
            )
            return done.rowcount == 1

        return self._database.transact(work)

    def release_lock(self, name: str, owner: str) -> None:
        delete = "delete from lock where name = %s and owner = %s"
        self._database.transact(lambda session: session.execute(delete, (name, owner)))


def _note(session: Session, kind: str, name: str) -> None:
    """Tell the other brokers of a change, when it is committed."""
    lock = "select pg_advisory_xact_lock(hashtext(current_schema()), %s)"
    session.execute(lock, (_CHANGES_LOCK,))
    session.execute("insert into change (kind, name) values (%s, %s)", (kind, name))


def _namespaces(session: Session) -> list[NamespaceInfo]:
    rows = session.execute(f"select {_NAMESPACE} from namespace order by name")
    return [_namespace(row) for row in rows]


def _namespace(row: tuple[str, int, str, int, int]) -> NamespaceInfo:
    name, created_at_ns, defaults, max_queues, max_bytes = row
    return NamespaceInfo(name, created_at_ns, json.loads(defaults), max_queues, max_bytes)


def _add_namespace(session: Session, new: NamespaceInfo) -> bool:
    done = session.execute(
        f"insert into namespace ({_NAMESPACE}) values (%s, %s, %s, %s, %s) on conflict do nothing",
        (new.name, new.created_at_ns, json.dumps(dict(new.defaults)), *new[3:]),
    )
    if not done.rowcount:
        return False
    _note(session, "namespace", new.name)
    return True


def _queues(session: Session, names: list[str] | None) -> list[QueueRow]:
    """Return the queues with some names, written namespace/name; None: all."""
    query = "select namespace, name, id, identity, size_bytes from queue where is_made"
    if names is not None:
        query += " and namespace || '/' || name = any(%(names)s)"
    rows = session.execute(query, {"names": names}).fetchall()
    return [QueueRow(QueueName(*row[:2]), *row[2:]) for row in rows]


def _delete(session: Session, id: int) -> None:
    session.execute("delete from chunk where queue = %s", (id,))
    session.execute("delete from queue where id = %s", (id,))


def _as_time(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.now_ns() / 1e9, UTC)
