"""A worker calls a function for each message, in threads, until the queue is empty."""

from tempfile import TemporaryDirectory

import penstock
from penstock.worker import Worker, WorkerOptions


def handle(job: penstock.LeasedMessage) -> None:
    """Process one message: acked on return, retried if this raises."""
    if job.payload == b"order 3":
        raise ValueError("out of stock")


# In its own process a worker runs until SIGTERM; this one ends when the queue is empty.
options = WorkerOptions(concurrency=4, lease_s=30, time_limit_s=10, idle_s=0)

with TemporaryDirectory() as folder, penstock.open(folder, max_attempts=1) as queue:
    queue.enqueue_batch([f"order {n}" for n in range(1, 11)])
    counts = Worker(queue, handle, options=options).run()  # or a path, or http://host/shop/orders
    print("done:", counts.done, "failed:", counts.failed)
    for letter in queue.dead():
        print(letter.payload.decode(), "-", letter.reason)
