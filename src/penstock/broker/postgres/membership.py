"""Which brokers are alive, and which of them owns a queue.

A broker has a row and a connection of its own. On that connection it holds an advisory lock, which
the server releases as soon as the connection closes: so others see at once that a process died. Its
row says until when it counts as alive by the database's clock: the net below, for a broker that
hangs, and for the moments after a failover, when no broker holds a lock yet.

A queue belongs to the broker that used it first, until that one stops or dies, or gives it to one
that owns fewer (see `rebalancing`). A takeover raises the queue's token, which fences the old owner
off.
"""

import psycopg

from penstock.broker.postgres.database import Database, Session
from penstock.errors import BrokerError, NoSuchQueue
from penstock.locks import Lock
from penstock.names import QueueName

ALIVE_S = 15.0
# Whether the broker in `b` is alive; its parameter is the server that is asked.
ALIVE = """(b.alive_until > clock_timestamp() and (b.server <> %s or exists (
    select from pg_locks l where l.locktype = 'advisory' and l.granted and l.objsubid = 2
    and l.database = (select oid from pg_database where datname = current_database())
    and l.classid = hashtext(current_schema())::oid and l.objid = b.number::oid)))"""
_TAKE_LOCK = "select pg_try_advisory_lock(hashtext(current_schema()), %s)"


class OwnedElsewhere(BrokerError):
    """Another broker owns the queue. Its number and address are the arguments."""

    @property
    def owner(self) -> int:
        return int(self.args[0])

    @property
    def address(self) -> str:
        return str(self.args[1])


class Membership:
    """This broker among those of the database. Every call blocks, and is for a thread."""

    def __init__(self, database: Database, alive_s: float = ALIVE_S) -> None:
        """`alive_s`: how long it counts as alive after a sign of life."""
        self._database = database
        self._alive_s = alive_s
        self._session: Session | None = None
        self._lock = Lock()
        self.number = 0
        self._has_lock = False

    def cluster_key(self) -> tuple[bytes, str]:
        """Return the secret that all brokers share, and this machine's address in their network.

        The address is the one from which it reaches the database.
        """

        def read(session: Session) -> tuple[bytes, str]:
            key, address = session.one(
                "select key, coalesce(host(inet_client_addr()), '127.0.0.1') from cluster"
            )
            return bytes(key), address

        return self._database.read(read)

    def join(self, address: str) -> None:
        """Announce this broker, reached by the others at `address`."""

        def work(session: Session) -> None:
            session.execute("delete from broker where alive_until < now() - interval '1 hour'")
            row = session.one(
                "insert into broker (address, server, alive_until) values "
                "(%s, %s, clock_timestamp() + make_interval(secs => %s)) returning number",
                (address, session.server, self._alive_s),
            )
            self.number = row[0]

        self._database.transact(work)
        self._address = address
        self.renew()

    def announce(self, url: str) -> None:
        update = "update broker set url = %s where number = %s"
        self._database.transact(lambda session: session.execute(update, (url, self.number)))

    def renew(self) -> bool:
        """Say that this broker is alive. Connect anew if the connection is lost.

        Return False if it counted as dead before, so that others may have taken its queues over.
        """
        with self._lock:
            try:
                return self._renew()
            except psycopg.Error:
                self._drop_session()
                return self._renew()

    def _renew(self) -> bool:
        if self._session is None or self._session.connection.closed:
            self._session, self._has_lock = self._database.connect(), False
        session = self._session
        if not self._has_lock:
            self._has_lock = session.one(_TAKE_LOCK, (self.number,))[0]
        row = session.one(
            "with old as (select alive_until > clock_timestamp() from broker where number = %s) "
            "insert into broker (number, address, server, alive_until) overriding system value "
            "values (%s, %s, %s, clock_timestamp() + make_interval(secs => %s)) "
            "on conflict (number) do update set server = excluded.server, "
            "alive_until = excluded.alive_until returning (table old)",
            (self.number, self.number, self._address, session.server, self._alive_s),
        )
        return bool(row[0])

    def leave(self) -> None:
        """Let other brokers have the queues of this one at once."""

        def work(session: Session) -> None:
            session.execute("update queue set owner = null where owner = %s", (self.number,))
            session.execute("delete from broker where number = %s", (self.number,))

        try:
            if self.number:
                self._database.transact(work)
        finally:
            with self._lock:
                self._drop_session()

    def drop(self) -> None:
        """Close the connection, as a crash of the process would."""
        with self._lock:
            self._drop_session()

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    def take(self, queue: QueueName) -> tuple[int, int, int]:
        """Become the owner of a queue. Return its number, the new token and its identity.

        Raise NoSuchQueue, or OwnedElsewhere while another broker is alive and owns it.
        """

        def work(session: Session) -> tuple[int, int, int]:
            row = session.one(
                "select id, is_made, owner from queue where namespace = %s and name = %s "
                "for update",
                queue,
            )
            if row is None or not (row[1] or row[2] == self.number):
                raise NoSuchQueue(f"there is no queue {queue}")
            if row[2] is not None and row[2] != self.number:
                other = session.one(
                    f"select number, address from broker b where number = %s and {ALIVE}",
                    (row[2], session.server),
                )
                if other is not None:
                    raise OwnedElsewhere(*other)
            found = session.one(
                "update queue set owner = %s, token = token + 1 where id = %s "
                "returning id, token, identity",
                (self.number, row[0]),
            )
            return found[0], found[1], found[2]

        return self._database.transact(work)

    def surplus(self) -> tuple[int, int, list[QueueName]] | None:
        """Return the broker that owns fewest queues, how many to give to it, and all of this one's.

        None if it has nearly as many as this one.
        """
        query = (
            f"select b.number, count(q.id) from broker b left join queue q on q.owner = b.number "
            f"and q.is_made where {ALIVE} and b.address not like '%%:0' group by b.number"
        )

        def read(session: Session) -> tuple[int, int, list[QueueName]] | None:
            owned = dict(session.execute(query, (session.server,)).fetchall())
            if not owned or self.number not in owned:
                return None
            target = min(owned, key=lambda number: (owned[number], number))
            excess = (owned[self.number] - owned[target]) // 2
            if excess < 1:
                return None
            own = "select namespace, name from queue where owner = %s and is_made"
            rows = session.execute(own, (self.number,))
            return target, excess, [QueueName(*row) for row in rows]

        return self._database.read(read)

    def give(self, queue: QueueName, target: int) -> None:
        """Let another broker own a queue of this one, which has closed it."""
        update = "update queue set owner = %s where namespace = %s and name = %s and owner = %s"
        values = (target, *queue, self.number)
        self._database.transact(lambda session: session.execute(update, values))

    def others(self) -> list[str]:
        """Return the addresses of the other brokers that are alive."""
        query = f"select address from broker b where number <> %s and {ALIVE} order by number"
        rows = self._database.read(
            lambda session: session.execute(query, (self.number, session.server)).fetchall()
        )
        return [row[0] for row in rows]

    def owned(self) -> set[QueueName]:
        """Return the queues that this broker owns."""
        query = "select namespace, name from queue where owner = %s"
        rows = self._database.read(
            lambda session: session.execute(query, (self.number,)).fetchall()
        )
        return {QueueName(*row) for row in rows}

    def is_owner(self, queue: QueueName) -> bool:
        query = "select from queue where namespace = %s and name = %s and owner = %s"
        found = self._database.read(lambda session: session.one(query, (*queue, self.number)))
        return found is not None
