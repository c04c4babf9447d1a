"""Run jobs in child processes: for work that needs cores, and that must be ended in time.

A child imports the tasks, and runs one job at a time. The parent leases and settles, so a child
needs no queue. A job whose time is over is ended with its process, whatever it does. If a child
dies, by a fault or for lack of memory, only its job fails.
"""

import asyncio
import atexit
import contextlib
import logging
import signal
from collections.abc import Callable
from logging.handlers import QueueHandler
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from penstock.clock import SystemClock
from penstock.locks import Lock
from penstock.model import NS, LeasedMessage, Message, NewMessage, Ticket
from penstock.queue.progress import Said
from penstock.tasks.loading import load_tasks
from penstock.tasks.pending import runner_of
from penstock.tasks.progress import Report
from penstock.tasks.running import Runner
from penstock.worker import Done, Failed, TimeLimitExceeded
from penstock.worker.calling import OnEnd
from penstock.worker.outcomes import error_text

log = logging.getLogger("penstock.tasks")

_JOIN_S = 5.0  # for a child that was told to end
# Sent to the whole process group by systemd and by Ctrl-C. The parent stops, its children do not.
_GROUP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_reaping = Lock()  # a start reaps other children too: of two at once, one would miss the exit code


class _Job(NamedTuple):
    """What a child needs to know of a message."""

    message: tuple[Any, ...]
    headers: dict[str, str]
    group_name: str
    attempt: int


class _Outcome(NamedTuple):
    """What a child says of a job: it is done, or it failed."""

    failed: tuple[str, float | None, bool] | None  # reason, delay_s, dead
    emit: tuple[tuple[bytes, dict[str, Any]], ...]  # of what is done: payloads and options
    error: str = ""  # the child cannot run jobs


class ProcessDied(Exception):
    """The process that ran a job ended before the job did."""


# -- in the child ----------------------------------------------------------------------------------


class _ToParent(QueueHandler):
    """Sends log records to the parent, which logs them as its own."""

    def __init__(self, send: Callable[[object], None]) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._send = send

    def enqueue(self, record: logging.LogRecord) -> None:
        self._send(record)


def _serve(
    connection: Connection,
    target: str,
    queue_name: str,
    queue_max_attempts: int | None,
    log_level: int,
) -> None:
    """Run jobs until the connection is closed. The main function of a child."""
    for number in _GROUP_SIGNALS:
        # Not SIG_IGN: programs that a job starts would inherit it.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GROUP_SIGNALS)  # see `_start`
    sending = Lock()  # a job may report its progress in several threads

    def send(said: object) -> None:
        with sending:
            connection.send(said)

    def report(_: LeasedMessage, said: Said) -> None:
        send(said)

    try:
        runner = runner_of(
            load_tasks(target),
            queue_name,
            queue_max_attempts,
            report=report,
            in_child=True,
        )
    except Exception as error:
        connection.send(_Outcome(None, (), error_text(error)))
        return
    log.addHandler(_ToParent(send))
    log.setLevel(log_level)
    log.propagate = False
    connection.send(_Outcome(None, ()))
    with contextlib.suppress(EOFError, OSError):
        while True:
            job: _Job = connection.recv()
            message = Message(*job.message)._replace(headers=job.headers)
            ticket: Any = Ticket(0, 0, job.group_name, job.attempt, 0, 0, None)  # type: ignore[arg-type]
            leased = LeasedMessage(message, ticket)
            try:
                if runner.is_async(leased):
                    done = asyncio.run(runner.call_async(leased))
                else:
                    done = runner.call(leased)
            except Failed as failed:
                outcome = _Outcome((failed.reason, failed.delay_s, failed.dead), ())
            except BaseException as error:
                outcome = _Outcome((error_text(error), None, False), ())
            else:
                outcome = _Outcome(None, () if done is None else _packed(done))
            send(outcome)


