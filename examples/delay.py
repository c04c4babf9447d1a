"""Deliver a message after a delay or at a time."""

import time
from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder, penstock.open(folder) as queue:
    started = time.time()
    queue.enqueue("in 2 s", delay=2)
    queue.enqueue("at a time", deliver_at=started + 1)
    later = queue.enqueue("in a year", delay=365 * 86400)
    queue.enqueue("now")

    for _ in range(3):
        message = queue.dequeue(wait_s=60)  # wakes when the next is due; nothing polls
        assert message is not None
        early = time.time() < (message.deliver_at or started)
        print(message.payload.decode(), "(too early!)" if early else "")
    print(queue.why(later).code)
