"""Commands that ask the broker several times, each a coroutine that returns the answer.

A job is named by its id, in any tube. What needs that no other client holds it begins with a lease
of it, so that the broker decides: `LeaseMessage`.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock.broker import Settlement
from penstock.codec import parse_id
from penstock.errors import NoSuchMessage, NoSuchQueue
from penstock.model import LeasedMessage
from penstock.operations import (
    Browse,
    GetRetryInfo,
    GetStats,
    LeaseMessage,
    ListDead,
    Operation,
    Peek,
    Redrive,
    Row,
)
from penstock.server.beanstalk import statistics
from penstock.server.beanstalk.answers import with_body
from penstock.server.beanstalk.commands import MAX_U64
from penstock.server.beanstalk.mapping import BURIED, KICKED, ttr_s_of
from penstock.server.beanstalk.reserved_jobs import release_by_id
from penstock.server.beanstalk.tubes import Tube

if TYPE_CHECKING:
    from penstock.server.beanstalk.connection import Connection

NOT_FOUND = b"NOT_FOUND\r\n"
_PAGE = 1000
_MOST_KICKED = 100_000  # delayed jobs, by one command


# -- jobs that this connection has reserved --------------------------------------------------------


async def _release(connection: "Connection", id: int, pri: int, delay_s: int) -> bytes:
    job = connection.jobs.pop(id, None)
    if job is None:
        return NOT_FOUND
    return b"RELEASED\r\n" if await release_by_id(connection, job, delay_s) else NOT_FOUND


async def _bury(connection: "Connection", id: int, pri: int) -> bytes:
    job = connection.jobs.pop(id, None)
    if job is None:
        return NOT_FOUND
    nack = Settlement("nack", job.receipt, reason=BURIED, dead=True)
    return b"BURIED\r\n" if await connection.settle(nack) else NOT_FOUND


async def _touch(connection: "Connection", id: int) -> bytes:
    job = connection.jobs.get(id)
    if job is None:
        return NOT_FOUND
    if not await connection.settle(Settlement("extend", job.receipt, lease_s=job.ttr_s)):
        connection.jobs.pop(id, None)
        return NOT_FOUND
    job.ends = connection.loop.time() + job.ttr_s
    return b"TOUCHED\r\n"


# -- any job ---------------------------------------------------------------------------------------


async def _delete(connection: "Connection", id: int) -> bytes:
    job = connection.jobs.pop(id, None)
    if job is not None:
        receipt = job.receipt
        job.tube.cmd_delete += 1
    else:
        found = await connection.tubes.find(id)
        if found is None:
            return NOT_FOUND
        tube, seq = found
        tube.cmd_delete += 1
        leased = await _lease(connection, tube, seq)
        if leased is None:
            return NOT_FOUND
        receipt = leased.receipt
    return b"DELETED\r\n" if await connection.settle(Settlement("ack", receipt)) else NOT_FOUND


async def _reserve_job(connection: "Connection", id: int) -> bytes:
    connection.is_worker = True
    found = None if id in connection.jobs else await connection.tubes.find(id)
    if found is None:
        return NOT_FOUND
    tube, seq = found
    row = await _row(connection, tube, seq)
    if row is None:
        return NOT_FOUND
    ttr_s = ttr_s_of(row.message.headers)
    leased = await _lease(connection, tube, seq, ttr_s)
    if leased is None:
        return NOT_FOUND
    if connection.is_closed:
        connection.broker.give_back([leased])
        return NOT_FOUND
    job = connection.jobs.keep(leased, tube, ttr_s, connection.loop.time())
    job.is_by_id = True
    job.was_dead = row.state == "dead"
    body = leased.message.payload
    return b"RESERVED %d %d\r\n%s\r\n" % (id, len(body), body)


async def _kick_job(connection: "Connection", id: int) -> bytes:
    found = await connection.tubes.find(id)
    row = None if found is None else await _row(connection, *found)
    if found is None or row is None:
        return NOT_FOUND
    is_kicked = await _kick_row(connection, found[0], row)
    return b"KICKED\r\n" if is_kicked else NOT_FOUND


async def _kick_row(connection: "Connection", tube: Tube, row: Row) -> bool:
    if row.state == "dead":
        return bool(await _run(connection, tube, Redrive((row.message.id,))))
    if row.state != "scheduled":
        return False
    leased = await _lease(connection, tube, row.message.seq)
    if leased is None:
        return False
    nack = Settlement("nack", leased.receipt, reason=KICKED, delay_s=0.0)
    return await connection.settle(nack)


async def _kick(connection: "Connection", bound: int) -> bytes:
    """Kick buried jobs. If there are none, kick delayed ones, the first due first."""
    tube = connection.used
    bound = bound if bound >= 0 else MAX_U64
    if not bound or not connection.tubes.has_queue(tube):
        return b"KICKED 0\r\n"
    limit = min(bound, 1 << 60)
    kicked = await _run(connection, tube, Redrive(limit=limit))
    if not kicked:
        while kicked < min(bound, _MOST_KICKED):
            rows = await _delayed(connection, tube)
            if not rows:
                break
            for row in rows[: bound - kicked]:
                kicked += await _kick_row(connection, tube, row)
            if len(rows) < _PAGE:
                break
    return b"KICKED %d\r\n" % kicked


# -- looking ---------------------------------------------------------------------------------------


async def _peek(connection: "Connection", id: int) -> bytes:
    found = await connection.tubes.find(id)
    row = None if found is None else await _row(connection, *found)
    return NOT_FOUND if row is None else with_body(b"FOUND %d" % id, row.message.payload)


async def _peek_ready(connection: "Connection") -> bytes:
    rows = await _run_if_there(connection, Peek(1))
    return await _found(connection, rows or [])


async def _peek_delayed(connection: "Connection") -> bytes:
    if not connection.tubes.has_queue(connection.used):
        return NOT_FOUND
    return await _found(connection, await _delayed(connection, connection.used))


async def _peek_buried(connection: "Connection") -> bytes:
    """Return the job that was buried first, of the first thousand by id."""
    page = await _run_if_there(connection, ListDead(limit=_PAGE))
    if page is None or not page.letters:
        return NOT_FOUND
    first = min(page.letters, key=lambda letter: letter.last_failure_ns)
    row = await _row(connection, connection.used, first.message.seq)
    return await _found(connection, [] if row is None else [row])


async def _found(connection: "Connection", rows: list[Row]) -> bytes:
    if not rows:
        return NOT_FOUND
    tube, message = connection.used, rows[0].message
    id_ = await connection.tubes.job_id(tube, parse_id(message.id)[1], message.seq)
    return with_body(b"FOUND %d" % id_, message.payload)


async def _delayed(connection: "Connection", tube: Tube) -> list[Row]:
    """Return delayed jobs by the time that they are due; of the first thousand by id."""
    page = await _run(connection, tube, Browse("scheduled", limit=_PAGE))
    due: list[tuple[int, int, Row]] = []
    for row in page.rows:
        at_ns = row.message.deliver_at_ns
        if row.attempts:  # it was released with a delay
            try:
                info = await _run(connection, tube, GetRetryInfo(row.message.id))
            except NoSuchMessage:
                continue
            at_ns = info.next_attempt_ns
        due.append((at_ns, row.message.seq, row))
    return [row for _, _, row in sorted(due)]


async def _stats_job(connection: "Connection", id: int) -> bytes:
    found = await connection.tubes.find(id)
    row = None if found is None else await _row(connection, *found)
    if found is None or row is None:
        return NOT_FOUND
    return with_body(b"OK", await statistics.of_job(connection, found[0], id, row))


async def _stats_tube(connection: "Connection", name: str) -> bytes:
    tube = connection.tubes.get(name)
    if tube is None:
        return b"BAD_FORMAT\r\n"
    try:
        if not connection.tubes.exists(tube):
            return NOT_FOUND
        stats = None
        if connection.tubes.has_queue(tube):
            stats = await _run(connection, tube, GetStats())
        return with_body(b"OK", await statistics.of_tube(connection, tube, stats))
    finally:
        connection.tubes.dropped(tube)


async def _stats(connection: "Connection") -> bytes:
    return with_body(b"OK", await connection.statistics())


async def _list_tubes(connection: "Connection") -> bytes:
    return with_body(b"OK", statistics.as_list(connection.tubes.names()))


async def _list_watched(connection: "Connection") -> bytes:
    return with_body(b"OK", statistics.as_list([tube.name for tube in connection.watched]))


async def _pause_tube(connection: "Connection", name: str, seconds: int) -> bytes:
    tube = connection.tubes.get(name)
    if tube is None:
        return b"BAD_FORMAT\r\n"
    if not connection.tubes.exists(tube):
        connection.tubes.dropped(tube)
        return NOT_FOUND
    tube.cmd_pause += 1
    connection.tubes.pause(tube, seconds)
    return b"PAUSED\r\n"


# -- the broker ------------------------------------------------------------------------------------


async def _run(connection: "Connection", tube: Tube, operation: Operation[Any]) -> Any:
    return await connection.broker.run(connection.caller, operation, tube.queue)


async def _run_if_there(connection: "Connection", operation: Operation[Any]) -> Any:
    """Run an operation in the used tube; return None if it has no queue."""
    tube = connection.used
    return await _run(connection, tube, operation) if connection.tubes.has_queue(tube) else None


async def _row(connection: "Connection", tube: Tube, seq: int) -> Row | None:
    """Return a job in any state. None if it is done or was never there."""
    page = await _run(connection, tube, Browse(after_seq=seq - 1, limit=1))
    return page.rows[0] if page.rows and page.rows[0].message.seq == seq else None


async def _lease(
    connection: "Connection", tube: Tube, seq: int, ttr_s: float = 60.0
) -> LeasedMessage | None:
    """Lease a job by its seq, ready, delayed or buried. None if another client has it."""
    try:
        leased = await _run(connection, tube, LeaseMessage(seq, lease_s=ttr_s))
    except NoSuchQueue:
        return None
    return leased[0] if leased else None


SLOW: dict[str, Callable[..., Coroutine[Any, Any, bytes]]] = {
    "delete": _delete,
    "release": _release,
    "bury": _bury,
    "touch": _touch,
    "reserve-job": _reserve_job,
    "kick": _kick,
    "kick-job": _kick_job,
    "peek": _peek,
    "peek-ready": _peek_ready,
    "peek-delayed": _peek_delayed,
    "peek-buried": _peek_buried,
    "stats": _stats,
    "stats-job": _stats_job,
    "stats-tube": _stats_tube,
    "list-tubes": _list_tubes,
    "list-tubes-watched": _list_watched,
    "pause-tube": _pause_tube,
}
