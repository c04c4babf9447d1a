"""Retry failed messages with backoff; after too many failures they are dead letters."""

from tempfile import TemporaryDirectory

import penstock


def work(job: penstock.LeasedMessage) -> None:
    if job.payload == b"poison":
        raise ValueError("cannot digest this")
    print(f"done: {job.payload.decode()} (attempt {job.attempt})")


with (
    TemporaryDirectory() as folder,
    penstock.open(folder, max_attempts=3, backoff_base_s=0.01) as queue,
):
    queue.enqueue("fine")
    poison = queue.enqueue("poison")

    for job in queue.stream(idle_s=0.2):
        try:
            with job:
                work(job)
        except ValueError as error:
            print(f"attempt {job.attempt} failed: {error}")

    for letter in queue.dead():
        print(f"dead after {letter.attempts} attempts: {letter.reason}")
        print("headers:", sorted(letter.headers))

    print(queue.why(poison).sentence)
    print("redriven:", queue.redrive(reason="digest"))
    print("now:", queue.state(poison))
