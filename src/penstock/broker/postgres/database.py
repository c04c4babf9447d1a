"""Connections to the database, transactions that are repeated, and errors in our words.

Everything here blocks, and is for threads. A connection is used by one thread at a time.
"""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore, Condition
from typing import Any, TypeVar
from urllib.parse import quote

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from penstock.clock import SystemClock
from penstock.errors import BrokerError, InvalidInput, Unavailable
from penstock.locks import Lock

log = logging.getLogger("penstock.broker")
_T = TypeVar("_T")

_NOT_REPLICATED = "01000"  # the commit is on the primary, but perhaps on no standby
# A repetition may succeed: lost connection, conflict with another transaction, no resources (except
# for a full disk), operator intervention, a server that became a standby, this process was stopped
# in the middle of a transaction, an error of the server's disk.
_PASSING = ("08", "40", "53", "57", "25006", "25P03", "58")
# After these, even at a commit, the transaction was rolled back for certain.
_ROLLED_BACK = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0
_IDLE_MS = 10_000  # between two statements of a transaction
# Notice a machine that vanished without closing its connections. A URL may say otherwise.
_DEFAULTS = {
    "application_name": "penstock",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "target_session_attrs": "read-write",
}


class DatabaseRefused(BrokerError):
    """The database cannot be used: wrong password, missing rights, no such database."""


class NotReplicated(psycopg.OperationalError):
    """The wait for the standby was cancelled: the commit may be lost in a failover."""


