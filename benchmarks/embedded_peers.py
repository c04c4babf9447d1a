"""The libraries of the embedded benchmark behind one interface, each used as its manual says.

Syncing is off in every library that has the choice; `embedded.py` says what each one does anyway.
A library implements only the calls that it supports.
"""

import os
import sqlite3
from typing import Any, Protocol


class Peer(Protocol):
    """What every peer can do."""

    def put(self, payload: bytes) -> object: ...

    def get(self) -> object: ...


class Queuelib:
    def __init__(self, directory: str) -> None:
        from queuelib import FifoDiskQueue

        queue = FifoDiskQueue(directory)
        self.put, self.get = queue.push, queue.pop


class PersistQueueFile:
    def __init__(self, directory: str) -> None:
        from persistqueue import Queue

        queue = Queue(directory, tempdir=directory)
        self.put, self.get = queue.put, queue.get


class PersistQueueSqlite:
    def __init__(self, directory: str) -> None:
        from persistqueue import FIFOSQLiteQueue

        queue = FIFOSQLiteQueue(directory)
        self.put, self.get = queue.put, queue.get


class PersistQueueAck:
    def __init__(self, directory: str) -> None:
        from persistqueue import FIFOSQLiteAckQueue

        self._queue = FIFOSQLiteAckQueue(directory)
        self.put, self.get = self._queue.put, self._queue.get

    def lease_and_ack(self) -> None:
        self._queue.ack(self._queue.get())


class Litequeue:
    def __init__(self, directory: str) -> None:
        from litequeue import LiteQueue

        self._queue = LiteQueue(os.path.join(directory, "queue.db"))

    def put(self, payload: bytes) -> None:
        self._queue.put(payload.decode("latin-1"))  # it takes text

    def get(self) -> None:
        self.lease_and_ack()  # there is no get without

    def lease_and_ack(self) -> None:
        self._queue.done(self._queue.pop().message_id)


class DiskcacheDeque:
    def __init__(self, directory: str) -> None:
        from diskcache import Cache, Deque

        queue = Deque.fromcache(Cache(directory, eviction_policy="none", sqlite_synchronous=0))
        self.put, self.get = queue.append, queue.popleft


class HueySqlite:
    def __init__(self, directory: str) -> None:
        from huey.storage import SqliteStorage

        queue = SqliteStorage(filename=os.path.join(directory, "huey.db"), fsync=False)
        self.put, self.get = queue.enqueue, queue.dequeue


class RawSqlite:
    """What one would write by hand: a table, a statement a call, WAL, synchronous=OFF."""

    def __init__(self, directory: str) -> None:
        path = os.path.join(directory, "queue.db")
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute(
            "CREATE TABLE queue (seq INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB, lease REAL)"
        )
        self._first = 1  # a leased one is passed over by seq, not searched for

    def put(self, payload: bytes) -> None:
        self._db.execute("INSERT INTO queue (payload) VALUES (?)", (payload,))

    def put_many(self, payloads: list[bytes]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO queue (payload) VALUES (?)", [(p,) for p in payloads])
        self._db.execute("COMMIT")

    def get(self) -> Any:
        return self.get_many(1)

    def get_many(self, count: int) -> list[Any]:
        return self._db.execute(
            "DELETE FROM queue WHERE seq IN (SELECT seq FROM queue ORDER BY seq LIMIT ?)"
            " RETURNING seq, payload",
            (count,),
        ).fetchall()

    def lease_and_ack(self) -> None:
        self.lease_and_ack_many(1)

    def lease_and_ack_many(self, count: int) -> None:
        leased = self._db.execute(
            "UPDATE queue SET lease = 1 WHERE seq IN"
            " (SELECT seq FROM queue WHERE lease IS NULL ORDER BY seq LIMIT ?)"
            " RETURNING seq, payload",
            (count,),
        ).fetchall()
        first, last = leased[0][0], leased[-1][0]
        self._db.execute("DELETE FROM queue WHERE seq BETWEEN ? AND ?", (first, last))


class RawLmdb:
    """A queue by hand over LMDB: seq as the key, appended; the first one taken; no sync."""

    def __init__(self, directory: str) -> None:
        import lmdb

        self._env = lmdb.open(
            directory, map_size=16 << 30, sync=False, metasync=False, writemap=True, map_async=True
        )
        self._next = 0

    def put(self, payload: bytes) -> None:
        self.put_many([payload])

    def put_many(self, payloads: list[bytes]) -> None:
        first = self._next
        items = [(n.to_bytes(8, "big"), p) for n, p in enumerate(payloads, first)]
        with self._env.begin(write=True) as transaction:
            transaction.cursor().putmulti(items, append=True)
        self._next = first + len(payloads)

    def get(self) -> bytes:
        return self.get_many(1)[0]

    def get_many(self, count: int) -> list[bytes]:
        found = []
        with self._env.begin(write=True) as transaction:
            cursor = transaction.cursor()
            if cursor.first():
                while len(found) < count:
                    found.append(cursor.value())
                    if not cursor.delete():  # goes on to the next
                        break
        return found


PEERS: dict[str, type[Any]] = {
    "queuelib": Queuelib,
    "persist-queue file": PersistQueueFile,
    "persist-queue SQLite": PersistQueueSqlite,
    "persist-queue ack": PersistQueueAck,
    "litequeue": Litequeue,
    "diskcache": DiskcacheDeque,
    "huey SQLite": HueySqlite,
    "SQLite by hand": RawSqlite,
    "LMDB by hand": RawLmdb,
}
