"""The service of RivetQ over gRPC, in the namespace `default`: the rules of its HTTP dialect."""

from collections.abc import Sequence
from typing import Any

from penstock.broker import DEFAULT_NAMESPACE, QueueName, Settlement
from penstock.model import LeasedMessage
from penstock.protobuf.descriptors import RIVETQ, Proto, methods_of
from penstock.server.dialects import rivetq
from penstock.server.dialects.call import check_settled
from penstock.server.grpc.call import GrpcCall, Shared, Unary, streaming, unary
from penstock.server.grpc.leasing import ANSWER_BYTES, deliver

_METHODS = methods_of(RIVETQ)
_MOST_INT32 = (1 << 31) - 1


def _queue(request: Proto) -> QueueName:
    return QueueName.checked(DEFAULT_NAMESPACE, request.queue_name)


async def enqueue(call: GrpcCall, request: Proto) -> Proto:
    message = rivetq.new_job(
        request.payload,
        dict(request.headers),
        request.priority,
        request.delay_ms,
        request.retry_policy.max_retries,
        request.idempotency_key,
    )
    (published,) = await call.broker.publish(call.caller, _queue(request), [message])
    return _METHODS["Enqueue"].response(job_id=published.id)


async def lease(call: GrpcCall) -> None:
    """Lease jobs."""
    request = await call.read(_METHODS["Lease"].request)
    queue = _queue(request)
    n, lease_s = rivetq.lease_options(request.max_jobs, request.visibility_ms)
    leasing = call.broker.lease(call.caller, queue, n=n, lease_s=lease_s, max_bytes=ANSWER_BYTES)

    def jobs(leased: Sequence[LeasedMessage]) -> Proto:
        return _METHODS["Lease"].response(jobs=[_job(queue, one) for one in leased])

    await deliver(call, leasing, jobs)


def _job(queue: QueueName, leased: LeasedMessage) -> dict[str, Any]:
    return {
        "id": leased.id,
        "queue": queue.name,
        "payload": leased.payload,
        "headers": dict(leased.headers),
        "priority": leased.priority,
        "tries": leased.attempt - 1,
        "lease_id": leased.receipt,
    }


async def ack(call: GrpcCall, request: Proto) -> Proto:
    rivetq.check_lease(request.job_id, request.lease_id)
    await _settle(call, Settlement("ack", request.lease_id))
    return _METHODS["Ack"].response(success=True)


async def nack(call: GrpcCall, request: Proto) -> Proto:
    rivetq.check_lease(request.job_id, request.lease_id)
    await _settle(call, rivetq.nack_settlement(request.lease_id, request.reason))
    return _METHODS["Nack"].response(success=True)


async def _settle(call: GrpcCall, settlement: Settlement) -> None:
    check_settled(await call.broker.settle(call.caller, [settlement]))


async def stats(call: GrpcCall, request: Proto) -> Proto:
    found = await rivetq.counts(call.broker, call.caller, _queue(request))
    lowered = {name: min(count, _MOST_INT32) for name, count in found.items()}
    return _METHODS["Stats"].response(**lowered)


async def list_queues(call: GrpcCall, request: Proto) -> Proto:
    return _METHODS["ListQueues"].response(queues=rivetq.queue_names(call.broker, call.caller))


async def set_rate_limit(call: GrpcCall, request: Proto) -> Proto:
    await rivetq.change_rate_limit(
        call.broker, call.caller, _queue(request), request.capacity, request.refill_rate
    )
    return _METHODS["SetRateLimit"].response(success=True)


async def get_rate_limit(call: GrpcCall, request: Proto) -> Proto:
    found = await rivetq.rate_limit(call.broker, call.caller, _queue(request))
    return _METHODS["GetRateLimit"].response(**found)


_UNARY: dict[str, Unary] = {
    "Enqueue": enqueue,
    "Ack": ack,
    "Nack": nack,
    "Stats": stats,
    "ListQueues": list_queues,
    "SetRateLimit": set_rate_limit,
    "GetRateLimit": get_rate_limit,
}


def handlers(shared: Shared) -> dict[str, Any]:
    """Return the handlers of all methods by their paths."""
    found = {
        _METHODS[name].path: unary(shared, _METHODS[name], work) for name, work in _UNARY.items()
    }
    found[_METHODS["Lease"].path] = streaming(shared, _METHODS["Lease"], lease)
    return found
