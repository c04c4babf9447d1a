"""Creating a queue so that the same call can be repeated."""

from collections.abc import Mapping
from typing import Any

from penstock.broker import Broker, Caller, QueueInfo, QueueName, Verb
from penstock.errors import AlreadyExists, NoSuchQueue


async def create_or_match(
    broker: Broker, caller: Caller, queue: QueueName, settings: Mapping[str, Any]
) -> tuple[QueueInfo, bool]:
    """Return a queue with these settings, and whether it was created.

    Raise AlreadyExists if it exists with other settings, or if the caller may not read them.
    """
    while True:
        try:
            return await broker.create_queue(caller, queue, settings), True
        except AlreadyExists:
            if not caller.may(Verb.READ, queue.namespace):
                raise
        try:
            info = await broker.queue_info(caller, queue)
        except NoSuchQueue:
            continue  # deleted in between
        there = info.settings.as_dict()
        other = sorted(name for name, value in settings.items() if there[name] != value)
        if other:
            raise AlreadyExists(
                f"queue {queue} exists with other settings ({', '.join(other)}): change the queue "
                f"instead of creating it"
            )
        return info, False
