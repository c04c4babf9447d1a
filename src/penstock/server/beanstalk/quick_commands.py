"""Commands that need no coroutine: those about the connection itself, reserve, and what is done to
a job that the connection has reserved."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.broker import Outcome, Settlement
from penstock.server.beanstalk import jobs
from penstock.server.beanstalk.answers import Answer
from penstock.server.beanstalk.mapping import BURIED, RELEASED
from penstock.server.beanstalk.reserved_jobs import Job
from penstock.server.beanstalk.reserving import reserve

if TYPE_CHECKING:
    from penstock.server.beanstalk.connection import Connection

_MOST_WATCHED = 1000  # tubes of one connection
_DONE = {
    "release": b"RELEASED\r\n",
    "bury": b"BURIED\r\n",
    "touch": b"TOUCHED\r\n",
}


def _use(connection: "Connection", _: str, name: str) -> None:
    tube = connection.tubes.get(name)
    if tube is None:
        connection.refuse("BAD_FORMAT")
        return
    old, connection.used = connection.used, tube
    tube.using += 1
    old.using -= 1
    connection.tubes.dropped(old)
    _answer_used(connection, _)


def _answer_used(connection: "Connection", _: str) -> None:
    connection.answer(b"USING %s\r\n" % connection.used.name.encode())


def _watch(connection: "Connection", _: str, name: str) -> None:
    tube, watched = connection.tubes.get(name), connection.watched
    if tube is None:
        connection.refuse("BAD_FORMAT")
        return
    if tube not in watched:
        if len(watched) >= _MOST_WATCHED:
            connection.tubes.dropped(tube)
            connection.refuse("OUT_OF_MEMORY")
            return
        watched.append(tube)
        tube.watching += 1
    connection.answer(b"WATCHING %d\r\n" % len(watched))


def _ignore(connection: "Connection", _: str, name: str) -> None:
    tube, watched = connection.tubes.get(name), connection.watched
    if tube is None:
        connection.refuse("BAD_FORMAT")
        return
    if tube in watched:
        if len(watched) == 1:
            connection.refuse("NOT_IGNORED")
            return
        watched.remove(tube)
        tube.watching -= 1
    connection.tubes.dropped(tube)
    connection.answer(b"WATCHING %d\r\n" % len(watched))


def _quit(connection: "Connection", _: str) -> None:
    connection.end()


def _settle(connection: "Connection", name: str, id: int, *arguments: int) -> None:
    """Release, bury or touch a job."""
    job = connection.jobs.get(id)
    if job is None or job.is_by_id:
        connection.run(name, jobs.SLOW[name](connection, id, *arguments))
        return
    answer = Answer(connection, name, _make_settled, job)
    connection.expect(answer)
    try:
        if name != "touch":
            del connection.jobs[id]
        settlement = _settlement_of(job, name, arguments)
        answer.wait_for(connection.broker.settle(connection.caller, [settlement], answer))
    except Exception as error:
        answer.fail(error)


def _delete(connection: "Connection", name: str, id: int) -> None:
    """Delete a job: most often one that this connection has reserved."""
    job = connection.jobs.pop(id, None)
    if job is None or job.is_by_id:
        if job is not None:
            connection.jobs[id] = job
        connection.run(name, jobs.SLOW[name](connection, id))
        return
    job.tube.cmd_delete += 1
    answer = Answer(connection, name, _make_deleted)
    connection.expect(answer)
    read = job.read
    try:
        found = connection.broker.ack(connection.caller, read.pack(), read, answer)
        if found is not None:
            answer.wait_for(found)
    except Exception as error:
        answer.fail(error)


def _make_deleted(_: Answer, outcomes: list[Outcome]) -> bytes:
    status = outcomes[0][1]
    return b"DELETED\r\n" if status == "done" or outcomes[0].ok else b"NOT_FOUND\r\n"


def _settlement_of(job: Job, name: str, arguments: tuple[int, ...]) -> Settlement:
    if name == "bury":
        return Settlement("nack", job.receipt, reason=BURIED, dead=True)
    if name == "touch":
        return Settlement("extend", job.receipt, lease_s=job.ttr_s)
    delay_s = arguments[1]
    if delay_s:
        return Settlement("nack", job.receipt, reason=RELEASED, delay_s=delay_s)
    return Settlement("release", job.receipt)  # it returns to its place


def _make_settled(answer: Answer, outcomes: list[Any]) -> bytes:
    job: Job = answer.subject
    if not outcomes[0].ok:
        answer.connection.jobs.pop(job.id, None)
        return b"NOT_FOUND\r\n"
    if answer.command == "touch":
        job.ends = answer.connection.loop.time() + job.ttr_s
    return _DONE[answer.command]


QUICK: dict[str, Callable[..., None]] = {
    "use": _use,
    "watch": _watch,
    "ignore": _ignore,
    "list-tube-used": _answer_used,
    "quit": _quit,
    "reserve": reserve,
    "reserve-with-timeout": reserve,
    "delete": _delete,
    "release": _settle,
    "bury": _settle,
    "touch": _settle,
}
