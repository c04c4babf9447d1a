"""The HTTP interface of RivetQ, in the namespace `default`. Its gRPC interface shares the rules.

`tries` counts failed deliveries, so it is one less than `attempt`. `max_retries` N means N attempts
in total. Times are milliseconds. Numbers have the types of RivetQ's server: a number outside of its
type is refused, and one that is too large for Penstock is lowered to the maximum.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from penstock.broker import (
    DEFAULT_NAMESPACE,
    Broker,
    Caller,
    Outcome,
    QueueName,
    Settlement,
    Verb,
)
from penstock.broker.settling import is_receipt_of
from penstock.errors import InvalidInput, NoSuchQueue, ReceiptInvalid
from penstock.model import LeasedMessage, NewMessage, Published, Receipt
from penstock.operations import GetStats
from penstock.server.call import Answer, Call, encode
from penstock.server.dialects.call import check_settled, json, read, settle
from penstock.server.dialects.json_bodies import Shape, is_json
from penstock.server.off_loop import to_base64
from penstock.server.replies import JSON, Reply
from penstock.server.routes import Route

_MAX_RETRIES = 3  # where a job does not say
_VISIBILITY_MS = 30_000
_NULL = Raw(b"null")
_HIGHEST_PRIORITY = 9
_MOST_RETRIES = 65_535
_MOST_JOBS = 10_000
_LONGEST_DELAY_MS = 100 * 365 * 86_400_000
_LONGEST_LEASE_MS = 7 * 86_400_000
_MOST_TOKENS = 1e9
IDEMPOTENCY_S = 7 * 86_400.0  # how long a key answers with its job

UInt8 = Annotated[int, Meta(ge=0, lt=1 << 8)]
UInt32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Amount = Annotated[float, Meta(ge=0)]


class EnqueueBody(Struct, forbid_unknown_fields=True):
    payload: Raw = _NULL
    headers: dict[str, str | None] = {}
    priority: UInt8 = 0
    delay_ms: Int64 = 0
    max_retries: UInt32 = 0
    idempotency_key: str = ""


class LeaseBody(Struct, forbid_unknown_fields=True):
    max_jobs: Int64 = 0
    visibility_ms: Int64 = 0


class SettleBody(Struct, forbid_unknown_fields=True):
    job_id: str
    lease_id: str
    reason: str = ""


class RateLimitBody(Struct, forbid_unknown_fields=True):
    capacity: Amount
    refill_rate: Amount


_enqueue = Shape(EnqueueBody, principal="payload")
_lease = Shape(LeaseBody)
_settle = Shape(SettleBody)
_rate_limit = Shape(RateLimitBody)


def enqueue(call: Call) -> Any:
    return call.with_body(_enqueue.read, _publish)


def _publish(call: Call, body: EnqueueBody) -> Answer:
    headers = body.headers
    message = new_job(
        bytes(body.payload),
        {name: value or "" for name, value in headers.items()} if headers else None,
        body.priority,
        body.delay_ms,
        body.max_retries,
        body.idempotency_key,
        JSON,
    )
    return call.publish_one(message, _enqueued)


def new_job(
    payload: bytes,
    headers: dict[str, str] | None,
    priority: int,
    delay_ms: int,
    max_retries: int,
    idempotency_key: str,
    content_type: str | None = None,
) -> NewMessage:
    """Return the message of a job. Numbers that are too large are lowered to the maximum."""
    most = max_retries or _MAX_RETRIES
    if priority > _HIGHEST_PRIORITY:
        priority = _HIGHEST_PRIORITY
    if most > _MOST_RETRIES:
        most = _MOST_RETRIES
    if not headers and delay_ms <= 0 and not idempotency_key:  # the usual job
        return NewMessage(
            payload=payload, priority=priority, max_attempts=most, content_type=content_type
        )
    return NewMessage(
        payload=payload,
        content_type=content_type,
        headers=headers or None,
        priority=priority,
        delay=min(delay_ms, _LONGEST_DELAY_MS) / 1000 if delay_ms > 0 else None,
        max_attempts=most,
        dedup_id=idempotency_key or None,
        dedup_window_s=IDEMPOTENCY_S if idempotency_key else None,
    )


def _enqueued(_: Call, published: Sequence[Published]) -> bytes:
    return b'{"job_id":"%s"}' % published[0].id.encode()


def lease(call: Call) -> Any:
    return call.with_body(_read_lease, _lease_jobs)


def _read_lease(body: bytes) -> LeaseBody:
    return _lease.read(body) if body.strip() else LeaseBody()


def _lease_jobs(call: Call, body: LeaseBody) -> Answer:
    n, lease_s = lease_options(body.max_jobs, body.visibility_ms)
    leasing = call.broker.lease(call.caller, call.queue, n=n, lease_s=lease_s, pending=call)
    return call.when_leased(leasing, _jobs)


def _jobs(call: Call, leased: Sequence[LeasedMessage]) -> bytes:
    return encode({"jobs": [_job(call, one) for one in leased]})


def ack(call: Call) -> Any:
    return call.with_body(_settle.read, _ack)


def _ack(call: Call, body: SettleBody) -> Answer:
    check_lease(body.job_id, body.lease_id)
    return settle(call, Settlement("ack", body.lease_id), _settled)


def nack(call: Call) -> Any:
    return call.with_body(_settle.read, _nack)


def _nack(call: Call, body: SettleBody) -> Answer:
    check_lease(body.job_id, body.lease_id)
    return settle(call, nack_settlement(body.lease_id, body.reason), _settled)


def _settled(_: Call, outcomes: Sequence[Outcome]) -> bytes:
    check_settled(outcomes)
    return b'{"success":true}'


async def stats(call: Call) -> Reply:
    return json(await counts(call.broker, call.caller, call.queue))


async def counts(broker: Broker, caller: Caller, queue: QueueName) -> dict[str, int]:
    """Return the counts of a queue under RivetQ's names."""
    found = await broker.run(caller, GetStats(), queue)
    ready = found.ready + found.scheduled + found.parked + found.blocked
    return {"ready": ready, "inflight": found.leased, "dlq": found.dead}


