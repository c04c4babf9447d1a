"""Spans of queues of every kind, of workers and of the broker; trace ids in logs."""

import asyncio
import json
import logging
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

import penstock
import penstock.aio
from penstock.broker import QueueName, Settlement
from penstock.broker.access import INSIDE
from penstock.errors import PenstockError
from penstock.server import tracing as server_tracing
from penstock.server.server import Server
from penstock.server.settings import ServerSettings
from penstock.tracing import TraceIds, Tracing
from penstock.worker import Worker, WorkerOptions
from tests.server.running import RunningServer
from tests.tracing.conftest import Spans

UNTIL_EMPTY = WorkerOptions(idle_s=0)


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_publish_lease_and_settle_follow_the_conventions(spans: Spans, tmp_path: Path) -> None:
    with spans.tracing.queue(penstock.open(tmp_path / "orders")) as queue:
        published = queue.enqueue(b"one", headers={"kind": "test"})
        (leased,) = queue.lease(1, group="main")
        queue.ack(leased)
    sent, received, settled = spans.all()
    for span, name, type_, kind in (
        (sent, "enqueue", "send", SpanKind.PRODUCER),
        (received, "lease", "receive", SpanKind.CLIENT),
        (settled, "ack", "settle", SpanKind.CLIENT),
    ):
        assert (span.name, span.kind) == (f"{name} orders", kind)
        found = attributes(span)
        assert found["messaging.system"] == "penstock"
        assert found["messaging.destination.name"] == "orders"
        assert found["messaging.operation.name"] == name
        assert found["messaging.operation.type"] == type_
        assert found["messaging.message.id"] == published
    assert attributes(received)["messaging.consumer.group.name"] == "main"
    assert attributes(received)["messaging.batch.message_count"] == 1
    assert linked(received) == linked(settled) == [ids(sent)]
    assert leased.message.headers["kind"] == "test"
    trace_id, span_id = ids(sent)
    assert leased.message.headers["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")


def test_batches_count_their_messages_and_all_carry_the_context(
    spans: Spans, tmp_path: Path
) -> None:
    with spans.tracing.queue(penstock.open(tmp_path / "q")) as queue:
        queue.enqueue_batch([b"a", penstock.NewMessage(payload=b"b", priority=9), "c"])
        queue.publish([penstock.NewMessage(payload=b"d", headers={"traceparent": "own"})])
        taken = queue.dequeue_batch(10)
        assert queue.dequeue() is None
    assert [m.headers["traceparent"] == "own" for m in taken] == [False, False, False, True]
    assert attributes(spans.one("enqueue_batch q"))["messaging.batch.message_count"] == 3
    received = spans.one("dequeue_batch q")
    assert attributes(received)["messaging.batch.message_count"] == 4
    assert linked(received) == [ids(spans.one("enqueue_batch q"))] * 3
    assert attributes(spans.one("dequeue q"))["messaging.batch.message_count"] == 0


def test_emitted_messages_carry_the_context_of_the_ack(spans: Spans, tmp_path: Path) -> None:
    with spans.tracing.queue(penstock.open(tmp_path / "q")) as queue:
        queue.enqueue(b"a")
        queue.ack(queue.lease(1), emit=[b"b"])
        (message,) = queue.browse()
    span_id = ids(spans.one("ack q"))[1]
    assert f"{span_id:016x}" in message.headers["traceparent"]


def test_an_error_is_recorded_and_raised(spans: Spans, tmp_path: Path) -> None:
    with spans.tracing.queue(penstock.open(tmp_path / "q")) as queue:
        with pytest.raises(PenstockError):
            queue.enqueue(b"x", priority=77)
        with pytest.raises(PenstockError):
            queue.enqueue_batch(b"not a list")  # type: ignore[arg-type]
    span = spans.one("enqueue q")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "InvalidInput"