class Session:
    """A connection, and which server it leads to."""

    def __init__(self, connection: "Connection[Any]") -> None:
        self.connection = connection
        row = connection.execute(
            "select pg_postmaster_start_time()::text || ' ' || coalesce(inet_server_addr()::text,"
            "'') || ' ' || current_setting('port')"
        ).fetchone()
        assert row is not None
        self.server: str = row[0]  # differs between a primary and the standby that follows it
        self._warning: str | None = None
        self._prepared: dict[str, bytes] = {}
        connection.add_notice_handler(self._on_notice)

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == _NOT_REPLICATED and "replicat" in (notice.message_primary or ""):
            self._warning = notice.message_primary

    def execute(self, query: Any, values: Any = None, **options: Any) -> "psycopg.Cursor[Any]":
        """Execute one statement. Raise NotReplicated if its commit may not be on a standby."""
        self._warning = None
        cursor = self.connection.execute(query, values, **options)
        if self._warning is not None:
            raise NotReplicated(self._warning)
        return cursor

    def insert(self, query: str, values: Sequence[bytes]) -> int:
        """Execute a statement whose values are in PostgreSQL's binary form. Return the row count.

        One blocking call of libpq: the thread waits for the interpreter's lock once. `execute` does
        so several times, each up to 5 ms if the event loop is busy.
        """
        self._warning = None
        try:
            result = self._execute_prepared(query, values)
        except psycopg.errors.InvalidSqlStatementName:
            self._prepared.clear()  # psycopg deallocates all after a rollback
            result = self._execute_prepared(query, values)
        if self._warning is not None:
            raise NotReplicated(self._warning)
        return result.command_tuples or 0

    def _execute_prepared(self, query: str, values: Sequence[bytes]) -> PGresult:
        name = self.prepare(query)
        connection = self.connection.pgconn
        return _checked(connection.exec_prepared(name, values, [1] * len(values)))

    def prepare(self, query: str) -> bytes:
        """Prepare a statement if it is not yet. Return its name."""
        name = self._prepared.get(query)
        if name is None:
            name = b"penstock_%d" % len(self._prepared)
            _checked(self.connection.pgconn.prepare(name, query.encode()))
            self._prepared[query] = name
        return name

    # -- in an event loop: no call blocks ----------------------------------------------------------

    def send(self, query: str, values: Sequence[bytes]) -> None:
        """Send a prepared statement whose values are in PostgreSQL's binary form."""
        self._warning = None
        connection = self.connection.pgconn
        connection.nonblocking = 1
        connection.send_query_prepared(self._prepared[query], values, [1] * len(values))

    def flush(self) -> bool:
        """Send as much as the socket takes. Return whether more is left."""
        return self.connection.pgconn.flush() != 0

    def receive(self) -> int | None:
        """Return the row count of the statement that was sent; None if it is not there yet."""
        connection = self.connection.pgconn
        connection.consume_input()
        if connection.is_busy():
            return None
        result = connection.get_result()
        if result is None:
            raise psycopg.OperationalError("the connection is lost")
        while connection.get_result() is not None:
            pass
        found = _checked(result).command_tuples or 0
        if self._warning is not None:
            raise NotReplicated(self._warning)
        return found

    def one(self, query: Any, values: Any = None) -> Any:
        """Return the only row of an answer, or None."""
        return self.execute(query, values).fetchone()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end of the block; roll back if it raises."""
        self.execute("begin")
        try:
            yield
        except BaseException:
            if not self.connection.closed:
                try:
                    self.execute("rollback")
                except psycopg.Error:
                    self.connection.close()
            raise
        self.execute("commit")


class Database:
    """One database, in one schema of it. Connections are kept for the next use."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "penstock",
        max_connections: int = 16,
        patience_s: float = 30.0,
    ) -> None:
        """`patience_s`: how long a transaction is repeated while the database does not answer."""
        try:
            given = conninfo_to_dict(url)
            for port in str(given.get("port") or "5432").split(","):
                int(port or "5432")
        except (psycopg.Error, ValueError) as error:
            raise InvalidInput(
                f"this is not the URL of a PostgreSQL database ({one_line(error)}): write "
                f"postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            ) from None
        self.schema = schema
        self.name = _describe(given)
        self._settings = {**_DEFAULTS, **given}
        self._patience_s = patience_s
        self._clock = SystemClock()  # it waits for another program, also on a virtual clock
        self._lock = Lock()
        self._idle: list[Session] = []
        self._places = BoundedSemaphore(max_connections)
        self._is_closed = False
        self._waiting = Condition()  # of the threads that wait before they try again

    # -- connections -------------------------------------------------------------------------------

    def connect(self) -> Session:
        """Open a connection that the caller closes."""
        try:
            settings: Any = self._settings
            connection = psycopg.connect(**settings, autocommit=True, prepare_threshold=0)
            try:
                path = sql.SQL("set search_path to {}").format(sql.Identifier(self.schema))
                connection.execute(path)
                # The locks of a process that hangs in the middle must not keep a queue.
                connection.execute(f"set idle_in_transaction_session_timeout = {_IDLE_MS}")
                return Session(connection)
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            refusal = self._refusal(error)
            raise refusal if refusal is not None else error from error

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Lend a connection. After an error of the database it is closed, not lent again."""
        with self._places:
            with self._lock:
                session = self._idle.pop() if self._idle else None
            if session is None:
                session = self.connect()
            try:
                yield session
            except psycopg.Error:
                session.connection.close()
                raise
            finally:
                if not session.connection.closed:
                    with self._lock:
                        if not self._is_closed:
                            self._idle.append(session)
                            session = None
                    if session is not None:
                        session.connection.close()

    def close(self) -> None:
        """Close the connections that are not in use; the others follow when they are returned.

        Work that waits to be repeated is given up.
        """
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        with self._waiting:
            self._waiting.notify_all()
        for session in idle:
            session.connection.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def open_again(self) -> None:
        with self._lock:
            self._is_closed = False

    # -- work that is repeated ---------------------------------------------------------------------

    def repeat(self, work: Callable[[Session, bool], _T], patience_s: float | None = None) -> _T:
        """Call `work` until it succeeds or fails for good. It must be idempotent.

        The second argument is True if an earlier call may have committed. Raise the last error when
        the time is over.
        """
        left_s = self._patience_s if patience_s is None else patience_s
        ends_ns = self._clock.monotonic_ns() + round(left_s * 1e9)
        wait_s, is_repeat = _FIRST_WAIT_S, False
        while True:
            try:
                with self.session() as session:
                    return work(session, is_repeat)
            except psycopg.Error as error:
                if not is_passing(error):
                    raise
                if self._is_closed or self._clock.monotonic_ns() >= ends_ns:
                    raise
                log.warning("the database does not answer, trying again: %s", one_line(error))
                with self._lock:  # the others are likely to be broken as well
                    broken, self._idle = self._idle, []
                for session in broken:
                    session.connection.close()
                is_repeat = True
                with self._waiting:
                    if not self._is_closed:
                        self._clock.wait(self._waiting, wait_s * (0.5 + random.random()))
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def transact(self, work: Callable[[Session], _T]) -> _T:
        """Run `work` in a transaction, again if it failed before its commit.

        Raise Unavailable if the outcome of the commit is unknown, or the database is not there.
        """
        committing = False

        def attempt(session: Session, is_repeat: bool) -> _T:
            nonlocal committing
            committing = False
            with session.transaction():
                result = work(session)
                committing = True
            return result

        def once(session: Session, is_repeat: bool) -> _T:
            try:
                return attempt(session, is_repeat)
            except psycopg.Error as error:
                if committing and is_passing(error) and not isinstance(error, _ROLLED_BACK):
                    raise Unavailable(
                        f"the connection to PostgreSQL broke during a commit ({one_line(error)}): "
                        f"look whether the change was made, and try again"
                    ) from error
                raise

        return self._translated(lambda: self.repeat(once))

    def read(self, work: Callable[[Session], _T]) -> _T:
        """Run work that changes nothing, again if it failed."""
        return self._translated(lambda: self.repeat(lambda session, _: work(session)))

    def _translated(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except psycopg.Error as error:
            refusal = self._refusal(error)
            if refusal is not None:
                raise refusal from error
            if is_passing(error):
                raise Unavailable(
                    f"PostgreSQL ({self.name}) cannot be used now ({one_line(error)}): try again "
                    f"in a moment"
                ) from error
            raise DatabaseRefused(
                f"PostgreSQL ({self.name}) refused a statement: {one_line(error)}"
            ) from error

    def _refusal(self, error: psycopg.Error) -> DatabaseRefused | None:
        """Return the error for what will not pass by itself, in one sentence."""
        text, state = one_line(error), error.sqlstate or ""
        if state == "42501":
            return DatabaseRefused(
                f"the user lacks a right in PostgreSQL ({self.name}): {text}; grant it, or use "
                f"the owner of schema {self.schema!r}"
            )
        if (
            state.startswith("28")
            or ("role" in text and "does not exist" in text)
            or "authentication failed" in text
            or "no password" in text
        ):
            return DatabaseRefused(
                f"PostgreSQL ({self.name}) refused the user or the password in the URL: {text}"
            )
        if state == "3D000" or ("database" in text and "does not exist" in text):
            return DatabaseRefused(
                f"PostgreSQL ({self.name}) has no such database: {text}; create it with createdb"
            )
        return None


def _checked(result: "PGresult") -> "PGresult":
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        if result.status == ExecStatus.FATAL_ERROR and result.error_field(DiagnosticField.SQLSTATE):
            raise psycopg.errors.error_from_result(result)
        raise psycopg.OperationalError(f"the connection is lost: {result.get_error_message()}")
    return result


def is_passing(error: psycopg.Error) -> bool:
    """Return whether a repetition may succeed."""
    if isinstance(error, NotReplicated | psycopg.InterfaceError):
        return True
    if isinstance(error, psycopg.errors.DiskFull):  # for long, and it was rolled back
        return False
    if error.sqlstate is None:  # the connection broke, or was never made
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate.startswith(_PASSING)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _describe(settings: dict[str, Any]) -> str:
    """Return where a database is, without the password."""
    hosts = str(settings.get("host", "local socket")).split(",")
    ports = str(settings.get("port", "5432")).split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    where = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
    return f"{where}/{quote(str(settings.get('dbname', settings.get('user', ''))))}"
