"""Commits the writes of all queues of a round in one statement, without threads.

A few connections take turns, so that a round is sent while the one before waits for the database's
disk and its standby; the database flushes them together. A thread that waited would need the
interpreter's lock to go on, up to 5 ms beside a busy event loop.

Later commits may become durable before earlier ones, as on a disk that reorders writes. So a queue
is told in order, and after a failure none of its later commits counts.

If anything fails, the writes are sent again by a thread, until their outcome is known.
"""

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import psycopg

from penstock.broker.embedded.open_queue import OpenQueue
from penstock.broker.postgres.database import Database, Session, one_line
from penstock.broker.postgres.files import PostgresFiles
from penstock.broker.postgres.journal import WRITE, Commit, values_of
from penstock.errors import PenstockError, Unavailable
from penstock.ledger.ledger import PendingSync
from penstock.locks import Lock

log = logging.getLogger("penstock.broker")

MAX_ROUNDS = 3
_RECONNECT_S = 0.5
_LOOK_S = 0.2
_ANSWER_S = 10.0  # for a commit; then it is sent again on another connection


class _Part:
    """The writes of one queue in a round."""

    def __init__(
        self,
        files: PostgresFiles,
        commit: Commit,
        pending: PendingSync,
        done: Callable[[Exception | None], None],
    ) -> None:
        self.files = files
        self.commit = commit
        self.pending = pending
        self.done = done
        self.is_over = False
        self.error: Exception | None = None


class Committer:
    """The connections on which rounds are committed. Everything is called in the event loop."""

    def __init__(self, database: Database, max_rounds: int = MAX_ROUNDS) -> None:
        self.max_rounds = max_rounds
        self._database = database
        self._idle: list[Lane] = []
        self._lanes: set[Lane] = set()
        self._lock = Lock()
        self._sessions: set[Session] = set()  # those of the lanes, and one that is about to be
        self._parts: dict[PostgresFiles, deque[_Part]] = {}  # under way, oldest first
        self._tasks: set[asyncio.Future[None]] = set()
        self._is_open = False

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        for _ in range(self.max_rounds):
            try:
                await self._connect()
            except (psycopg.Error, PenstockError):
                self._run(self._reconnect())  # rounds are committed by threads until then

    async def close(self) -> None:
        """Close the connections. No round may be under way."""
        with self._lock:
            self._is_open = False
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        self._idle.clear()
        for lane in self._lanes:
            lane.close()
        for session in self._sessions:
            session.connection.close()
        self._lanes.clear()
        self._sessions.clear()

    async def _connect(self) -> None:
        lane = Lane(self._loop, await asyncio.to_thread(self._connected))
        self._lanes.add(lane)
        self._idle.append(lane)

    def _connected(self) -> Session:
        """Connect, in a thread: the task that waits for it may be cancelled."""
        session = self._database.connect()
        try:
            session.prepare(WRITE)
            with self._lock:
                if not self._is_open:
                    raise Unavailable("the store is closed")
                self._sessions.add(session)
        except BaseException:
            session.connection.close()
            raise
        return session

    async def _reconnect(self) -> None:
        while self._is_open:
            try:
                await self._connect()
                return
            except (psycopg.Error, PenstockError):
                await asyncio.sleep(_RECONNECT_S)

    # -- rounds ------------------------------------------------------------------------------------

    def start(
        self,
        queues: Sequence[OpenQueue],
        done: Callable[[int, Exception | None], None],
        *,
        few: bool,
    ) -> Sequence[int]:
        """Commit the writes of queues, however few; see `commit_loop.Committer`."""
        if not self._idle:
            return range(len(queues))
        lane = self._idle.pop()
        refused: list[int] = []
        parts: list[_Part] = []
        for index, queue in enumerate(queues):
            try:
                part = self._begin(queue, lane.session.server, partial(done, index))
            except Exception as error:  # the ledger has stopped
                self._loop.call_soon(done, index, error)
                continue
            if part is None:
                refused.append(index)
            else:
                parts.append(part)
        commits = [part.commit for part in parts if part.commit.writes]
        if commits:
            values, rows = values_of(commits)
            lane.send(WRITE, values, partial(self._answered, lane, parts, rows))
        else:
            self._idle.append(lane)
            self._loop.call_soon(self._over, parts)
        return refused

    def _begin(
        self, queue: OpenQueue, server: str, done: Callable[[Exception | None], None]
    ) -> _Part | None:
        pending = queue.begin_sync()
        if pending is None:
            return None
        files = queue.core.ledger.root.files
        assert isinstance(files, PostgresFiles)
        commit = files.journal.begin_commit(server)
        if commit is None:
            return None
        part = _Part(files, commit, pending, done)
        self._parts.setdefault(files, deque()).append(part)
        return part

    def _answered(
        self, lane: "Lane", parts: list[_Part], rows: int, outcome: int | psycopg.Error
    ) -> None:
        """End a round whose statement was answered."""
        if outcome == rows:
            self._idle.append(lane)
            self._over(parts)
            return
        if isinstance(outcome, int | psycopg.errors.UniqueViolation):
            # Another broker took one of the queues over, or a thread wrote the same.
            self._idle.append(lane)
        else:
            log.warning("a commit is sent again: %s", one_line(outcome))
            self._lanes.discard(lane)
            with self._lock:
                self._sessions.discard(lane.session)
            lane.close()
            self._run(self._reconnect())
        for part in parts:
            self._run(self._send_again(part))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_again(self, part: _Part) -> None:
        try:
            await asyncio.to_thread(part.files.journal.send_again, part.commit)
        except Exception as error:
            part.error = error
        self._over([part])

    def _over(self, parts: list[_Part]) -> None:
        """Tell the queues, each in the order of its commits."""
        for part in parts:
            part.is_over = True
            waiting = self._parts[part.files]
            while waiting and waiting[0].is_over:
                self._tell(waiting.popleft())
            if not waiting:
                del self._parts[part.files]

    def _tell(self, part: _Part) -> None:
        part.files.journal.end_commit(part.commit)
        failure = part.files.journal.failure
        if part.error is None and failure is not None:  # an earlier commit is missing
            part.error = OSError(errno.EIO, failure)
        try:
            if part.error is None:
                part.pending.end()
            elif isinstance(part.error, OSError):
                part.error = part.pending.fail(part.error)
        except Exception as error:
            part.error = error
        part.done(part.error)


