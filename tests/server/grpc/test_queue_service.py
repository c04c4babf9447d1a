"""`penstock.v1.QueueService` over real channels: messages, operations, queues."""

import asyncio
from typing import Any

import grpc
import httpx2
import pytest

from penstock.operations.operation import field_notes
from penstock.protobuf.descriptors import METHODS
from penstock.protobuf.operations import OPERATIONS, field_of, is_of_message
from tests.server.grpc.calling import Caller, address_of
from tests.server.running import RunningServer, queue_path


def test_messages_are_published_leased_and_settled(grpc_client: Caller, queue: str) -> None:
    ids = grpc_client.publish(queue, b"a", b"\xff\x00")
    first, second = grpc_client.lease(queue, max=10, holder="me", lease_s=60)
    assert [first.message.id, second.message.id] == ids
    assert (first.message.payload, second.message.payload) == (b"a", b"\xff\x00")
    assert (first.attempt, first.message.seq, second.message.seq) == (1, 1, 2)
    assert first.deadline_ns - first.message.published_ns > 59e9
    response = grpc_client.call(
        "Settle",
        ack=[{"receipt": first.receipt}],
        nack=[{"receipt": second.receipt, "reason": "broken", "delay_s": 0}],
    )
    assert [one.status for one in response.results] == [1, 1]
    (again,) = grpc_client.lease(queue)
    assert (again.message.id, again.attempt) == (ids[1], 2)
    response = grpc_client.call(
        "Settle", extend=[{"receipt": again.receipt, "lease_s": 90}], release=[first.receipt]
    )
    assert [one.status for one in response.results] == [1, 3]  # the second was acked before
    assert response.results[1].detail


def test_options_of_a_message_arrive(grpc_client: Caller, queue: str) -> None:
    message = {
        "payload": b"{}",
        "priority": 9,
        "ttl_s": 3600,
        "headers": {"kind": "é"},
        "key": "k",
        "max_attempts": 2,
        "content_type": "application/json",
    }
    grpc_client.call("Publish", queue=queue, messages=[message])
    (leased,) = grpc_client.lease(queue)
    found = leased.message
    assert (found.priority, found.key, found.max_attempts) == (9, "k", 2)
    assert dict(found.headers) == {"kind": "é"}
    assert found.content_type == "application/json"
    assert 3599 < (found.expires_at_ns - found.published_ns) / 1e9 <= 3600
    assert found.deliver_at_ns == 0


def test_a_message_can_be_delivered_later(grpc_client: Caller, queue: str) -> None:
    due_ns = 4_000_000_000_000_000_000
    messages = [{"payload": b"a", "delay_s": 60}, {"payload": b"b", "deliver_at_ns": due_ns}]
    grpc_client.call("Publish", queue=queue, messages=messages)
    assert grpc_client.lease(queue) == []
    rows = grpc_client.call("Browse", queue=queue, state="scheduled").rows
    assert [row.message.payload for row in rows] == [b"a", b"b"]
    assert rows[1].message.deliver_at_ns == due_ns


def test_a_batch_with_one_bad_message_publishes_nothing(grpc_client: Caller, queue: str) -> None:
    grpc_client.publish(queue, b"first")
    with pytest.raises(grpc.RpcError) as caught:
        grpc_client.call(
            "Publish", queue=queue, messages=[{"payload": b"x"}, {"payload": b"y", "priority": 12}]
        )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert grpc_client.ready(queue) == (1, 0)


def test_duplicates_are_told(grpc_client: Caller, queue: str) -> None:
    message = {"payload": b"x", "dedup_id": "one"}
    first = grpc_client.call("Publish", queue=queue, messages=[message]).messages[0]
    second = grpc_client.call("Publish", queue=queue, messages=[message]).messages[0]
    assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)


def test_an_ack_may_emit(grpc_client: Caller, queue: str) -> None:
    grpc_client.publish(queue, b"in")
    (leased,) = grpc_client.lease(queue)
    ack = {"receipt": leased.receipt, "emit": [{"payload": b"out"}]}
    (result,) = grpc_client.call("Settle", ack=[ack]).results
    (emitted,) = grpc_client.lease(queue)
    assert (list(result.ids), emitted.message.payload) == ([emitted.message.id], b"out")