async def list_queues(call: Call) -> Reply:
    return json({"queues": queue_names(call.broker, call.caller)})


def queue_names(broker: Broker, caller: Caller) -> list[str]:
    """Return the names of the queues that RivetQ's clients see."""
    found = broker.queues(caller)
    return [queue.name for queue in found if queue.namespace == DEFAULT_NAMESPACE]


async def set_rate_limit(call: Call) -> Reply:
    body = await read(call, _rate_limit)
    await change_rate_limit(call.broker, call.caller, call.queue, body.capacity, body.refill_rate)
    return json({"success": True})


async def change_rate_limit(
    broker: Broker, caller: Caller, queue: QueueName, capacity: float, refill_rate: float
) -> None:
    """Set the rate limit of a queue. 0 for both removes it."""
    if not (capacity >= 1 and refill_rate > 0) and (capacity or refill_rate):
        raise InvalidInput(
            f"with capacity {capacity:g} and refill_rate {refill_rate:g} nothing could "
            f"ever be published: give a capacity of at least 1 and a refill_rate above 0, or 0 for "
            f"both to remove the limit"
        )
    changes = {
        "rate_per_s": min(refill_rate, _MOST_TOKENS),
        "rate_burst": min(capacity, _MOST_TOKENS),
    }
    try:
        await broker.change_queue(caller, queue, changes)
    except NoSuchQueue:
        if not broker.settings.create_on_use:
            raise
        await broker.create_queue(caller, queue, changes)


async def get_rate_limit(call: Call) -> Reply:
    return json(await rate_limit(call.broker, call.caller, call.queue))


async def rate_limit(broker: Broker, caller: Caller, queue: QueueName) -> dict[str, Any]:
    """Return the rate limit of a queue under RivetQ's names."""
    if not broker.has_queue(queue):
        broker.admit(caller, Verb.READ, queue.namespace)
        return {"capacity": 0, "refill_rate": 0, "exists": False}
    settings = (await broker.queue_info(caller, queue)).settings
    rate = settings.rate_per_s
    capacity = (settings.rate_burst or rate) if rate else 0
    return {"capacity": capacity, "refill_rate": rate, "exists": rate > 0}


async def health(call: Call) -> Reply:
    return json({"status": "healthy"})


def lease_options(max_jobs: int, visibility_ms: int) -> tuple[int, float]:
    """Return the number of jobs and the duration of a lease. 0 and less mean the default."""
    n = min(max(max_jobs, 1), _MOST_JOBS)
    if visibility_ms <= 0:
        visibility_ms = _VISIBILITY_MS
    return n, min(visibility_ms, _LONGEST_LEASE_MS) / 1000


def check_lease(job_id: str, lease_id: str) -> None:
    """Raise ReceiptInvalid if a lease is not one of the job."""
    if not is_receipt_of(lease_id, job_id):
        raise ReceiptInvalid(f"lease {lease_id!r} is not one of job {job_id!r}")


def nack_settlement(lease_id: str, reason: str) -> Settlement:
    """Return the settlement of a failed job, with RivetQ's backoff."""
    delay_s = _backoff_s(Receipt.unpack(lease_id))
    return Settlement("nack", lease_id, reason=reason, delay_s=delay_s)


def _backoff_s(receipt: Receipt) -> float:
    """Return RivetQ's backoff instead of the queue's: doubled up to a minute, with 10 % jitter."""
    seconds: float = min(0.1 * 2.0 ** min(receipt.attempt - 1, 64), 60.0)
    return seconds * (1 + (receipt.nonce % 2001 - 1000) / 10_000)


def _job(call: Call, leased: LeasedMessage) -> dict[str, Any]:
    job: dict[str, Any] = {
        "id": leased.id,
        "queue": call.path("queue"),
        "payload": _payload(leased.payload),
        "priority": leased.priority,
        "tries": leased.attempt - 1,
        "lease_id": leased.receipt,
    }
    if leased.headers:
        job["headers"] = dict(leased.headers)
    return job


def _payload(payload: bytes) -> Raw | str:
    """Return a payload as it is if it is JSON, else as text, else as base64.

    Messages published through other interfaces need not be JSON.
    """
    if is_json(payload):
        return Raw(payload)
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return to_base64(payload).decode()


_ONE = "/v1/queues/{queue}"
ROUTES = (
    Route("GET", "/v1/queues", list_queues),
    Route("GET", "/v1/queues/", list_queues),
    Route("POST", f"{_ONE}/enqueue", enqueue),
    Route("POST", f"{_ONE}/lease", lease),
    Route("GET", f"{_ONE}/stats", stats),
    Route("POST", f"{_ONE}/rate_limit", set_rate_limit),
    Route("GET", f"{_ONE}/rate_limit", get_rate_limit),
    Route("POST", "/v1/ack", ack),
    Route("POST", "/v1/nack", nack),
    Route("GET", "/healthz", health, needs_key=False),
)
