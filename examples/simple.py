"""Publish and dequeue, also after a restart."""

from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder:
    with penstock.open(folder) as queue:
        queue.enqueue(b"hello")
        queue.enqueue("text is fine too")

    with penstock.open(folder) as queue:  # as after a restart
        while (message := queue.dequeue()) is not None:
            print(message.payload.decode())
