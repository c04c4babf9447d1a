"""ReceiveMessage."""

from asyncio import CancelledError, Future
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.broker import QueueName, Verb
from penstock.broker.access import INSIDE
from penstock.broker.store import payload_bytes
from penstock.errors import PenstockError
from penstock.model import NS, LeasedMessage
from penstock.operations import GetRetryInfo
from penstock.server.call import LATER, Call, Later
from penstock.server.off_loop import size_of_many, to_base64
from penstock.server.replies import Reply
from penstock.server.sqs import bodies, dead_letters
from penstock.server.sqs.attributes import MAX_VISIBILITY_S, MAX_WAIT_S, SHORTEST_LEASE_S
from penstock.server.sqs.attributes import NAMES as QUEUE_ATTRIBUTES
from penstock.server.sqs.errors import SqsError, invalid_value
from penstock.server.sqs.message_attributes import (
    DEDUP_HEADER,
    GROUP_HEADER,
    TRACE_ATTRIBUTE,
    TRACE_HEADER,
    attributes_of,
    md5,
    md5_of,
)
from penstock.server.sqs.names import arn_of_queue, is_fifo
from penstock.server.sqs.request import Request, admit
from penstock.server.sqs.sending import content_id, sequence_number

MAX_MESSAGES = 10
_FIRST_RECEIVED = "ApproximateFirstReceiveTimestamp"
_SYSTEM = frozenset(
    {
        "SentTimestamp",
        "ApproximateReceiveCount",
        _FIRST_RECEIVED,
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        TRACE_ATTRIBUTE,
        "DeadLetterQueueSourceArn",
    }
)
_ACCEPTED = _SYSTEM | QUEUE_ATTRIBUTES | {"All", "SenderId"}


class Wanted(NamedTuple):
    """What a client wants to know of each message."""

    queue: QueueName
    system: frozenset[str]
    attributes: Sequence[str]


async def receive_message(request: Request, body: bodies.ReceiveMessage) -> Later:
    queue = await request.queue(body.QueueUrl)
    record = request.record(queue)
    n = _within("MaxNumberOfMessages", body.MaxNumberOfMessages, 1, MAX_MESSAGES)
    visible_s = _within("VisibilityTimeout", body.VisibilityTimeout, 0, MAX_VISIBILITY_S)
    wait_s = _within("WaitTimeSeconds", body.WaitTimeSeconds, 0, MAX_WAIT_S)
    wanted = Wanted(queue, _system_names(body), body.MessageAttributeNames or ())
    lease_s = None if visible_s is None else max(float(visible_s), SHORTEST_LEASE_S)
    wait_s = record.wait_s if wait_s is None else wait_s
    sources = request.records.sources(queue)
    call, n = request.call, n or 1
    lease = partial(request.broker.lease, request.caller, queue, n=n, lease_s=lease_s)
    leasing: Any
    if sources:
        leasing = dead_letters.lease(request, queue, sources, n, lease_s, wait_s)
    elif wait_s or _FIRST_RECEIVED in wanted.system:
        leasing = lease(wait_s=float(wait_s))
    else:
        leasing = lease(pending=call)
    if isinstance(leasing, Future):
        leased = await _wait(request, leasing, queue, wait_s)
        if leased is None:
            return LATER
        leasing = leased
    firsts = {}
    if leasing and _FIRST_RECEIVED in wanted.system:
        firsts = await _first_received(request, leasing)
    make = partial(_messages, request, wanted, firsts)
    return call.when_done(leasing, make, _size_of, request.broker.give_back)


async def _wait(
    request: Request, leasing: "Future[list[LeasedMessage]]", queue: QueueName, wait_s: int
) -> list[LeasedMessage] | None:
    """Return what a lease gets; None if the client has gone meanwhile."""
    call = request.call
    call.connection.wait_for(leasing)
    try:
        leased = await dead_letters.taken(leasing, request.broker.give_back)
    except CancelledError:
        if leasing.cancelled() and call.connection.is_closed:
            return None
        raise
    if leased and wait_s and call.service.keys.required:
        try:  # the key may have been revoked or changed while it waited
            caller = await admit(call)
            caller.check(Verb.CONSUME, queue.namespace)
        except BaseException:
            request.broker.give_back(leased)
            raise
    return leased


