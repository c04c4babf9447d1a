"""`penstock migrate`: bring the tables of a PostgreSQL store up to date."""

from typing import Annotated

from penstock.cli.options import argument, option
from penstock.cli.targets import requires_extra
from penstock.cli.terminal import print_line, print_stderr


def migrate(
    store: Annotated[str, argument("URL", "The database: postgresql://USER@HOST/DATABASE.")],
    schema: Annotated[str, option("Schema of the tables.", metavar="NAME")] = "penstock",
    dry_run: Annotated[bool, option("Print the SQL, and change nothing.", "--dry-run")] = False,
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
            for statements in missing:
                print_line(statements)
            print_stderr(f"{len(missing)} migrations are missing; nothing was changed")
        else:
            done = tables.migrate(database)
            print_stderr(f"{done} migrations done; schema {schema!r} is up to date")
    finally:
        database.close()
