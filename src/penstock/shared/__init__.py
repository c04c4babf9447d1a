"""One directory for several processes, without a server to run.

    with penstock.open("./orders", shared=True) as queue:
        queue.enqueue(b"hello")

The process that holds the directory's lock serves the others over a Unix socket in the directory.
When it ends or dies, another one takes over. `penstock.open` and `penstock.aio.open` use this
package. It needs the extra `server`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from penstock.client.address import QueueAddress
from penstock.client.administration import RemoteBroker, make_queue
from penstock.client.options import ClientOptions
from penstock.queue.settings import QueueSettings
from penstock.shared.exchange import SharedExchange
from penstock.shared.member import MEMBERS
from penstock.shared.place import place_of
from penstock.shared.queue import AsyncSharedQueue, SharedQueue

_CLIENT_OPTIONS = frozenset(item.name for item in fields(ClientOptions))


def open_shared(path: str, options: Mapping[str, Any]) -> SharedQueue:
    """Open a queue of a directory that other processes use as well, or create it.

    `options` are those of a queue, those of `ClientOptions`, and `queue`: the name of a queue in a
    directory of several. Without it, the directory itself is the queue.
    """
    exchange, address = _join(path, options)
    return SharedQueue(address, exchange)


async def open_shared_async(path: str, options: Mapping[str, Any]) -> AsyncSharedQueue:
    """Open a queue as `open_shared` does, for tasks."""
    opening = asyncio.get_running_loop().run_in_executor(None, _join, path, options, True)
    try:
        exchange, address = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_leave)  # the thread goes on, and joins
        raise
    return AsyncSharedQueue(address, exchange)


def _join(
    path: str, options: Mapping[str, Any], for_tasks: bool = False
) -> tuple[SharedExchange, QueueAddress]:
    given = dict(options)
    place, name = place_of(path, given.pop("queue", None))
    client = ClientOptions(**{key: given.pop(key) for key in _CLIENT_OPTIONS & given.keys()})
    QueueSettings.of(given)  # checks the names and values
    member = MEMBERS.join(place)
    try:
        member.wait_until_joined(client.retry_s or client.timeout_s)
        exchange = SharedExchange(member, client, for_tasks=for_tasks)
        with RemoteBroker(SharedExchange(member, client, parent=exchange)) as broker:
            make_queue(broker, str(name), given)
    except BaseException:
        MEMBERS.leave(member)
        raise
    return exchange, QueueAddress(exchange.base, name)


def _leave(opening: "asyncio.Future[tuple[SharedExchange, QueueAddress]]") -> None:
    """Leave a directory that was joined for a cancelled task."""
    if not opening.cancelled() and opening.exception() is None:
        exchange, _ = opening.result()
        opening.get_loop().run_in_executor(None, MEMBERS.leave, exchange.member)


__all__ = [
    "AsyncSharedQueue",
    "SharedQueue",
    "open_shared",
    "open_shared_async",
]
