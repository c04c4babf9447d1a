"""The methods `Lease` and `Settle` of `penstock.v1.QueueService`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from penstock.broker import Outcome, Settlement, Verb, check_name
from penstock.checking import check_number
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME, LeasedMessage
from penstock.protobuf.descriptors import METHODS, Proto, message_class
from penstock.protobuf.messages import lease_response, new_messages
from penstock.server.grpc.call import GrpcCall, queue_of
from penstock.server.problems import RequestTooSlow
from penstock.server.rest.structs import MOST_LEASED, MOST_SETTLED

# Clients of gRPC accept answers of 4 MiB unless told otherwise. A message adds at most 200 bytes to
# its payload, headers and key, and an answer has at most 10,000 of them.
ANSWER_BYTES = 2 << 20
_ABSURD_S = 86400.0  # asking to wait longer is a mistake
_LONGEST_HOLDER, _LONGEST_REASON = 256, 4096
_STATUSES = {"done": 1, "repeated": 2, "gone": 3, "invalid": 4}
_SettleResponse = message_class("SettleResponse")


async def lease(call: GrpcCall) -> None:
    """Lease messages, and optionally wait for them."""
    request = await call.read(METHODS["Lease"].request)
    await deliver(
        call,
        _start_lease(call, request),
        lease_response,
        checked_again=queue_of(request).namespace if request.wait_s else None,
        trimmed=request.dead,
    )


async def deliver(
    call: GrpcCall,
    leasing: "asyncio.Future[list[LeasedMessage]]",
    response_of: Callable[[Sequence[LeasedMessage]], Proto],
    *,
    checked_again: str | None = None,
    trimmed: bool = False,
) -> None:
    """Send leased messages, and release those that the client does not take.

    `checked_again` is the namespace of a call that waited: its key may have been revoked meanwhile.
    With `trimmed`, messages that do not fit into an answer are released as well.
    """
    leased: Sequence[LeasedMessage] = ()
    try:
        leased = await leasing
        if leased and checked_again is not None:
            await call.admit()
            call.caller.check(Verb.CONSUME, checked_again)
        taken = first_rows(leased) if trimmed else leased
        await call.send(response_of(taken).SerializeToString())
        await asyncio.sleep(0)  # raises a cancellation that arrived while the answer was sent
        if call.context.time_remaining() == 0:
            raise RequestTooSlow("the deadline of the call passed before the answer was sent")
        leased = leased[len(taken) :]
    except asyncio.CancelledError:
        if leasing.done() and not leasing.cancelled() and leasing.exception() is None:
            leased = leased or leasing.result()  # they arrived at the moment of the cancellation
        raise
    finally:
        call.broker.give_back(leased)


def _start_lease(call: GrpcCall, request: Proto) -> "asyncio.Future[list[LeasedMessage]]":
    queue = queue_of(request)
    n = request.max if request.HasField("max") else 1
    if not 1 <= n <= MOST_LEASED:
        raise InvalidInput(f"max is {n}; it must be 1 to {MOST_LEASED}")
    group = group_of(request)
    lease_s = request.lease_s if request.HasField("lease_s") else None
    holder = holder_of(request)
    if request.dead:
        if request.wait_s:
            raise InvalidInput("dead letters are not waited for: leave wait_s out")
        return call.broker.lease_dead(
            call.caller, queue, n=n, lease_s=lease_s, group=group, holder=holder
        )
    return call.broker.lease(
        call.caller,
        queue,
        n=n,
        lease_s=lease_s,
        wait_s=ends_before(request.wait_s, call.context.time_remaining()),
        group=group,
        holder=holder,
        max_bytes=max(request.max_bytes, 1) if request.HasField("max_bytes") else ANSWER_BYTES,
    )


def ends_before(wait_s: float, left_s: float | None) -> float:
    """Return how long to wait: a wait ends a little before the deadline of the call."""
    wait_s = check_number("wait_s", wait_s, 0, _ABSURD_S)
    if not wait_s or left_s is None or wait_s <= left_s * 0.9:
        return wait_s
    return float(max(left_s - min(left_s / 10, 0.5), 0.001))


def group_of(request: Proto) -> str:
    """Return the group that a request names; main if it names none."""
    return check_name("group", request.group) if request.HasField("group") else MAIN_GROUP_NAME


def holder_of(request: Proto) -> str:
    holder: str = request.holder
    if len(holder) > _LONGEST_HOLDER:
        raise InvalidInput(f"holder has {len(holder)} characters; the maximum is {_LONGEST_HOLDER}")
    return holder


async def settle(call: GrpcCall, request: Proto) -> Proto:
    """Ack, nack, extend or release leased messages."""
    return settle_response(await call.broker.settle(call.caller, settlements_of(request)))


def settlements_of(request: Proto) -> list[Settlement]:
    """Return settlements in the order of their results."""
    found = [
        Settlement("ack", one.receipt, emit=new_messages(one.emit) if one.emit else ())
        for one in request.ack
    ]
    for one in request.nack:
        if len(one.reason) > _LONGEST_REASON:
            raise InvalidInput(
                f"a reason has {len(one.reason)} characters; the maximum is {_LONGEST_REASON}"
            )
        delay_s = one.delay_s if one.HasField("delay_s") else None
        found.append(
            Settlement("nack", one.receipt, reason=one.reason, delay_s=delay_s, dead=one.dead)
        )
    found += [
        Settlement(
            "extend",
            one.receipt,
            lease_s=one.lease_s if one.HasField("lease_s") else None,
            progress=one.progress if one.HasField("progress") else None,
            note=one.note,
        )
        for one in request.extend
    ]
    found += [Settlement("release", receipt) for receipt in request.release]
    if not 1 <= len(found) <= MOST_SETTLED:
        raise InvalidInput(f"a call settles 1 to {MOST_SETTLED} receipts, not {len(found)}")
    return found


def settle_response(outcomes: Sequence[Outcome]) -> Proto:
    """Return the response of a settlement."""
    response = _SettleResponse()
    add = response.results.add
    for receipt, status, detail, ids in outcomes:
        result = add(receipt=receipt, status=_STATUSES[status])
        if detail:
            result.detail = detail
        if ids:
            result.ids.extend(ids)
    return response


def first_rows(rows: Sequence[Any]) -> Sequence[Any]:
    """Return the rows that fit into an answer: at least one. Each has a `message`."""
    size = 0
    for number, row in enumerate(rows):
        message = row.message
        size += len(message.payload) + sum(len(k) + len(v) for k, v in message.headers.items())
        if size > ANSWER_BYTES and number:
            return rows[:number]
    return rows
