"""Publish a message only once within a window."""

from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder:
    with penstock.open(folder, dedup_window_s=3600) as queue:
        first = queue.enqueue("charge card 7", dedup_id="order-7")
        again = queue.enqueue("charge card 7", dedup_id="order-7")
        print("the same message:", first == again)

    with penstock.open(folder) as queue:  # remembered across restarts and crashes
        (answer,) = queue.publish([penstock.NewMessage(payload="x", dedup_id="order-7")])
        print("duplicate after a restart:", answer.duplicate)
        print("in the queue:", queue.stats().ready)
