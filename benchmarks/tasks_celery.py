"""The Celery application of the tasks benchmark, imported by its worker."""

import os

from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_REDIS"])
app.conf.task_acks_late = True  # as the others: a job that dies with its worker runs again
app.conf.broker_connection_retry_on_startup = True
_counter = os.open(os.environ["BENCH_COUNTER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@app.task(ignore_result=True)
def job(n: int) -> None:
    os.write(_counter, b".")