def _within(name: str, value: int | None, low: int, high: int) -> int | None:
    if value is not None and not low <= value <= high:
        raise invalid_value(name, value, f"Must be >= {low} and <= {high}, if provided.")
    return value


def _system_names(body: bodies.ReceiveMessage) -> frozenset[str]:
    names = {*(body.AttributeNames or ()), *(body.MessageSystemAttributeNames or ())}
    for name in names:
        if name not in _ACCEPTED:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    return _SYSTEM if "All" in names else _SYSTEM & names


async def _first_received(request: Request, leased: Sequence[LeasedMessage]) -> dict[str, int]:
    """Return when messages that were delivered before failed for the first time.

    That is the end of the first delivery. Its start is in the log only, and not worth reading it.
    """
    found = {}
    for one in leased:
        if one.attempt > 1:
            try:
                info = await request.broker.run(INSIDE, GetRetryInfo(one.id))
                found[one.id] = info.first_failure_ns
            except PenstockError:
                pass  # it has just been settled by another call
    return found


# -- the answer ------------------------------------------------------------------------------------


def _size_of(leased: Sequence[LeasedMessage]) -> int:
    return size_of_many(len(leased), payload_bytes(leased))


def _messages(
    request: Request,
    wanted: Wanted,
    firsts: Mapping[str, int],
    _: Call,
    leased: Sequence[LeasedMessage],
) -> Reply:
    """Make the answer, in the loop or in a thread."""
    if not leased:
        return request.reply({})
    return request.reply({"Messages": [_message(request, wanted, firsts, one) for one in leased]})


def _message(
    request: Request, wanted: Wanted, firsts: Mapping[str, int], leased: LeasedMessage
) -> dict[str, Any]:
    message = leased.message
    try:
        body = message.payload.decode()
        data = message.payload
    except UnicodeDecodeError:  # from another interface: SQS has only text
        data = to_base64(message.payload)
        body = data.decode()
    found: dict[str, Any] = {
        "MessageId": message.id,
        "ReceiptHandle": leased.receipt,
        "MD5OfBody": md5(data),
        "Body": body,
    }
    if wanted.system:
        found["Attributes"] = _system(request, wanted, firsts, leased)
    attributes = attributes_of(message.headers, wanted.attributes)
    if attributes:
        found["MessageAttributes"] = attributes
        found["MD5OfMessageAttributes"] = md5_of(attributes)
    return found


def _system(
    request: Request, wanted: Wanted, firsts: Mapping[str, int], leased: LeasedMessage
) -> dict[str, str]:
    message, headers = leased.message, leased.message.headers
    first_ns = firsts.get(message.id) or request.broker.clock.now_ns()
    found = {
        "SentTimestamp": _ms(message.published_ns),
        "ApproximateReceiveCount": str(leased.attempt),
        _FIRST_RECEIVED: _ms(first_ns),
    }
    group = message.key if is_fifo(wanted.queue) else headers.get(GROUP_HEADER)
    if group is not None:
        found["MessageGroupId"] = group
    if is_fifo(wanted.queue):
        found["SequenceNumber"] = sequence_number(message.seq)
        dedup_id = headers.get(DEDUP_HEADER)
        found["MessageDeduplicationId"] = dedup_id or content_id(message.payload)
    if TRACE_HEADER in headers:
        found[TRACE_ATTRIBUTE] = headers[TRACE_HEADER]
    source = request.broker.queue_of_receipt(leased.receipt)
    if source is not None and source != wanted.queue:
        found["DeadLetterQueueSourceArn"] = arn_of_queue(request.region, source)
    return {name: value for name, value in found.items() if name in wanted.system}


def _ms(time_ns: int) -> str:
    return str(time_ns * 1000 // NS)
