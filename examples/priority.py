"""Priorities 0 to 9: higher first, then in publishing order."""

from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder, penstock.open(folder) as queue:
    queue.enqueue("newsletter", priority=0)
    queue.enqueue("invoice")  # 5, the default
    queue.enqueue("alarm", priority=9)
    queue.enqueue("second invoice")

    for message in queue.dequeue_batch(10):
        print(message.priority, message.payload.decode())

# Low priorities do not starve: after 60 s of waiting (`starvation_after_s`) a message counts as one
# level higher, after 120 s as two.
