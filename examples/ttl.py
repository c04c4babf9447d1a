"""A message that is not consumed within its time to live is not delivered."""

import time
from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder, penstock.open(folder) as queue:
    price = queue.enqueue("the price right now", ttl=0.05)
    queue.enqueue("the order itself")
    print(queue.state(price))

    time.sleep(0.1)  # no consumer is running
    print(queue.state(price))
    message = queue.dequeue()
    print(message.payload.decode() if message else None)
    print("expired:", queue.stats().expired)
