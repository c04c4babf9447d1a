"""A broker's store in a process of its own, without a server: `python -m … URL SCHEMA ALIVE_S`.

It creates a queue, so that it is its owner. It publishes each line that it reads, and answers with
a line: `done`, or the error.
"""

import asyncio
import sys

from penstock.broker.postgres import ClusterOptions, PostgresStore
from penstock.broker.settings import BrokerSettings
from penstock.errors import PenstockError
from penstock.names import QueueName
from tests.conformance.conftest import Heard

ORDERS = QueueName("shop", "orders")


def options(schema: str, alive_s: float) -> ClusterOptions:
    """Return the options of all members: quick to find out who is alive, and otherwise quiet."""
    return ClusterOptions(
        schema=schema, beat_s=alive_s / 8, alive_s=alive_s, rebalance_s=1e9, outbox_s=1e9
    )


async def main(url: str, schema: str, alive_s: str) -> None:
    store = PostgresStore(url, options(schema, float(alive_s)))
    await store.open(Heard())
    await store.create(ORDERS, BrokerSettings().queue_settings())
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                await store.publish(ORDERS, [line.strip().encode()])
                said = "done"
            except PenstockError as error:
                said = f"{type(error).__name__}: {error}"
            print(said, flush=True)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
