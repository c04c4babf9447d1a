"""`penstock migrate` and `migrate-store`: tables of a PostgreSQL store, and moving a store."""

from typing import TYPE_CHECKING, Annotated

from penstock.cli.options import AsJson, argument, option
from penstock.cli.terminal import print_json, print_line, print_stderr
from penstock.extras import requires_extra

if TYPE_CHECKING:
    from penstock.broker.moving import Moved, Site
    from penstock.names import QueueName


def migrate(
    store: Annotated[str, argument("URL", "The database: postgresql://USER@HOST/DATABASE.")],
    schema: Annotated[str, option("Schema of the tables.", metavar="NAME")] = "penstock",
    dry_run: Annotated[bool, option("Print the SQL, and change nothing.", "--dry-run")] = False,
    json: AsJson = False,
) -> None:
    """Create or update the tables of a PostgreSQL store.

    A broker does this itself when it starts, unless postgres_migrate is off:
    then a user with more rights does it here.
    """
    with requires_extra("postgres"):
        from penstock.broker.postgres import schema as tables
        from penstock.broker.postgres.database import Database
    database = Database(store, schema=schema)
    try:
        if dry_run:
            missing = database.read(lambda session: tables.pending(session, schema))
            if json:
                print_json({"schema": schema, "missing": len(missing), "sql": missing})
                return
            for statements in missing:
                print_line(statements)
            print_stderr(f"{len(missing)} migrations are missing; nothing was changed")
        else:
            done = tables.migrate(database)
            if json:
                print_json({"schema": schema, "done": done})
            else:
                print_stderr(f"{done} migrations done; schema {schema!r} is up to date")
    finally:
        database.close()


def migrate_store(
    source: Annotated[str, argument("FROM", "A data directory, or postgresql://….")],
    target: Annotated[str, argument("TO", "The same, of a new or empty store.")],
    schema: Annotated[str, option("Schema of the tables.", metavar="NAME")] = "penstock",
    cache: Annotated[
        str | None,
        option("Directory with room for the largest queue. Default: that of temporary files."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Move all queues, namespaces, keys and webhooks into another store.

    Stop the brokers first. Ids, seqs and receipts stay. At the end every row is
    read from both stores and compared. FROM is not changed. If the command is
    interrupted, run it again.
    """
    with requires_extra("server"):
        from penstock.broker.moving import move_store
    found = move_store(_site(source, schema, cache), _site(target, schema, cache), _print_queue)
    if json:
        rows = [{"queue": str(queue), **moved._asdict()} for queue, moved in found.items()]
        print_json({"queues": rows})
        return
    messages = sum(one.messages for one in found.values())
    events = sum(one.events for one in found.values())
    print_line(
        f"moved {len(found)} queues with {messages} messages and {events} events; every row is the "
        f"same in both stores"
    )


def _site(location: str, schema: str, cache: str | None) -> "Site":
    from penstock.broker.moving import DirectorySite
    from penstock.checking import is_database_url

    if not is_database_url(location):
        return DirectorySite(location)
    with requires_extra("postgres"):
        from penstock.broker.postgres.site import DatabaseSite
    return DatabaseSite(location, schema=schema, cache=cache)


def _print_queue(queue: "QueueName", moved: "Moved") -> None:
    print_stderr(f"{queue}: {moved.messages} messages, {moved.events} events, the same in both")
