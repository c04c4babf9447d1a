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
from dataclasses import fields
from typing import Any, Unpack

from penstock.errors import InvalidInput
from penstock.model import NewMessage, Payload, PublishOptions, new_message
from penstock.names import QueueName


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
    asyncpg, or an asynchronous one of psycopg, await the result. `options` are those of `enqueue`.
    """
    QueueName.parse(queue)
    message = new_message(payload, options)
    given = {
        field.name: getattr(message, field.name)
        for field in fields(NewMessage)
        if field.name != "payload" and getattr(message, field.name) is not None
    }
    data = message.payload.encode() if isinstance(message.payload, str) else bytes(message.payload)  # type: ignore[arg-type]
    values = (queue, data, json.dumps(given, default=dict))
    name = '"' + schema.replace('"', '""') + '".publish'
    if hasattr(connection, "fetchval"):  # asyncpg
        return connection.fetchval(f"select {name}($1::text, $2::bytea, $3::text::jsonb)", *values)
    statement = f"select {name}(%s::text, %s::bytea, %s::text::jsonb)"
    if hasattr(connection, "exec_driver_sql"):  # SQLAlchemy
        connection.exec_driver_sql(statement, values)
    elif hasattr(connection, "connection") and callable(connection.connection):  # its Session
        connection.connection().exec_driver_sql(statement, values)
    elif inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        return connection.execute(statement, values)
    elif hasattr(connection, "cursor"):
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
    else:
        raise InvalidInput(
            f"{type(connection).__name__} is not a connection that is known here: use one of "
            f"psycopg, asyncpg, SQLAlchemy or Django, or call the SQL function {name}"
        )
    return None
