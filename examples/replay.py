"""Done messages stay in the log: seek back and read them again."""

from tempfile import TemporaryDirectory

import penstock


def drain(queue: penstock.AnyQueue) -> list[str]:
    return [message.payload.decode() for message in queue.dequeue_batch(100)]


# Without a retention setting, compaction removes done messages.
with TemporaryDirectory() as folder, penstock.open(folder, retention_s=7 * 86400) as queue:
    ids = queue.enqueue_batch([b"monday", b"tuesday", b"wednesday"])
    print("first time:", drain(queue))

    queue.seek("beginning")
    print("from the beginning:", drain(queue))

    queue.seek(id=ids[1])
    print("from a message:", drain(queue))

    queue.seek(time=queue.get(ids[0]).published_at)
    print("from a time:", drain(queue))

    queue.seek("end")
    print("from the end:", drain(queue))
