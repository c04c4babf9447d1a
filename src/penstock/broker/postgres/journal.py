"""Changes of files that are not in the database yet, and the statements that write them.

Each write has a version: the order of the writes of a file, also if a later one is committed first.
So a write can be sent again if the outcome of its commit is unknown.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from struct import Struct

from penstock.broker.postgres.database import Session

# A row with its header fits a page of the database: it is not split once more, into a side table.
MAX_CHUNK_BYTES = 8064
MAX_STATEMENT_BYTES = 16 << 20

_FENCE = "select from queue where id = %s and token = %s for share"
_FENCE_AGAIN = "update queue set repeats = repeats + 1 where id = %s and token = %s"
_WRITE_AGAIN = (
    "insert into chunk (queue, node, version, start, data) select %s, w.* from "
    "unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[]) as w(node, version, start, "
    "data) on conflict do nothing"
)
MAKE = (
    "insert into node (queue, id, parent, name, is_directory) values (%s, %s, %s, %s, %s) "
    "on conflict do nothing"
)
MOVE = "update node set parent = %s, name = %s where queue = %s and id = %s"
REMOVE = "delete from node where queue = %s and id = %s"
EMPTY = "delete from chunk where queue = %s and node = %s"
# Writes of several queues. Those of a queue whose token is out of date are left out.
WRITE = (
    "with fence as materialized (select f.id from unnest($1::bigint[], $2::bigint[]) as f(id, "
    "token), lateral (select from queue q where q.id = f.id and q.token = f.token for share) as l) "
    "insert into chunk (queue, node, version, start, data) select w.* from fence, "
    "unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[]) "
    "as w(queue, node, version, start, data) where w.queue = fence.id"
)


class Write:
    """A change of content: data from `start` on; without data, the file ends at `start`."""

    __slots__ = ("data", "node", "start", "version")

    def __init__(self, node: int, version: int, start: int, data: bytearray | None) -> None:
        self.node = node
        self.version = version
        self.start = start
        self.data = data


Change = Write | tuple[str, tuple[object, ...]]


class Commit:
    """Writes of one queue that are on their way to the database."""

    __slots__ = ("queue", "token", "writes")

    def __init__(self, queue: int, token: int, writes: "list[Write]") -> None:
        self.queue = queue
        self.token = token
        self.writes = writes


def values_of(commits: Iterable[Commit]) -> tuple[list[bytes], int]:
    """Return the values of `WRITE` in PostgreSQL's binary form, and the number of rows."""
    by_queue = sorted(commits, key=lambda commit: commit.queue)  # one order of locks
    tokens = {commit.queue: commit.token for commit in by_queue}
    rows = [(_int8(commit.queue), write) for commit in by_queue for write in commit.writes]
    values = [
        _array(_INT8, [_int8(queue) for queue in tokens]),
        _array(_INT8, [_int8(token) for token in tokens.values()]),
        _array(_INT8, [queue for queue, _ in rows]),
        _array(_INT8, [_int8(write.node) for _, write in rows]),
        _array(_INT8, [_int8(write.version) for _, write in rows]),
        _array(_INT8, [_int8(write.start) for _, write in rows]),
        _array(_BYTEA, [write.data for _, write in rows]),
    ]
    return values, len(rows)


def fence(session: Session, queue: int, token: int, *, is_repeat: bool) -> bool:
    """Lock a queue against takeovers until the commit. Return False if the token is out of date.

    A repetition writes, so that its commit waits for the standby.
    """
    statement = _FENCE_AGAIN if is_repeat else _FENCE
    return session.execute(statement, (queue, token)).rowcount == 1


def write_again(session: Session, queue: int, journal: Iterable[Change]) -> None:
    """Carry out changes of which some may have been carried out before."""
    for is_write, changes in groupby(journal, lambda change: isinstance(change, Write)):
        if is_write:
            for part in _parts(changes):  # type: ignore[arg-type]
                values = (
                    queue,
                    [write.node for write in part],
                    [write.version for write in part],
                    [write.start for write in part],
                    [write.data for write in part],
                )
                session.execute(_WRITE_AGAIN, values, binary=True)
            continue
        for change in changes:
            assert isinstance(change, tuple)
            session.execute(*change)


def _parts(changes: Iterator[Write]) -> Iterator[list[Write]]:
    """Split writes into statements of a moderate size."""
    part: list[Write] = []
    size = 0
    for write in changes:
        part.append(write)
        size += len(write.data or b"")
        if size >= MAX_STATEMENT_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


# -- PostgreSQL's binary form of values ------------------------------------------------------------

_INT8, _BYTEA = 20, 17  # numbers of the types
_ARRAY = Struct(">iiIii")  # dimensions, may have nulls, type; length and first index
_NULL = b"\xff\xff\xff\xff"


def _int8(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _array(kind: int, items: Sequence[bytes | bytearray | None]) -> bytes:
    parts = [_ARRAY.pack(1, 1, kind, len(items), 1)]
    for item in items:
        parts.append(_NULL if item is None else len(item).to_bytes(4, "big"))
        if item is not None:
            parts.append(bytes(item))
    return b"".join(parts)
