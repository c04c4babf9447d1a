"""The broker of the tasks benchmark for taskiq, imported by its worker."""

import os

from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=os.environ["BENCH_REDIS"])  # with acks, unlike ListQueueBroker
_counter = os.open(os.environ["BENCH_COUNTER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@broker.task
async def job(n: int) -> None:
    os.write(_counter, b".")