def _packed(done: Done) -> tuple[tuple[bytes, dict[str, Any]], ...]:
    packed = []
    for one in done.emit:
        assert isinstance(one, NewMessage) and isinstance(one.payload, bytes)
        names = ("delay", "ttl", "dedup_id", "dedup_window_s")
        packed.append((one.payload, {name: getattr(one, name) for name in names}))
    return tuple(packed)


# -- in the parent ---------------------------------------------------------------------------------


class ProcessCaller:
    """Starts jobs in child processes: a `Caller` of a worker."""

    def __init__(
        self,
        target: str,
        queue_name: str,
        queue_max_attempts: int | None,
        count: int,
        runner: Runner,
        report: Report,
    ) -> None:
        """`runner` decides about jobs whose process could not: it was killed, or it died.

        `report` takes the progress that jobs report in their processes.
        """
        self.room = count
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[_RunningJob | None] = SimpleQueue()
        arguments = (target, queue_name, queue_max_attempts, log.getEffectiveLevel())
        self._seats = [
            _Seat(arguments, self._inbox, runner, report, self._ended) for _ in range(count)
        ]

    def start(self, argument: object, on_end: OnEnd) -> "_RunningJob":
        assert isinstance(argument, LeasedMessage)
        self.room -= 1
        job = _RunningJob(argument, self._loop, on_end)
        self._inbox.put(job)
        return job

    def close(self) -> None:
        """End the processes when their jobs are done. Those of a stop are by now."""
        for _ in self._seats:
            self._inbox.put(None)

    def join(self) -> None:
        """Wait until the processes have ended, after `close`. Those that do not end are killed."""
        for seat in self._seats:
            seat.join()

    def _ended(self, job: "_RunningJob", result: object, error: BaseException | None) -> None:
        """Report a job that ended. Called in the thread of a seat."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the stop did not wait
            self._loop.call_soon_threadsafe(self._tell, job, result, error)

    def _tell(self, job: "_RunningJob", result: object, error: BaseException | None) -> None:
        self.room += 1
        job.told(result, error)


class _RunningJob:
    """A job in a child process, or on its way to one."""

    def __init__(
        self, leased: LeasedMessage, loop: asyncio.AbstractEventLoop, on_end: OnEnd
    ) -> None:
        self.leased = leased
        self.began_s: float | None = None
        self.result: object = None
        self._loop = loop
        self._on_end = on_end
        self._lock = Lock()  # guards the fields below: the seat ends a job, or the loop kills it
        self._kill: Callable[[], None] | None = None
        self._interrupted: type[BaseException] | None = None
        self._is_withdrawn = False

    def begin(self, kill: Callable[[], None]) -> bool:
        """Note the start of the job. Return False if it must not start. Called by a seat."""
        with self._lock:
            if self._is_withdrawn or self._interrupted is not None:
                return False
            self._kill = kill
            self.began_s = self._loop.time()
            return True

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted is not None

    def end(self) -> None:
        """Stop interrupts: the process is about to be given another job."""
        with self._lock:
            self._kill = None

    def interrupt(self, error: type[BaseException]) -> None:
        with self._lock:
            self._interrupted = error
            if self._kill is not None:
                self._kill()

    def withdraw(self) -> bool:
        with self._lock:
            if self.began_s is not None or self._interrupted is not None:
                return False
            self._is_withdrawn = True
            return True

    def told(self, result: object, error: BaseException | None) -> None:
        """Take the outcome from a seat. Called in the loop."""
        if self._is_withdrawn:
            return
        if self._interrupted is not None:
            error = self._interrupted()
        self.result = result
        self._on_end(error)


class _Seat:
    """A thread of the parent with its child process, which is replaced when it died."""

    def __init__(
        self,
        arguments: tuple[str, str, int | None, int],
        inbox: "SimpleQueue[_RunningJob | None]",
        runner: Runner,
        report: Report,
        on_ended: Callable[[_RunningJob, object, BaseException | None], None],
    ) -> None:
        self._report = report
        self._arguments = arguments
        self._inbox = inbox
        self._runner = runner
        self._on_ended = on_ended
        self._process: Any = None
        self._is_ready = False  # the process has imported the tasks
        self._connection: Connection | None = None
        self._thread = Thread(target=self._work, name="penstock process", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            result: object = None
            error: Exception | None = None
            try:
                connection = self._connected()
                if job.begin(self._process.kill):
                    result = self._run(connection, job)
            except (EOFError, OSError):
                job.end()
                error = self._died()
                if not job.is_interrupted:
                    error = self._runner.failed(job.leased, error)
            except (TimeLimitExceeded, ProcessDied) as raised:
                error = self._runner.failed(job.leased, raised)
            except Exception as raised:
                error = raised
            finally:
                job.end()
            self._on_ended(job, result, error)
        self._end_process()

    def _run(self, connection: Connection, job: _RunningJob) -> Done | None:
        leased = self._runner.filled_in(job.leased)
        message = leased.message._replace(headers={})
        headers = dict(leased.message.headers)
        connection.send(_Job(tuple(message), headers, leased.group, leased.attempt))
        outcome = self._outcome_of(connection, job)
        if outcome.failed is not None:
            reason, delay_s, dead = outcome.failed
            raise Failed(reason, delay_s=delay_s, dead=dead)
        emit = [NewMessage(payload=payload, **options) for payload, options in outcome.emit]
        return Done(emit) if emit else None

    def _outcome_of(self, connection: Connection, job: _RunningJob) -> _Outcome:
        """Wait for the outcome of a job, and pass on its progress. End it when its time is over."""
        limit_s = self._runner.time_limit_of_any(job.leased)
        clock = SystemClock()
        ends_ns = None if limit_s is None else clock.monotonic_ns() + round(limit_s * NS)
        while True:
            left_s = None if ends_ns is None else max(ends_ns - clock.monotonic_ns(), 0) / NS
            if not connection.poll(left_s):
                job.end()
                self._process.kill()
                self._end_process()
                raise TimeLimitExceeded
            said: _Outcome | Said | logging.LogRecord = connection.recv()
            if isinstance(said, _Outcome):
                return said
            if isinstance(said, logging.LogRecord):
                log.handle(said)
                continue
            self._report(job.leased, said)

    def _connected(self) -> Connection:
        """Return the connection to the child; start one if there is none."""
        if self._connection is None or wait([self._process.sentinel], 0):
            self._end_process()
            self._connection = connection = self._start()
            ready: _Outcome = connection.recv()  # the tasks are imported: a time limit begins later
            self._is_ready = True
            if ready.error:
                self._end_process()
                raise ProcessDied(f"a child process could not import the tasks: {ready.error}")
        return self._connection

    def _start(self) -> Connection:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        resource_tracker.ensure_running()  # else `start` does it, and unblocks the signals
        # A child inherits what its thread has blocked: it starts without being ended by a signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
        try:
            with _reaping:
                self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        atexit.register(self._process.kill)  # multiprocessing would send SIGTERM, and wait
        theirs.close()
        return ours

    def _died(self) -> ProcessDied:
        code = self._end_process()
        how = f"by signal {-code}" if code is not None and code < 0 else f"with status {code}"
        return ProcessDied(f"the process of the job ended {how}")

    def _end_process(self) -> int | None:
        """End the child, if there is one. Return its exit code."""
        if self._connection is not None:
            self._connection.close()  # the child reads its end, and returns
            self._connection = None
        process, self._process = self._process, None
        self._is_ready = False
        if process is None:
            return None
        if not wait([process.sentinel], _JOIN_S):
            process.kill()
        atexit.unregister(process.kill)
        with _reaping:
            process.join()
            code: int | None = process.exitcode
            process.close()
        return code

    def join(self) -> None:
        """Wait for the end of the thread. Called in another one."""
        if not self._is_ready:
            with contextlib.suppress(AttributeError, ValueError):  # there is none, or it has ended
                self._process.kill()  # it still imports the tasks
        self._thread.join(2 * _JOIN_S)
