"""Publish in a transaction of your own: the message is there if, and only if, it commits.

    with psycopg.connect(url) as connection:
        connection.execute("insert into orders …")
        penstock.postgres.publish(connection, "shop/orders", {"order": 7})

The message goes into the table `outbox` of the database that the brokers use; a broker moves it
into its queue after the commit. Other languages call the SQL function:

    select penstock.publish('shop/orders', '{"order": 7}', '{"priority": 5}');
"""

import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any, Unpack

from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.model import NewMessage, Payload, PublishOptions, new_message
from penstock.names import QueueName
from penstock.queue.drafting import check_messages
from penstock.queue.settings import MOST_PAYLOAD_BYTES, QueueSettings

# Those of any queue: its own may be stricter, which the broker finds out.
_WIDEST = QueueSettings.of({"max_payload_bytes": MOST_PAYLOAD_BYTES})


def publish(
    connection: Any,
    queue: str,
    payload: Payload,
    *,
    schema: str = "penstock",
    **options: Unpack[PublishOptions],
) -> Any:
    """Publish a message when the transaction of `connection` commits.

    `connection`: of psycopg or psycopg2, of SQLAlchemy (also a Session) or of Django. With one of
    asyncpg, or an asynchronous one, await the result. `options` are those of `enqueue`,
    and are checked here as there. A queue may have stricter settings: what it refuses later stays
    in the table, with the reason.
    """
    QueueName.parse(queue)
    message = new_message(payload, options)
    check_messages([message], _WIDEST, SystemClock().now_ns())
    given = {
        field.name: getattr(message, field.name)
        for field in fields(NewMessage)
        if field.name != "payload" and getattr(message, field.name) is not None
    }
    data = message.payload.encode() if isinstance(message.payload, str) else bytes(message.payload)  # type: ignore[arg-type]
    values = (queue, data, json.dumps(given, default=dict))
    name = '"' + schema.replace('"', '""') + '".publish'
    numbered = f"select {name}($1::text, $2::bytea, $3::text::jsonb)"
    if hasattr(connection, "fetchval"):  # asyncpg
        return connection.fetchval(numbered, *values)
    statement = f"select {name}(%s::text, %s::bytea, %s::text::jsonb)"

    def execute_driver_sql(connection: Any) -> Any:
        """Execute it on a connection of SQLAlchemy. Return a coroutine if it is asynchronous."""
        by_number = connection.dialect.paramstyle.startswith("numeric")  # on asyncpg
        done = connection.exec_driver_sql(numbered if by_number else statement, values)
        return done if inspect.isawaitable(done) else None

    if hasattr(connection, "exec_driver_sql"):  # SQLAlchemy
        return execute_driver_sql(connection)
    if hasattr(connection, "connection") and callable(connection.connection):  # its Session
        found = connection.connection()
        if inspect.isawaitable(found):
            return _then(found, execute_driver_sql)
        return execute_driver_sql(found)
    if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        return connection.execute(statement, values)
    if hasattr(connection, "cursor"):
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
        return None
    raise InvalidInput(
        f"{type(connection).__name__} is not a connection that is known here: use one of "
        f"psycopg, asyncpg, SQLAlchemy or Django, or call the SQL function {name}"
    )


async def _then(found: Awaitable[Any], execute: Callable[[Any], Any]) -> None:
    """Execute on a connection that an asynchronous session gives."""
    await execute(await found)
