"""The HTTP interface of RivetQ, in the namespace `default`.

`tries` counts failed deliveries, so it is one less than `attempt`. `max_retries` N means N attempts
in total. Times are milliseconds. Numbers have the types of RivetQ's server: a number outside of its
type is refused, and one that is too large for Penstock is lowered to the maximum.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from penstock.broker import DEFAULT_NAMESPACE, Outcome, Settlement, Verb
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
    headers, delay_ms, dedup_id = body.headers, body.delay_ms, body.idempotency_key
    message = NewMessage(
        payload=bytes(body.payload),
        content_type=JSON,
        headers={name: value or "" for name, value in headers.items()} if headers else None,
        priority=min(body.priority, _HIGHEST_PRIORITY),
        delay=min(delay_ms, _LONGEST_DELAY_MS) / 1000 if delay_ms > 0 else None,
        max_attempts=min(body.max_retries or _MAX_RETRIES, _MOST_RETRIES),
        dedup_id=dedup_id or None,
        dedup_window_s=IDEMPOTENCY_S if dedup_id else None,
    )
    return call.publish_one(message, _enqueued)


def _enqueued(_: Call, published: Sequence[Published]) -> bytes:
    return b'{"job_id":"%s"}' % published[0].id.encode()


def lease(call: Call) -> Any:
    return call.with_body(_read_lease, _lease_jobs)


def _read_lease(body: bytes) -> LeaseBody:
    return _lease.read(body) if body.strip() else LeaseBody()


def _lease_jobs(call: Call, body: LeaseBody) -> Answer:
    n = min(max(body.max_jobs, 1), _MOST_JOBS)
    lease_s = _visibility_ms(body) / 1000
    leasing = call.broker.lease(call.caller, call.queue, n=n, lease_s=lease_s, pending=call)
    return call.when_leased(leasing, _jobs)


def _jobs(call: Call, leased: Sequence[LeasedMessage]) -> bytes:
    return encode({"jobs": [_job(call, one) for one in leased]})


def ack(call: Call) -> Any:
    return call.with_body(_settle.read, _ack)


def _ack(call: Call, body: SettleBody) -> Answer:
    _check_lease(body)
    return settle(call, Settlement("ack", body.lease_id), _settled)


def nack(call: Call) -> Any:
    return call.with_body(_settle.read, _nack)


def _nack(call: Call, body: SettleBody) -> Answer:
    _check_lease(body)
    delay_s = _backoff_s(Receipt.unpack(body.lease_id))
    settlement = Settlement("nack", body.lease_id, reason=body.reason, delay_s=delay_s)
    return settle(call, settlement, _settled)


def _settled(_: Call, outcomes: Sequence[Outcome]) -> bytes:
    check_settled(outcomes)
    return b'{"success":true}'


async def stats(call: Call) -> Reply:
    found = await call.broker.run(call.caller, GetStats(), call.queue)
    ready = found.ready + found.scheduled + found.parked
    return json({"ready": ready, "inflight": found.leased, "dlq": found.dead})


async def list_queues(call: Call) -> Reply:
    found = call.broker.queues(call.caller)
    names = [queue.name for queue in found if queue.namespace == DEFAULT_NAMESPACE]
    return json({"queues": names})


async def set_rate_limit(call: Call) -> Reply:
    """Set the rate limit of a queue. 0 for both fields removes it."""
    body = await read(call, _rate_limit)
    capacity, rate = min(body.capacity, _MOST_TOKENS), min(body.refill_rate, _MOST_TOKENS)
    if (body.capacity < 1 or body.refill_rate <= 0) and (body.capacity or body.refill_rate):
        raise InvalidInput(
            f"with capacity {body.capacity:g} and refill_rate {body.refill_rate:g} nothing could "
            f"ever be published: give a capacity of at least 1 and a refill_rate above 0, or 0 for "
            f"both to remove the limit"
        )
    queue = call.queue
    changes = {"rate_per_s": rate, "rate_burst": capacity}
    try:
        await call.broker.change_queue(call.caller, queue, changes)
    except NoSuchQueue:
        if not call.broker.settings.create_on_use:
            raise
        await call.broker.create_queue(call.caller, queue, changes)
    return json({"success": True})


async def get_rate_limit(call: Call) -> Reply:
    queue = call.queue
    if not call.broker.has_queue(queue):
        call.broker.admit(call.caller, Verb.READ, queue.namespace)
        return json({"capacity": 0, "refill_rate": 0, "exists": False})
    settings = (await call.broker.queue_info(call.caller, queue)).settings
    rate = settings.rate_per_s
    capacity = (settings.rate_burst or rate) if rate else 0
    return json({"capacity": capacity, "refill_rate": rate, "exists": rate > 0})


async def health(call: Call) -> Reply:
    return json({"status": "healthy"})


def _check_lease(body: SettleBody) -> None:
    if not is_receipt_of(body.lease_id, body.job_id):
        raise ReceiptInvalid(f"lease {body.lease_id!r} is not one of job {body.job_id!r}")


def _visibility_ms(body: LeaseBody) -> int:
    if body.visibility_ms <= 0:
        return _VISIBILITY_MS
    return min(body.visibility_ms, _LONGEST_LEASE_MS)


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
