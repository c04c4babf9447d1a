"""The state of the database: for readiness, and for metrics that tell of bloat and lag.

A look is one connection for a moment. It is taken on request, if the last one is old. An
asker waits for it a short time only: a database that hangs must not hang the readiness probe.
"""

import asyncio
import logging

import psycopg

from penstock.broker.postgres.database import Database, Session, one_line
from penstock.broker.store import DatabaseState, StandbyState, TableState
from penstock.errors import PenstockError

log = logging.getLogger("penstock.broker")

FRESH_S = 2.0
WAIT_S = 1.0

_SERVER = """
select pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
    current_setting('synchronous_standby_names') <> ''
        and current_setting('synchronous_commit') in ('on', 'remote_write', 'remote_apply'),
    (select count(*) from pg_stat_activity where wait_event = 'SyncRep'),
    coalesce((select extract(epoch from max(clock_timestamp() - xact_start))
        from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()), 0),
    (select count(*) from outbox where error is null),
    (select count(*) from outbox where error is not null)
"""
# The lags are null if the standby has everything. Without the role pg_monitor, all is null.
_STANDBYS = """
select coalesce(nullif(application_name, ''), host(client_addr), pid::text), coalesce(state, ''),
    coalesce(sync_state, ''), coalesce(extract(epoch from replay_lag), 0),
    coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn), 0)
from pg_stat_replication order by 1
"""
_TABLES = """
select relname, n_live_tup, n_dead_tup, pg_total_relation_size(relid)
from pg_stat_user_tables where schemaname = current_schema() order by relname
"""


class Health:
    """Looks at the database that one broker uses."""

    def __init__(self, database: Database, *, wait_s: float = WAIT_S) -> None:
        """`wait_s`: how long an asker waits for a look."""
        self._database = database
        self._wait_s = wait_s
        self._last: DatabaseState | None = None
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    async def state(self) -> DatabaseState:
        """Return the state, at most `FRESH_S` old; older if the database does not answer."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked_at > FRESH_S or self._last is None:
            if self._looking is None or self._looking.done():
                self._looking = loop.create_task(self._look())
            await asyncio.wait([self._looking], timeout=self._wait_s)
        if self._last is None:
            return DatabaseState(self._database.name, problem="it does not answer")
        if loop.time() - self._looked_at > FRESH_S + self._wait_s:
            return self._last._replace(problem="it does not answer")
        return self._last

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._last = await asyncio.to_thread(self._read)
        except (psycopg.Error, PenstockError) as error:
            seen = self._last or DatabaseState(self._database.name)
            self._last = seen._replace(problem=one_line(error))
        except RuntimeError as error:  # no thread is to be had any more: the program ends
            log.warning("the database was not looked at: %s", error)
        self._looked_at = loop.time()

    def _read(self) -> DatabaseState:
        with self._database.session() as session:
            return read_state(session, self._database.name)


def read_state(session: Session, name: str) -> DatabaseState:
    """Return the state of the database that a session leads to."""
    is_standby, read_only, needs_standby, waiting, oldest_s, outbox, refused = session.one(_SERVER)
    standbys: list[StandbyState] = []
    if not is_standby:
        for who, state, sync_state, lag_s, lag_bytes in session.execute(_STANDBYS).fetchall():
            standbys.append(StandbyState(who, state, sync_state, float(lag_s), int(lag_bytes)))
    tables = [TableState(*row) for row in session.execute(_TABLES).fetchall()]
    return DatabaseState(
        name,
        is_primary=not is_standby and not read_only,
        needs_standby=needs_standby,
        standbys=tuple(standbys),
        commits_waiting=waiting,
        oldest_snapshot_s=float(oldest_s),
        outbox_waiting=outbox,
        outbox_refused=refused,
        tables=tuple(tables),
        problem=_problem(is_standby, read_only, needs_standby, standbys),
    )


def _problem(
    is_standby: bool, read_only: bool, needs_standby: bool, standbys: list[StandbyState]
) -> str | None:
    """Return why writes cannot be answered, or None."""
    if is_standby:
        return "it is a standby, which takes no writes"
    if read_only:
        return "it is read-only"
    # States are unknown without the role pg_monitor.
    if needs_standby and not any(one.sync_state in ("sync", "quorum", "") for one in standbys):
        return "commits wait for a synchronous standby, and none is connected"
    return None