def test_a_queue_for_tasks_is_traced_and_tasks_do_not_mix(spans: Spans, tmp_path: Path) -> None:
    async def work() -> None:
        async with spans.tracing.queue(await penstock.aio.open(tmp_path / "q")) as queue:
            await asyncio.gather(*(queue.enqueue(b"%d" % n) for n in range(5)))
            assert len(await queue.lease(5)) == 5

    asyncio.run(work())
    sent = [span for span in spans.all() if span.name == "enqueue q"]
    assert len({ids(span)[0] for span in sent}) == 5
    assert all(span.parent is None for span in sent)
    assert sorted(linked(spans.one("lease q"))) == sorted(map(ids, sent))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_worker_has_a_span_around_each_handler(
    spans: Spans, tmp_path: Path, asynchronous: bool
) -> None:
    seen: list[tuple[int, int]] = []

    def handle(job: penstock.LeasedMessage) -> None:
        current = get_current_span().get_span_context()
        seen.append((current.trace_id, current.span_id))
        if job.payload == b"bad":
            raise ValueError("no")

    async def handle_async(job: penstock.LeasedMessage) -> None:
        handle(job)

    queue = spans.tracing.queue(penstock.open(tmp_path / "q", max_attempts=1))
    with queue:
        queue.enqueue(b"good")
        queue.enqueue(b"bad")
        middleware = [spans.tracing.middleware(queue)]
        handler = handle_async if asynchronous else handle
        Worker(queue, handler, options=UNTIL_EMPTY, middleware=middleware).run()
    processed = [span for span in spans.all() if span.name == "process q"]
    sent = [span for span in spans.all() if span.name == "enqueue q"]
    assert sorted(seen) == sorted(ids(span) for span in processed)
    assert sorted(linked(span)[0] for span in processed) == sorted(ids(span) for span in sent)
    good, bad = sorted(processed, key=lambda span: span.status.status_code.value)
    assert good.kind is SpanKind.CONSUMER
    assert attributes(good)["messaging.operation.type"] == "process"
    assert attributes(good)["messaging.message.body.size"] == 4
    assert bad.status.status_code is StatusCode.ERROR
    assert attributes(bad)["error.type"] == "ValueError"
    assert [event.name for event in bad.events] == ["exception"]
    assert {"lease q", "ack q", "nack q"} <= set(spans.names())


def test_logs_carry_the_ids_of_the_current_span(spans: Spans, tmp_path: Path) -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, handler = logging.getLogger("tests.tracing"), Keep()
    handler.addFilter(TraceIds())
    logger.addHandler(handler)
    try:
        logger.warning("outside")
        with spans.provider.get_tracer("test").start_as_current_span("work") as span:
            logger.warning("inside")
    finally:
        logger.removeHandler(handler)
    outside, inside = records
    assert getattr(outside, "trace_id", None) == ""
    assert getattr(inside, "trace_id", None) == f"{span.get_span_context().trace_id:032x}"
    assert getattr(inside, "span_id", None) == f"{span.get_span_context().span_id:016x}"


# -- over HTTP -------------------------------------------------------------------------------------


@pytest.fixture
def traced_broker(
    monkeypatch: pytest.MonkeyPatch, spans: Spans, tmp_path: Path
) -> Iterator[RunningServer]:
    """A server whose spans go to the same exporter."""
    monkeypatch.setattr(server_tracing, "Tracing", lambda: Tracing(spans.provider))
    with RunningServer(tmp_path / "data", tracing=True) as server:
        yield server


def test_the_spans_of_client_and_broker_are_one_trace(
    spans: Spans, traced_broker: RunningServer
) -> None:
    with spans.tracing.queue(penstock.open(f"{traced_broker.url}/shop/orders")) as queue:
        published = queue.enqueue(b"one")
        (leased,) = queue.lease(1)
        queue.ack(leased)
    by_kind = {(span.name, span.kind): span for span in spans.all()}
    for in_broker in ("publish", "lease", "ack"):
        found = attributes(by_kind[f"{in_broker} shop/orders", SpanKind.SERVER])
        assert found["messaging.destination.name"] == "shop/orders"
        assert found["messaging.batch.message_count"] == 1
        if in_broker != "ack":  # a receipt does not say the id
            assert found["messaging.message.id"] == published
    for name, kind, in_broker in (
        ("enqueue", SpanKind.PRODUCER, "publish shop/orders"),
        ("lease", SpanKind.CLIENT, "lease shop/orders"),
        ("ack", SpanKind.CLIENT, "ack shop/orders"),
    ):
        of_client = by_kind[f"{name} shop/orders", kind]
        of_broker = by_kind[in_broker, SpanKind.SERVER]
        assert of_broker.parent is not None
        assert (of_broker.parent.trace_id, of_broker.parent.span_id) == ids(of_client)
        assert attributes(of_client)["messaging.message.id"] == published
        assert attributes(of_client)["server.address"] == "127.0.0.1"
    sent = by_kind["enqueue shop/orders", SpanKind.PRODUCER]
    assert linked(by_kind["lease shop/orders", SpanKind.CLIENT]) == [ids(sent)]


