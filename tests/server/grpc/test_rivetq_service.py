"""RivetQ's service over gRPC: its field numbers, and the rules of its HTTP dialect."""

from typing import Any

import grpc
import httpx2
import pytest

from tests.server.grpc.calling import RIVETQ_METHODS, Caller

# As RivetQ's own clients number the fields.
NUMBERS = {
    "EnqueueRequest": {
        "queue_name": 1,
        "payload": 2,
        "headers": 3,
        "priority": 4,
        "delay_ms": 5,
        "retry_policy": 6,
        "idempotency_key": 7,
    },
    "EnqueueResponse": {"job_id": 1},
    "LeaseRequest": {"queue_name": 1, "max_jobs": 2, "visibility_ms": 3},
    "LeaseResponse": {"jobs": 1},
    "AckRequest": {"job_id": 1, "lease_id": 2},
    "AckResponse": {"success": 1},
    "NackRequest": {"job_id": 1, "lease_id": 2, "reason": 3},
    "NackResponse": {"success": 1},
    "StatsRequest": {"queue_name": 1},
    "StatsResponse": {"ready": 1, "inflight": 2, "dlq": 3},
    "ListQueuesRequest": {},
    "ListQueuesResponse": {"queues": 1},
    "SetRateLimitRequest": {"queue_name": 1, "capacity": 2, "refill_rate": 3},
    "SetRateLimitResponse": {"success": 1},
    "GetRateLimitRequest": {"queue_name": 1},
    "GetRateLimitResponse": {"capacity": 1, "refill_rate": 2, "exists": 3},
}
JOB = {"id": 1, "queue": 2, "payload": 3, "headers": 4, "priority": 5, "tries": 6, "lease_id": 7}


def test_fields_have_the_numbers_of_rivetq() -> None:
    kinds = [kind for one in RIVETQ_METHODS.values() for kind in (one.request, one.response)]
    found = {
        kind.DESCRIPTOR.name: {field.name: field.number for field in kind.DESCRIPTOR.fields}
        for kind in kinds
    }
    assert found == NUMBERS
    lease: Any = RIVETQ_METHODS["Lease"].response
    job = lease.DESCRIPTOR.fields_by_name["jobs"].message_type
    assert {field.name: field.number for field in job.fields} == JOB
    policy: Any = RIVETQ_METHODS["Enqueue"].request
    retry = policy.DESCRIPTOR.fields_by_name["retry_policy"].message_type
    assert {field.name: field.number for field in retry.fields} == {"max_retries": 1}


def test_a_request_is_read_as_rivetq_writes_it(grpc_client: Caller, queue: str) -> None:
    raw = b"\x0a" + bytes([len(queue)]) + queue.encode() + b"\x12\x02hi\x20\x07\x32\x02\x08\x02"
    response = grpc_client.channel.unary_unary("/rivetq.QueueService/Enqueue")(raw, timeout=30)
    assert response[:2] == b"\x0a\x1a"  # field 1, 26 characters
    (job,) = grpc_client.rivetq("Lease", queue_name=queue).jobs
    assert (job.id, job.payload, job.priority) == (response[2:].decode(), b"hi", 7)


def test_the_life_of_a_job(grpc_client: Caller, queue: str) -> None:
    call = grpc_client.rivetq
    made = call("Enqueue", queue_name=queue, payload=b"\xff", headers={"a": "b"}, priority=200)
    (job,) = call("Lease", queue_name=queue, max_jobs=5, visibility_ms=60_000).jobs
    assert (job.id, job.queue, job.payload, job.tries) == (made.job_id, queue, b"\xff", 0)
    assert (dict(job.headers), job.priority) == ({"a": "b"}, 9)
    stats = call("Stats", queue_name=queue)
    assert (stats.ready, stats.inflight, stats.dlq) == (0, 1, 0)
    assert call("Nack", job_id=job.id, lease_id=job.lease_id, reason="no").success
    (again,) = grpc_client.lease(queue, wait_s=20)  # after RivetQ's backoff of 0.1 s
    assert (again.message.id, again.attempt) == (job.id, 2)
    assert call("Ack", job_id=job.id, lease_id=again.receipt).success
    with pytest.raises(grpc.RpcError) as caught:
        call("Ack", job_id=job.id, lease_id=again.receipt)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_the_third_failed_try_makes_a_job_dead(grpc_client: Caller, queue: str) -> None:
    call = grpc_client.rivetq
    call("Enqueue", queue_name=queue, payload=b"x")
    for tries in range(3):
        (job,) = grpc_client.lease(queue, wait_s=20)
        assert job.attempt == tries + 1
        call("Nack", job_id=job.message.id, lease_id=job.receipt)
    assert call("Stats", queue_name=queue).dlq == 1


def test_a_lease_of_another_job_is_refused(grpc_client: Caller, queue: str) -> None:
    call = grpc_client.rivetq
    first = call("Enqueue", queue_name=queue, payload=b"x").job_id
    call("Enqueue", queue_name=queue, payload=b"y")
    jobs = call("Lease", queue_name=queue, max_jobs=2).jobs
    with pytest.raises(grpc.RpcError) as caught:
        call("Ack", job_id=first, lease_id=jobs[1].lease_id)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_the_same_key_gives_the_same_job(grpc_client: Caller, queue: str) -> None:
    ids = {
        grpc_client.rivetq("Enqueue", queue_name=queue, payload=b"x", idempotency_key="k").job_id
        for _ in range(3)
    }
    assert len(ids) == 1


def test_rate_limits_and_queues(grpc_client: Caller, http: httpx2.Client, queue: str) -> None:
    call = grpc_client.rivetq
    assert not call("GetRateLimit", queue_name=queue).exists
    assert call("SetRateLimit", queue_name=queue, capacity=2, refill_rate=0.001).success
    limit = call("GetRateLimit", queue_name=queue)
    assert (limit.capacity, limit.refill_rate, limit.exists) == (2, 0.001, True)
    assert http.get(f"/v1/queues/{queue}/rate_limit").json()["capacity"] == 2
    call("Enqueue", queue_name=queue, payload=b"1")
    call("Enqueue", queue_name=queue, payload=b"2")
    with pytest.raises(grpc.RpcError) as caught:
        call("Enqueue", queue_name=queue, payload=b"3")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert queue in call("ListQueues").queues
    for bad in ({"capacity": 0.5, "refill_rate": 1}, {"capacity": float("nan"), "refill_rate": 1}):
        with pytest.raises(grpc.RpcError) as caught:
            call("SetRateLimit", queue_name=queue, **bad)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        call("Stats", queue_name="missing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
