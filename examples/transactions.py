"""Ack one step and publish the next steps in one atomic write."""

from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder:
    with penstock.open(folder) as queue:
        queue.enqueue_batch([b"order 1", b"order 2"])  # a batch is atomic

        (order,) = queue.lease()
        queue.ack(
            order,
            emit=[
                penstock.NewMessage(payload="pack order 1", priority=7),
                penstock.NewMessage(payload="ask how it went", delay=86400),
            ],
        )

    with penstock.open(folder) as queue:
        print(queue.state(order.id))
        print([event.event for event in queue.history(order.id)])
        for message in queue.browse():
            print(queue.state(message.id), message.payload.decode())
