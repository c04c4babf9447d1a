"""Threads publish and consume; each message is processed by one consumer."""

from collections import Counter
from tempfile import TemporaryDirectory
from threading import Lock, Thread

import penstock

PRODUCERS, CONSUMERS, EACH = 2, 3, 100

done: Counter[str] = Counter()
lock = Lock()


def produce(queue: penstock.Queue, name: str) -> None:
    for number in range(EACH):
        queue.enqueue(f"{name}-{number}")


def consume(queue: penstock.Queue) -> None:
    for job in queue.stream(idle_s=0.3):  # ends after 0.3 s without a message
        with job, lock:  # `job`: acked at the end of the block, nacked if it raises
            done[job.payload.decode()] += 1


with TemporaryDirectory() as folder, penstock.open(folder) as queue:
    threads = [Thread(target=produce, args=(queue, f"p{n}")) for n in range(PRODUCERS)]
    threads += [Thread(target=consume, args=(queue,)) for _ in range(CONSUMERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{len(done)} messages, each done {max(done.values())} time")
    print(f"left: {queue.stats().ready}")
