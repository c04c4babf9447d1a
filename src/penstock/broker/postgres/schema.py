"""The tables of the PostgreSQL store, as versioned migrations.

A queue has the same two logs as on files. Their content is in `chunk`: a commit round is one insert
instead of one fdatasync, so that the database's replication and failover carry the queue.

To change the schema: append a migration. Never edit one that was released.
"""

from psycopg import sql

from penstock.broker.postgres.database import Database, Session
from penstock.errors import BrokerError

MIGRATIONS = (
    """
    create table cluster (key bytea not null);
    insert into cluster values (decode(replace(
        gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));
    comment on table cluster is 'The secret by which brokers know each other: one row.';

    create table broker (
        number int generated always as identity primary key,
        address text not null,
        url text not null default '',
        server text not null,
        alive_until timestamptz not null
    );
    comment on column broker.address is 'Where the other brokers reach it: host:port.';
    comment on column broker.server is 'The server on which it holds its advisory lock.';

    create table namespace (
        name text primary key,
        created_at_ns bigint not null,
        defaults text not null,
        max_queues bigint not null,
        max_bytes bigint not null
    );
    create table queue (
        id bigint generated always as identity primary key,
        namespace text not null references namespace,
        name text not null,
        identity bigint not null unique,
        is_made boolean not null default false,
        owner int,
        token bigint not null default 0,
        repeats bigint not null default 0,
        size_bytes bigint not null default 0,
        unique (namespace, name)
    );
    comment on column queue.token is
        'Fencing token: raised by each takeover; a writer with an older one is refused.';
    comment on column queue.repeats is
        'Raised when a commit is repeated, so that the repetition waits for the standby.';

    create table node (
        queue bigint not null references queue on delete cascade,
        id bigint not null,
        parent bigint not null,
        name text not null,
        is_directory boolean not null,
        size bigint,
        head bytea,
        primary key (queue, id)
    );
    comment on table node is 'Names of the files and directories of a queue.';
    comment on column node.size is 'Of a sealed file, with its first bytes in head; else null.';
    create table chunk (
        queue bigint not null,
        node bigint not null,
        version bigint not null,
        start bigint not null,
        data bytea,
        primary key (queue, node, version)
    ) with (autovacuum_vacuum_insert_scale_factor = 0.5, autovacuum_vacuum_scale_factor = 0.05,
        toast_tuple_target = 8160);
    comment on table chunk is
        'Content of files, in the order of the writes. Without data: the file ends at start.';
    alter table chunk alter column data set storage external;

    create table document (name text primary key, content bytea not null);
    create table lock (name text primary key, owner text not null, ends_at timestamptz not null);
    create table change (
        id bigint generated always as identity primary key,
        at timestamptz not null default clock_timestamp(),
        kind text not null,
        name text not null
    );
    comment on table change is
        'What changed in namespaces, queues and documents, for the other brokers; kept an hour.';
    """,
    # Publishing inside a transaction of the user: `penstock.postgres` and every SQL client.
    """
    create table outbox (
        id bigint generated always as identity primary key,
        namespace text not null,
        queue text not null,
        payload bytea not null,
        options text not null default '{}',
        error text
    );
    comment on table outbox is
        'Messages of committed transactions that a broker is about to move into their queues.';
    comment on column outbox.error is 'Why the queue refused it. Such a row stays until deleted.';
    create index outbox_waiting on outbox (id) where error is null;
    create function publish(queue text, payload bytea, options jsonb default '{}')
    returns bigint language plpgsql set search_path from current as $$
    declare
        made bigint;
        slash int := position('/' in queue);
    begin
        insert into outbox (namespace, queue, payload, options) values (
            case when slash > 0 then left(publish.queue, slash - 1) else 'default' end,
            substr(publish.queue, slash + 1), publish.payload, publish.options::text)
        returning id into made;
        return made;
    end $$;
    create function publish(queue text, payload text, options jsonb default '{}')
    returns bigint language sql set search_path from current
    as $$ select publish(queue, convert_to(payload, 'UTF8'), options) $$;
    """,
)
_LOCK_KEY = 0x70656E73746F636B  # "penstock": one broker migrates at a time


class SchemaMismatch(BrokerError):
    """The schema of the database is not the one that this version of Penstock uses."""


def pending(session: Session, schema: str) -> list[str]:
    """Return the SQL of the migrations that the database still needs.

    Raise SchemaMismatch if the database is newer than this program.
    """
    name = sql.Identifier(schema)
    # Not to_regclass: in a transaction that waited for another one, it may answer from a cache.
    found = session.one(
        "select from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = %s and c.relname = 'migration'",
        (schema,),
    )
    version = 0
    if found is not None:
        query = sql.SQL("select coalesce(max(version), 0) from {}.migration").format(name)
        version = session.one(query)[0]
    if version > len(MIGRATIONS):
        raise SchemaMismatch(
            f"schema {schema!r} has version {version}; this program knows versions up to "
            f"{len(MIGRATIONS)}: upgrade Penstock on this machine"
        )
    return list(MIGRATIONS[version:])


def check(database: Database) -> None:
    """Raise SchemaMismatch unless the schema is the one that this program uses."""
    missing = database.read(lambda session: pending(session, database.schema))
    if missing:
        raise SchemaMismatch(
            f"schema {database.schema!r} lacks {len(missing)} migrations: run `penstock migrate`"
        )


def migrate(database: Database) -> int:
    """Bring the schema up to date. Return how many migrations were applied."""

    def work(session: Session) -> int:
        session.execute("select pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
        missing = pending(session, database.schema)
        if not missing:
            return 0
        name = sql.Identifier(database.schema)
        session.execute(sql.SQL("create schema if not exists {}").format(name))
        session.execute(
            "create table if not exists migration "
            "(version int primary key, applied_at timestamptz not null default now())"
        )
        for version, migration in enumerate(missing, len(MIGRATIONS) - len(missing) + 1):
            session.execute(migration, prepare=False)
            session.execute("insert into migration (version) values (%s)", (version,))
        return len(missing)

    if not database.read(lambda session: pending(session, database.schema)):
        return 0  # a user without the right to create tables can start a broker
    return database.transact(work)