class Lane:
    """A connection with one statement under way at a time.

    The loop tells when the socket is readable. It watches the socket from one statement to the
    next: to begin and to end that for each takes four system calls. A timer looks at the socket as
    well: if a connection is reset, uvloop calls a reader once or not at all, although more is to be
    read.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, session: Session, answer_s: float = _ANSWER_S
    ) -> None:
        """`answer_s`: a connection that is silent for longer counts as broken."""
        self.session = session
        self._answer_s = answer_s
        self._ends_at = 0.0
        self._loop = loop
        # A number of its own: libpq closes its socket when the connection breaks, and the next
        # connection may get the same number while the loop still watches it.
        self._socket = os.dup(session.connection.fileno())
        self._is_reading = False
        self._is_writing = False
        self._looking: asyncio.TimerHandle | None = None
        self._on_answer: Callable[[int | psycopg.Error], None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether a statement is under way."""
        return self._on_answer is not None

    def close(self) -> None:
        """Close the connection. No statement may be under way."""
        self._stop_reading()
        if self._socket >= 0:
            os.close(self._socket)
            self._socket = -1
        self.session.connection.close()

    def send(
        self, query: str, values: list[bytes], on_answer: Callable[[int | psycopg.Error], None]
    ) -> None:
        """Send a prepared statement. `on_answer` gets the number of rows, or an error, later."""
        self._on_answer = on_answer
        self._ends_at = self._loop.time() + self._answer_s
        self._looking = self._loop.call_later(_LOOK_S, self._look)
        try:
            self.session.send(query, values)
            if not self._is_reading:
                self._is_reading = True
                self._loop.add_reader(self._socket, self._readable)
            self._flush()
        except psycopg.Error as error:
            self._loop.call_soon(self._end, error)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket)

    def _flush(self) -> None:
        is_left = self.session.flush()
        if is_left != self._is_writing:
            self._is_writing = is_left
            if is_left:
                self._loop.add_writer(self._socket, self._writable)
            else:
                self._loop.remove_writer(self._socket)

    def _writable(self) -> None:
        try:
            self._flush()
        except psycopg.Error as error:
            self._end(error)

    def _look(self) -> None:
        self._readable()
        if self._on_answer is None:
            return
        if self._loop.time() >= self._ends_at:
            self._end(psycopg.OperationalError("the database is silent on this connection"))
        else:
            self._looking = self._loop.call_later(_LOOK_S, self._look)

    def _readable(self) -> None:
        if self._on_answer is None:
            # A notice, or the connection broke: the next statement reads it.
            self._stop_reading()
            return
        try:
            rows = self.session.receive()
            if rows is None:
                if self._is_writing:
                    self._flush()
                return
        except psycopg.Error as error:
            self._end(error)
        else:
            self._end(rows)

    def _end(self, outcome: int | psycopg.Error) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is None:  # it broke both when it was sent and when it was read
            return
        if self._looking is not None:
            self._looking.cancel()
        if isinstance(outcome, psycopg.Error):
            self._stop_reading()
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._socket)
        on_answer(outcome)
