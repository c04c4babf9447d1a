"""Several consumer groups read one queue independently."""

from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder, penstock.open(folder) as queue:
    queue.groups.create("billing")
    queue.enqueue_batch([b"order 1", b"order 2"])
    queue.groups.create("audit")  # starts at the beginning
    queue.groups.create("alerts", to="end")  # only what is published from now on
    queue.enqueue("order 3")

    for group in ("billing", "audit", "alerts"):
        messages = queue.dequeue_batch(10, group=group)
        print(group, [message.payload.decode() for message in messages])

    queue.seek("beginning", group="audit")  # the others do not notice
    print({name: group.ready for name, group in queue.stats().groups.items()})
