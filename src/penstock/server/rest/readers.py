"""Readers of a queue that lease nothing, such as Spark queries: how far each one is behind."""

from typing import Annotated

from msgspec import Meta, Struct

from penstock.broker import Verb
from penstock.broker.readers import (
    DEFAULT_EXPIRES_S,
    MAX_EXPIRES_S,
    MAX_RATE_PER_S,
    MIN_EXPIRES_S,
)
from penstock.operations.answers import rfc3339
from penstock.server.call import Answer, Call
from penstock.server.rest.endpoint import QUEUE, Endpoint

_ONE = f"{QUEUE}/readers/{{reader}}"


class ReaderBody(Struct, forbid_unknown_fields=True):
    """How far a reader is. `position` is the next seq that it reads."""

    position: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    rows_per_s: Annotated[float, Meta(ge=0, le=MAX_RATE_PER_S)] = 0.0
    expires_s: Annotated[float, Meta(ge=MIN_EXPIRES_S, le=MAX_EXPIRES_S)] = DEFAULT_EXPIRES_S


class ReaderAnswer(Struct):
    """A reader. `lag` is the number of messages from its position to the end of the queue, now."""

    name: str
    position: int
    lag: int
    rows_per_s: float
    reported_at: str
    expires_at: str


class ReaderList(Struct):
    """The readers of a queue that have reported and not expired, those with most lag first."""

    readers: list[ReaderAnswer]


async def list_readers(call: Call) -> Answer:
    """List the readers of a queue that lease nothing, with their lag."""
    found = await call.broker.readers.of_queue(call.caller, call.queue)
    return ReaderList(
        [
            ReaderAnswer(
                one.name,
                one.position,
                one.lag,
                one.rows_per_s,
                rfc3339(one.reported_ns),
                rfc3339(one.expires_ns),
            )
            for one in found
        ]
    )


async def report_reader(call: Call) -> Answer:
    """Report how far a reader is. It is listed until the report expires."""
    body = await call.read(ReaderBody)
    await call.broker.readers.report(
        call.caller,
        call.queue,
        call.path("reader"),
        body.position,
        rows_per_s=body.rows_per_s,
        expires_s=body.expires_s,
    )
    return None


async def forget_reader(call: Call) -> Answer:
    """Remove a reader from the list. It is no error if there is none."""
    await call.broker.readers.forget(call.caller, call.queue, call.path("reader"))
    return None


ENDPOINTS = (
    Endpoint("GET", f"{QUEUE}/readers", list_readers, Verb.READ, ReaderList, also=(404,)),
    Endpoint(
        "PUT", _ONE, report_reader, Verb.CONSUME, status=204, body=ReaderBody, also=(404, 429)
    ),
    Endpoint("DELETE", _ONE, forget_reader, Verb.CONSUME, status=204, also=(404,)),
)
