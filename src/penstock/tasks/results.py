"""Results: what a function returned, kept with the ack of its message.

A result is a message of the same queue that the ack emits, so both are one write: a job is done
and has its result, or neither, whatever crashes. It is found by its dedup id, which is made of the
job's id, and which the queue remembers as long as the result is kept. It is never delivered: it is
due at the moment when it expires.
"""

from typing import Any

from penstock.model import NewMessage
from penstock.queue.dedup import RESULT_PREFIX
from penstock.tasks.context import Attempt
from penstock.tasks.envelope import pack_result
from penstock.tasks.options import MAX_RESULT_BYTES
from penstock.worker import Done


def dedup_id_of(job_id: str) -> str:
    """Return the dedup id under which the result of a job is published."""
    return f"{RESULT_PREFIX}{job_id}"


def done_with(attempt: Attempt, value: Any) -> Done | None:
    """Return the outcome of an attempt that returned a value; None if that is not kept."""
    if not attempt.keep_result_s:
        return None
    try:
        data, error = attempt.task.arguments.encode_result(value), ""
        if len(data) > MAX_RESULT_BYTES:
            error = f"it has {len(data)} bytes; at most {MAX_RESULT_BYTES} are kept"
    except ValueError as raised:
        error = str(raised)
    payload = pack_result(attempt.id, b"null" if error else data, error)
    return Done(
        emit=[
            NewMessage(
                payload=payload,
                delay=attempt.keep_result_s,
                ttl=0,
                dedup_id=attempt.result_key or dedup_id_of(attempt.id),
                dedup_window_s=attempt.keep_result_s,
            )
        ]
    )