@pytest.mark.parametrize("sync", ["always", "never"])
@pytest.mark.parametrize("wait_s", [0, 5])
def test_the_broker_notes_the_id_of_one_message_and_the_number_of_several(
    monkeypatch: pytest.MonkeyPatch, spans: Spans, tmp_path: Path, sync: str, wait_s: float
) -> None:
    monkeypatch.setattr(server_tracing, "Tracing", lambda: Tracing(spans.provider))
    with (
        RunningServer(tmp_path, broker={"queues": {"sync": sync}}, tracing=True) as server,
        penstock.open(f"{server.url}/shop/orders") as queue,
    ):
        published = [queue.enqueue(b"one")]
        (one,) = queue.lease(1, wait_s=wait_s)
        published += queue.enqueue_batch([b"two", b"three"])
        leased = queue.lease(10, wait_s=wait_s)
        queue.ack([one, *leased])
        assert queue.lease(1) == []
    found = [attributes(span) for span in spans.all()]
    assert [
        (
            one["messaging.operation.name"],
            one["messaging.batch.message_count"],
            one.get("messaging.message.id"),
        )
        for one in found
    ] == [
        ("publish", 1, published[0]),
        ("lease", 1, published[0]),
        ("publish", 2, None),
        ("lease", 2, None),
        ("ack", 3, None),
        ("lease", 0, None),
    ]
    assert {one["messaging.destination.name"] for one in found} == {"shop/orders"}


def test_calls_of_other_protocols_have_no_span_and_work(
    spans: Spans, traced_broker: RunningServer
) -> None:
    broker, queue = traced_broker.server.broker, QueueName("shop", "orders")

    class Answer:
        """A pending call that is no HTTP request."""

        def __init__(self) -> None:
            self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def succeed(self, result: Any) -> None:
            self.result.set_result(result)

        def fail(self, error: BaseException) -> None:
            self.result.set_exception(error)

    async def result_of(call: Callable[[Answer], Any]) -> Any:
        answer = Answer()
        found = call(answer)
        if found is None:
            return await answer.result
        return await found if asyncio.isfuture(found) else found

    async def use() -> None:
        await result_of(lambda answer: broker.publish(INSIDE, queue, [b"x"], answer))
        (leased,) = await result_of(lambda answer: broker.lease(INSIDE, queue, pending=answer))
        ack = [Settlement("ack", leased.receipt)]
        (outcome,) = await result_of(lambda answer: broker.settle(INSIDE, ack, answer))
        assert outcome.ok

    traced_broker.call(use())
    assert spans.all() == []


@pytest.mark.parametrize("body", [{"payload": 1}, [{"payload": 1}], {"payload": 1, "priority": 9}])
def test_a_message_takes_over_the_context_of_its_request(
    spans: Spans, traced_broker: RunningServer, body: object
) -> None:
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    headers = {"content-type": "application/json", "traceparent": parent, "tracestate": "a=b"}
    url = f"{traced_broker.url}/api/v1/namespaces/shop/queues/orders/messages"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=30).close()
    with penstock.open(f"{traced_broker.url}/shop/orders") as queue:
        (message,) = queue.browse()
    assert dict(message.headers) == {"traceparent": parent, "tracestate": "a=b"}
    span = spans.one("publish shop/orders")
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "cd" * 8


def test_a_refused_request_is_a_span_with_an_error(
    monkeypatch: pytest.MonkeyPatch, spans: Spans, tmp_path: Path
) -> None:
    monkeypatch.setattr(server_tracing, "Tracing", lambda: Tracing(spans.provider))
    full = {"queues": {"max_messages": 1, "sync": "never", "min_free_bytes": 0}}
    with (
        RunningServer(tmp_path, broker=full, tracing=True) as server,
        penstock.open(f"{server.url}/a/q") as queue,
        pytest.raises(PenstockError),
    ):
        queue.enqueue_batch([b"1", b"2"])
    found = attributes(spans.one("publish a/q"))
    assert found["error.type"] == str(found["http.response.status_code"])
    assert found["messaging.batch.message_count"] == 2


def test_failed_requests_are_logged_with_the_id_of_their_trace(
    traced_broker: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = traced_broker.server
    settings = replace(server.service.settings, access_log=True)
    traced_broker.call(_use(server, settings))
    headers = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    with caplog.at_level(logging.INFO, "penstock.server"):
        request = urllib.request.Request(f"{traced_broker.url}/livez", headers=headers)
        urllib.request.urlopen(request, timeout=30).close()
    fields = [getattr(one, "fields", {}) for one in caplog.records]
    assert "ab" * 16 in [one.get("trace_id") for one in fields]


async def _use(server: Server, settings: ServerSettings) -> None:
    server.service.use(settings)


def test_the_setting_needs_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "penstock.server.tracing", None)
    with pytest.raises(PenstockError, match="otel"), RunningServer(tmp_path, tracing=True):
        pass
