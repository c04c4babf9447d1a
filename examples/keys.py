"""Process messages of one key one at a time, in order; different keys run concurrently."""

from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder, penstock.open(folder) as queue:
    queue.enqueue("alice: open account", key="alice")
    deposit = queue.enqueue("alice: deposit", key="alice")
    queue.enqueue("bob: open account", key="bob")

    jobs = queue.lease(10)
    print("at once:", [job.payload.decode() for job in jobs])
    print("waits:", queue.why(deposit).code)

    queue.nack(jobs[0], "the database is away", delay=0)  # order holds through retries
    print("next of alice:", queue.lease(1)[0].payload.decode())