def test_queues_are_those_of_http(
    server: RunningServer, http: httpx2.Client, grpc_client: Caller, queue: str
) -> None:
    http.post(queue_path(queue, "messages", namespace="shop"), json={"payload": {"n": 1}})
    (leased,) = grpc_client.lease(queue, namespace="shop")
    assert leased.message.payload == b'{"n":1}'
    settled = http.post("/api/v1/settle", json={"ack": [leased.receipt]})
    assert settled.json()["results"][0]["status"] == "done"


def test_answers_fit_the_limit_of_an_ordinary_client(grpc_client: Caller, queue: str) -> None:
    grpc_client.call("CreateQueue", queue=queue)
    for _ in range(6):
        grpc_client.publish(queue, b"x" * 1_000_000)
    leased = grpc_client.lease(queue, max=10)
    assert 1 <= len(leased) <= 3
    rows = grpc_client.call("Browse", queue=queue)
    assert 1 <= len(rows.rows) <= 3 and rows.next_seq
    following = grpc_client.call("Browse", queue=queue, after_seq=rows.next_seq)
    assert following.rows[0].message.seq == rows.rows[-1].message.seq + 1


def test_an_aio_channel_works_as_well(server: RunningServer, queue: str) -> None:
    async def talk() -> Any:
        publish, lease = METHODS["Publish"], METHODS["Lease"]
        async with grpc.aio.insecure_channel(address_of(server)) as channel:
            request = publish.request(queue=queue, messages=[{"payload": b"x"}])
            await channel.unary_unary(publish.path)(request.SerializeToString())
            raw = await channel.unary_unary(lease.path)(
                lease.request(queue=queue).SerializeToString()
            )
            return lease.response.FromString(raw)

    assert asyncio.run(talk()).messages[0].message.payload == b"x"


# -- operations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_request_has_the_fields_of_its_operation(name: str) -> None:
    kind: Any = OPERATIONS[name]
    expected = {field_of(note) for note in field_notes(kind)}
    if not is_of_message(kind):
        expected |= {"namespace", "queue"}
    stated = set(METHODS[name].request.DESCRIPTOR.fields_by_name)
    assert stated - {"max_rate"} == expected


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_response_has_the_fields_of_the_answer(name: str) -> None:
    answer: Any = OPERATIONS[name].answer
    stated = set(METHODS[name].response.DESCRIPTOR.fields_by_name)
    if answer.field:
        assert stated == {answer.field}
    elif answer.kind is None:
        assert not stated
    elif hasattr(answer.kind, "_fields"):
        assert stated == set(answer.kind._fields)
    else:
        assert stated in ({"rows"}, {"events"})


def test_operations_look_and_change(grpc_client: Caller, queue: str) -> None:
    call = grpc_client.call
    ids = grpc_client.publish(queue, b"a", b"b", b"c")
    assert call("Pause", queue=queue).paused
    assert grpc_client.lease(queue) == []
    assert call("ExplainWait", id=ids[0]).code == "paused"
    assert not call("Resume", queue=queue).paused
    assert call("Cancel", id=ids[2]).cancelled
    assert [row.message.id for row in call("Peek", queue=queue, n=5).rows] == ids[:2]
    assert call("CreateGroup", queue=queue, name="audit", to="end").created
    assert list(call("ListGroups", queue=queue).groups) == ["audit", "main"]
    assert call("PreviewSeek", queue=queue, to="beginning", group="audit").messages == 3
    assert call("Seek", queue=queue, to="beginning", group="audit").next_seq == 1
    (leased,) = grpc_client.lease(queue, group="audit")
    held = call("ListConsumers", queue=queue, group="audit")
    assert (held.leases, held.held[0].id) == (1, ids[0])
    call("Settle", ack=[{"receipt": leased.receipt}])
    events = call("ListHistory", id=ids[0], group="audit").events
    assert [one.event for one in events][-1] == "acked"
    call("DeleteGroup", queue=queue, name="audit")
    assert call("GetMessage", id=ids[0]).state == "ready"
    assert call("GetStats", queue=queue).groups["main"].ready == 2
    assert call("GetStorage", queue=queue).total_segments >= 1
    assert call("Compact", queue=queue).freed_bytes == 0
    call("Sync", queue=queue)
    assert call("Purge", queue=queue).purged == 2


