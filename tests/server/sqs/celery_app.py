"""A Celery application whose broker is the one of a test. Its worker is a process of its own."""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

PLACE = Path(os.environ.get("CELERY_TEST_PLACE", "."))

app = Celery("tests")
app.conf.update(
    broker_url=os.environ.get("CELERY_TEST_BROKER", ""),
    broker_transport_options={
        "region": "us-east-1",
        "visibility_timeout": int(os.environ.get("CELERY_TEST_VISIBILITY_S", "60")),
        "wait_time_seconds": 5,
        "polling_interval": 0.1,
    },
    result_backend=f"db+sqlite:///{PLACE}/results.sqlite",
    result_chord_retry_interval=0.2,
    task_default_queue=os.environ.get("CELERY_TEST_QUEUE", "celery"),
    task_acks_late=True,
    worker_prefetch_multiplier=1,
)


@app.task(name="add")  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    return a + b


@app.task(name="total")  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    return sum(numbers)


# No result: the database backend may read the state of a retry with the result of its success.
@app.task(name="flaky", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]
def flaky(self: Any, needed: int) -> None:
    """Fail until it was tried often enough; then write a file."""
    if self.request.retries < needed:
        raise self.retry(countdown=0.1)
    written = PLACE / "written"
    written.write_text(str(self.request.retries))
    written.rename(PLACE / "retries")


@app.task(name="at")  # type: ignore[untyped-decorator]
def at() -> float:
    return time.time()


@app.task(name="hang_once")  # type: ignore[untyped-decorator]
def hang_once(name: str) -> str:
    """Hang until the worker is killed; succeed the next time."""
    started = PLACE / name
    if not started.exists():
        started.write_text("started")
        time.sleep(600)
    return "done"
