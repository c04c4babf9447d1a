"""Handle messages in a loop: ack, nack and retry are automatic."""

from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder, penstock.open(folder, backoff_base_s=0.01) as queue:
    queue.enqueue_batch([b"1", b"2", b"three", b"4"])

    # As an iterator: settle each message, for example with `with`.
    for job in queue.stream(idle_s=0.1):
        with job:
            print("seen:", job.payload.decode())
            if job.seq == 2:
                break  # messages leased ahead are released

    # With a handler: acked when it returns; logged, nacked and retried when it raises.
    total: list[int] = []

    def handle(job: penstock.LeasedMessage) -> None:
        if job.attempt == 1 and not job.payload.isdigit():
            raise ValueError("not a number")
        total.append(len(job.payload) if job.attempt > 1 else int(job.payload))

    print("succeeded:", queue.stream(handle, idle_s=0.1), "total:", sum(total))