def test_dead_letters_are_listed_redriven_and_discarded(grpc_client: Caller, queue: str) -> None:
    call = grpc_client.call
    call("CreateQueue", queue=queue, settings={"max_attempts": 1})
    ids = grpc_client.publish(queue, b"a", b"b")
    leased = grpc_client.lease(queue, max=2)
    call("Settle", nack=[{"receipt": one.receipt, "reason": "code 7"} for one in leased])
    letters = call("ListDead", queue=queue).letters
    assert [(one.message.id, one.reason, one.cause) for one in letters] == [
        (id_, "code 7", "nack") for id_ in ids
    ]
    assert call("ListDeadReasons", queue=queue).reasons[0].messages == 2
    assert call("GetRetryInfo", id=ids[0]).reason == "code 7"
    (dead,) = grpc_client.lease(queue, dead=True)
    call("Settle", release=[dead.receipt])
    assert call("Redrive", queue=queue, ids=ids[:1], dry_run=True).redriven == 1
    assert call("Redrive", queue=queue, ids=ids[:1]).redriven == 1
    assert call("Discard", queue=queue).discarded == 1
    assert grpc_client.ready(queue) == (1, 0)
    (again,) = grpc_client.lease(queue)
    call("Settle", nack=[{"receipt": again.receipt}])
    assert call("Redrive", queue=queue, max_rate=1000.0).redriven == 1


# -- queues ----------------------------------------------------------------------------------------


def test_queues_are_made_changed_listed_and_deleted(grpc_client: Caller, queue: str) -> None:
    call = grpc_client.call
    settings = {"lease_s": 5, "max_attempts": 3, "when_full": "reject", "auto_compact": False}
    made = call("CreateQueue", namespace="made", queue=queue, settings=settings)
    assert {name: made.settings[name] for name in settings} == settings
    assert made.created_ns > 0
    call("CreateQueue", namespace="made", queue=queue, settings={"lease_s": 5})
    with pytest.raises(grpc.RpcError) as caught:
        call("CreateQueue", namespace="made", queue=queue, settings={"lease_s": 6})
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    changed = call("ChangeQueue", namespace="made", queue=queue, settings={"max_attempts": 4})
    assert changed.settings["max_attempts"] == 4
    assert call("GetQueue", namespace="made", queue=queue).settings["lease_s"] == 5
    call("CreateQueue", namespace="made", queue="another")
    names = [one.queue for one in call("ListQueues", namespace="made").queues]
    assert names == sorted([queue, "another"])
    page = call("ListQueues", namespace="made", limit=1)
    following = call("ListQueues", namespace="made", after=page.next_after)
    assert [one.queue for one in (*page.queues, *following.queues)] == names
    assert not following.next_after
    call("DeleteQueue", namespace="made", queue=queue)
    with pytest.raises(grpc.RpcError) as caught:
        call("GetQueue", namespace="made", queue=queue)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_rate_limits(grpc_client: Caller, queue: str) -> None:
    grpc_client.call("CreateQueue", queue=queue)
    limit = grpc_client.call("SetRateLimit", queue=queue, refill_per_s=0.001, capacity=2)
    assert (limit.refill_per_s, limit.capacity) == (0.001, 2)
    assert grpc_client.call("GetRateLimit", queue=queue).capacity == 2
    assert grpc_client.call("GetLimits", queue=queue).limits[0].name == "rate_burst"
    grpc_client.publish(queue, b"a", b"b")
    with pytest.raises(grpc.RpcError) as caught:
        grpc_client.publish(queue, b"c")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
