"""One request, or many that are not finished, cannot take the server's memory or its event loop."""

import asyncio
import base64
import binascii
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker import QueueName
from penstock.broker.catalogue import Catalogue
from penstock.broker.limits import SMALL_BYTES
from penstock.errors import InvalidInput
from penstock.server import off_loop as pieces
from penstock.server import strict_json
from penstock.server.connection import Connection
from penstock.server.off_loop import OffLoop
from penstock.server.rest import lease, messages, publish
from penstock.server.service import Service
from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire

Client = httpx2.Client
KIB = 1024
ANSWER_BYTES = 100 * KIB
LARGE = b"x" * (40 * KIB)
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("limits") / "data"
    with RunningServer(data, broker={"max_answer_bytes": ANSWER_BYTES}) as running:
        yield running


def publish_large(http: Client, queue: str, count: int, payload: bytes = LARGE) -> None:
    for _ in range(count):
        assert http.post(queue_path(queue, "messages"), content=payload).status_code == 201


# -- bytes of one answer ---------------------------------------------------------------------------


def test_a_lease_answers_what_fits_and_the_rest_stays_ready(http: Client, queue: str) -> None:
    publish_large(http, queue, 5)
    counts = []
    for _ in range(3):
        found = http.post(queue_path(queue, "lease"), json={"max": 10_000}).json()["messages"]
        counts.append(len(found))
        assert all(base64.b64decode(one["payload_b64"]) == LARGE for one in found)
    assert counts == [2, 2, 1]


def test_a_message_larger_than_an_answer_comes_alone(http: Client, queue: str) -> None:
    publish_large(http, queue, 2, b"y" * (2 * ANSWER_BYTES))
    for _ in range(2):
        found = http.post(queue_path(queue, "lease"), json={"max": 10}).json()["messages"]
        assert [len(base64.b64decode(one["payload_b64"])) for one in found] == [2 * ANSWER_BYTES]


@pytest.mark.parametrize("kind", ["messages", "dead"])
def test_pages_end_where_they_are_full_and_their_cursors_go_on(
    http: Client, queue: str, kind: str
) -> None:
    publish_large(http, queue, 5)
    if kind == "dead":
        http.patch(queue_path(queue), json={"max_attempts": 1})
        while found := http.post(queue_path(queue, "lease"), json={"max": 9}).json()["messages"]:
            http.post("/api/v1/settle", json={"nack": [{"receipt": o["receipt"]} for o in found]})
    seqs, query = [], {"limit": "1000"}
    while True:
        page = http.get(queue_path(queue, kind), params=query).json()
        seqs.append([one["seq"] for one in page["messages"]])
        if "cursor" not in page:
            break
        query["cursor"] = page["cursor"]
    assert seqs == [[1, 2], [3, 4], [5]]


def test_a_history_comes_in_pages(http: Client, queue: str) -> None:
    id_ = http.post(queue_path(queue, "messages"), json={"payload": 1}).json()["id"]
    for _ in range(3):
        (one,) = http.post(queue_path(queue, "lease")).json()["messages"]
        http.post("/api/v1/settle", json={"release": [one["receipt"]]})
    path = f"/api/v1/messages/{id_}/history"
    whole = http.get(path).json()
    assert (len(whole["events"]), "cursor" in whole) == (7, False)
    events, query = [], {"limit": "3"}
    while True:
        page = http.get(path, params=query).json()
        assert len(page["events"]) <= 3
        events += page["events"]
        if "cursor" not in page:
            break
        query["cursor"] = page["cursor"]
    assert events == whole["events"]


def test_dialects_answer_what_fits(http: Client, queue: str) -> None:
    publish_large(http, queue, 5)
    jobs = http.post(f"/v1/queues/{queue}/lease", json={"max_jobs": 100}).json()["jobs"]
    found = http.get(f"/namespaces/default/queues/{queue}/messages", params={"n": 100}).json()
    assert (len(jobs), len(found["messages"])) == (2, 2)


# -- the event loop --------------------------------------------------------------------------------


class OnLoop:
    """The largest piece of work that the event loop did itself, by what it was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.largest: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        for module, name in (
            (strict_json, "check"),
            (strict_json, "check_values"),
            (lease, "encode"),
            (messages, "encode"),
            (publish, "encode"),
            (pieces, "a2b_base64"),
            (pieces, "b2a_base64"),
        ):
            self._watch(monkeypatch, module, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        real = getattr(module, name)

        def watched(value: Any, *args: Any, **options: Any) -> Any:
            result = real(value, *args, **options)
            self.calls[name] = self.calls.get(name, 0) + 1
            if threading.current_thread().name == "server":
                size = len(value if name != "encode" else result)
                self.largest[name] = max(self.largest.get(name, 0), size)
            return result

        monkeypatch.setattr(module, name, watched)


def test_large_bodies_and_answers_are_not_the_loops_work(
    server: RunningServer, http: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = OnLoop(monkeypatch)
    path = queue_path(queue, "messages")
    text = base64.b64encode(bytes(3_000_000)).decode()
    bodies: list[Any] = [
        {"payload": "x" * 2_000_000},
        {"payload_b64": text, "priority": 3},
        [{"payload": number, "priority": 3} for number in range(4000)],
    ]
    for body in bodies:
        assert http.post(path, json=body).status_code == 201
        assert http.post(path, params={}, json=body, headers={"x-a": "b"}).status_code == 201
    while http.post(queue_path(queue, "lease"), json={"max": 10_000}).json()["messages"]:
        pass
    http.get(path, params={"limit": 1000, "state": "leased"})
    http.post(f"/v1/queues/{queue}-2/enqueue", json={"payload": "x" * 2_000_000})
    assert len(http.post(f"/v1/queues/{queue}-2/lease").json()["jobs"]) == 1
    assert on_loop.calls.keys() >= {"check", "encode", "a2b_base64", "b2a_base64"}
    assert all(size <= 2 * SMALL_BYTES for size in on_loop.largest.values()), on_loop.largest


def test_base64_in_pieces_is_base64(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    for name in ("a2b_base64", "b2a_base64"):
        real = getattr(pieces, name)

        def watched(value: Any, real: Any = real, **options: Any) -> Any:
            nonlocal largest
            largest = max(largest, len(value))
            return real(value, **options)

        monkeypatch.setattr(pieces, name, watched)
    for size in (0, 1, 3 << 18, (3 << 18) + 1, 2_500_000, 2_500_001, 2_500_002):
        payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
        text = pieces.to_base64(payload)
        assert text == base64.b64encode(payload)
        assert pieces.from_base64(text.decode()) == payload
    assert largest <= 1 << 20


@pytest.mark.parametrize("at", [3, 1 << 20, (1 << 20) - 2, 2_000_001])
def test_what_is_no_base64_is_refused_in_whatever_piece(at: int) -> None:
    text = "A" * 2_400_000
    for wrong in ("=", "==", "!", " ", "\n"):
        with pytest.raises(binascii.Error):
            pieces.from_base64(text[:at] + wrong + text[at + len(wrong) :])
    with pytest.raises(binascii.Error):
        pieces.from_base64(text + "A")


def test_json_with_too_many_values_is_refused_before_it_is_read(http: Client, queue: str) -> None:
    path = queue_path(queue, "messages")
    many = b"{}," * strict_json.MAX_VALUES + b"{}"
    for body in (b'{"payload":[%s]}' % many, b"[%s]" % many):
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
        assert "values" in answer.json()["detail"]
    text = '\\",[{' * strict_json.MAX_VALUES  # many commas, but all in one text
    assert http.post(path, json={"payload": text}).status_code == 201


def test_a_message_with_too_many_keys_is_refused_before_it_is_read(
    http: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder makes all keys of an object in one call, during which no other thread runs."""
    path = queue_path(queue, "messages")
    decoded: list[int] = []
    decoder = strict_json.ANY_VALUE

    class Watched:
        def decode(self, body: bytes) -> Any:
            decoded.append(body.count(b":"))
            return decoder.decode(body)

    monkeypatch.setattr(strict_json, "ANY_VALUE", Watched())
    most = strict_json.MAX_KEYS
    many = json.dumps({str(number): 1 for number in range(590_000)}).encode()
    for body in (
        b'{"payload":%s}' % many,
        b'[{"payload":1},{"payload":%s}]' % many,
        b'{"payload":1,"headers":%s}' % many.replace(b": 1", b': "1"'),
    ):
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
        assert f"more than {most} keys" in answer.json()["detail"]
    assert max(decoded, default=0) <= most
    assert http.post(path, json={"payload": ":" * 10 * most}).status_code == 201


def test_a_batch_may_have_more_keys_in_all(http: Client, queue: str) -> None:
    """As our own client sends: 100,000 messages with three keys each."""
    path, count = queue_path(queue, "messages"), 100_000
    item = b'{"payload_b64":"eA==","priority":3,"key":"k"}'
    json_type = {"content-type": "application/json"}
    answer = http.post(path, content=b"[%s]" % b",".join([item] * count), headers=json_type)
    assert (answer.status_code, len(answer.json()["messages"])) == (201, count)
    wrong = [item] * 40_000 + [b'{"payload":1,"nope":2}']
    answer = http.post(path, content=b"[%s]" % b",".join(wrong), headers=json_type)
    assert answer.status_code == 400
    assert "`$[40000]" in answer.json()["detail"]


def test_values_are_counted_outside_of_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "MAX_VALUES", 4)
    strict_json.check_values(b'["a,b,c\\",,,", "\\\\", "]"]')
    with pytest.raises(InvalidInput, match="more than 4 values"):
        strict_json.check_values(b'["a,b,c\\",,,", "\\\\", "]", 4]')


# -- what all hold together ------------------------------------------------------------------------


def test_answers_that_are_not_taken_count_and_refuse_others(tmp_path: Path) -> None:
    limit, messages = 16 << 20, 6
    with (
        RunningServer(tmp_path / "data", max_buffered_bytes=limit) as server,
        ExitStack() as closing,
    ):
        service = server.server.service
        with server.client() as http:
            publish_large(http, "q", messages, b"z" * (8 << 20))
            # Each answer has more than 10 MiB, of which the kernel takes a few.
            asked = 0
            while service.held.bytes < limit:
                assert asked < messages - 1
                wire = closing.enter_context(_deaf(server))
                wire.request("POST", queue_path("q", "lease"), b"{}", JSON)
                asked += 1
                server.until(partial(_were_leased, service, asked))
            assert service.held.bytes < 2 * limit
            refused = http.post(queue_path("q", "lease"))
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            assert http.get("/livez").status_code == 200
            assert b"penstock_http_held_bytes" in http.get("/metrics").content
            closing.close()
            server.until(lambda: service.held.bytes == 0)
            assert http.post(queue_path("q", "lease")).status_code == 200


@pytest.mark.parametrize("content_type", ["application/json", "application/json;charset=x"])
def test_leases_that_are_not_read_stay_below_the_limit(tmp_path: Path, content_type: str) -> None:
    """Each finds room when it is asked for; together they would not.

    A transport keeps an answer whole until the last byte of it is sent.
    """
    limit, readers, payload = 24 << 20, 8, b"z" * (6 << 20)
    answer_bytes = len(payload) * 4 // 3
    with (
        RunningServer(
            tmp_path / "data",
            max_buffered_bytes=limit,
            broker={"max_answer_bytes": len(payload) + KIB},
        ) as server,
        ExitStack() as closing,
    ):
        service = server.server.service
        with server.client() as http:
            publish_large(http, "q", readers + 1, payload)
            assert http.post(queue_path("q", "lease")).status_code == 200
        before = {status: asked_for(service, status, "POST") for status in (200, 503)}
        for wire in [closing.enter_context(_deaf(server)) for _ in range(readers)]:
            wire.request("POST", queue_path("q", "lease"), b"{}", f"Content-Type: {content_type}")

        def answered(status: int) -> int:
            return asked_for(service, status, "POST") - before[status]

        server.until(lambda: answered(200) + answered(503) == readers)
        assert answered(200) > 1 and answered(503) > 0
        assert answered(200) * answer_bytes <= limit + answer_bytes
        assert service.held.bytes >= answered(200) * answer_bytes
        closing.close()
        server.until(lambda: service.held.bytes == 0)


def _were_leased(service: Service, times: int) -> bool:
    totals = service.http_metrics.totals()
    return (
        sum(n for path, _, code, n, _ in totals if path.endswith("/lease") and code == 200) == times
    )


def _deaf(server: RunningServer) -> Wire:
    """A connection with little room for what it does not read."""
    return server.wire(receive_buffer_bytes=4096)


def test_large_bodies_leave_room_for_small_ones(tmp_path: Path) -> None:
    limit = 1 << 20
    with RunningServer(tmp_path / "data", max_buffered_bytes=limit) as server:
        service = server.server.service
        with server.wire() as slow, server.wire() as large, server.client() as http:
            slow.send(_head(800 * KIB) + bytes(790 * KIB))
            server.until(lambda: service.held.bytes >= 790 * KIB)
            large.send(_head(100 * KIB))
            answer = large.answer()  # before any of its body is sent
            assert (answer.status, answer.code) == (503, "overloaded")
            assert http.post(queue_path("q", "messages"), json={"payload": 1}).status_code == 201
        server.until(lambda: service.held.bytes == 0)


def _head(size: int) -> bytes:
    return (
        f"POST {queue_path('q', 'messages')} HTTP/1.1\r\nHost: test\r\n{JSON}\r\n"
        f"Content-Length: {size}\r\n\r\n"
    ).encode()


# -- half closed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_request_of_a_client_that_sends_no_more_is_answered(
    server: RunningServer, http: Client, queue: str, content_type: str
) -> None:
    with server.wire() as wire:
        for _ in range(2):
            wire.request(
                "POST",
                queue_path(queue, "messages"),
                json.dumps({"payload": 1}).encode(),
                f"Content-Type: {content_type}",
            )
        wire.socket.shutdown(socket.SHUT_WR)
        assert [wire.answer().status, wire.answer().status] == [201, 201]
        assert wire.is_closed_by_server()
    assert http.get(queue_path(queue)).json()["stats"]["ready"] == 2


def test_a_client_that_sends_no_more_does_not_wait_for_messages(
    server: RunningServer, http: Client, queue: str
) -> None:
    http.put(queue_path(queue))
    with server.wire() as wire:
        wire.request("POST", queue_path(queue, "lease"), b'{"wait_s":60}', JSON)
        server.until(lambda: len(server.server.broker.waiting) > 0)
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.answer().json == {"messages": []}
        assert wire.is_closed_by_server()
    assert len(server.server.broker.waiting) == 0


def asked_for(service: Service, status: int, asked: str = "GET") -> int:
    """Return how many requests of a method were answered with this status."""
    totals = service.http_metrics.totals()
    return sum(n for _, method, code, n, _ in totals if (method, code) == (asked, status))


def test_pages_that_nobody_reads_stay_below_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finds room when it is asked for; together they would not."""
    limit, readers = 24 << 20, 12
    held: list[int] = []
    answer = OffLoop.run

    class Watched(Connection):
        def pause_writing(self) -> None:
            super().pause_writing()
            held.append(self.service.held.bytes)

    def run_and_look(off_loop: OffLoop, work: Any) -> Any:
        held.append(off_loop.held.bytes)
        return answer(off_loop, work)

    monkeypatch.setattr("penstock.server.server.new_connection", Watched)
    monkeypatch.setattr(OffLoop, "run", run_and_look)
    with (
        RunningServer(tmp_path / "data", max_buffered_bytes=limit) as server,
        ExitStack() as closing,
    ):
        service = server.server.service
        with server.client() as http:
            for _ in range(12):
                http.post(queue_path("q", "messages"), content=b"\xff" * (512 * KIB))
        held.clear()
        wires = [closing.enter_context(_deaf(server)) for _ in range(readers)]
        for wire in wires:
            wire.request("GET", queue_path("q", "messages"))
        server.until(lambda: sum(asked_for(service, status) for status in (200, 503)) == readers)
        assert asked_for(service, 200) > 0 and asked_for(service, 503) > 0
        assert service.held.bytes <= limit
        assert max(held) <= limit
        closing.close()
        server.until(lambda: service.held.bytes == 0)


def _is_draining(server: RunningServer) -> bool:
    connections: set[Any] = server.server.service.connections
    return any(connection.is_draining for connection in connections)


def _no_connections(server: RunningServer) -> bool:
    return not server.server.service.connections


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("are_keys_stale", [False, True])
def test_who_sends_no_more_does_not_wait_for_messages_of_a_new_queue(
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    queue: str,
    is_made: bool,
    are_keys_stale: bool,
) -> None:
    """Neither once the queue is made by the wait, nor while it is being made.

    With stale keys, as on a server that was idle for two seconds, they are read again first.
    """
    broker = server.server.broker
    ensure_queue = Catalogue.ensure_queue
    making: list[asyncio.Event] = []

    async def ensure_queue_slowly(catalogue: Catalogue, queue: QueueName) -> None:
        making.append(asyncio.Event())
        await making[0].wait()
        await ensure_queue(catalogue, queue)

    async def go_on() -> None:
        making[0].set()

    if not is_made:
        monkeypatch.setattr(Catalogue, "ensure_queue", ensure_queue_slowly)
    server.until(partial(_no_connections, server))
    if are_keys_stale:
        monkeypatch.setattr(server.server.service.keys, "loaded_ns", 0)
    else:
        server.call(server.server.service.keys.load())
    with server.wire() as wire:
        wire.request("POST", queue_path(queue, "lease"), b'{"wait_s":60}', JSON)
        server.until(lambda: len(broker.waiting) > 0 if is_made else len(making) > 0)
        wire.socket.shutdown(socket.SHUT_WR)
        if not is_made:
            server.until(partial(_is_draining, server))
            server.call(go_on())
        assert wire.answer().json == {"messages": []}
        assert wire.is_closed_by_server()
    assert len(broker.waiting) == 0


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_a_lease_that_begins_after_its_client_sent_all_does_not_wait(
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    http: Client,
    queue: str,
    is_pipelined: bool,
) -> None:
    """The client ends its side while the keys are read again, or the request before is answered."""
    http.put(queue_path(queue))
    http.close()
    keys = server.server.service.keys
    admit = keys.admit
    admitting: list[asyncio.Event] = []

    async def admit_slowly(*args: Any) -> Any:
        admitting.append(asyncio.Event())
        await admitting[0].wait()
        return await admit(*args)

    async def go_on() -> None:
        admitting[0].set()

    monkeypatch.setattr(keys, "admit", admit_slowly)
    server.until(partial(_no_connections, server))
    monkeypatch.setattr(keys, "loaded_ns", 0)  # so that they are read again
    with server.wire() as wire:
        if is_pipelined:
            wire.request("GET", queue_path(queue))
        wire.request("POST", queue_path(queue, "lease"), b'{"wait_s":60}', JSON)
        server.until(lambda: len(admitting) > 0)
        wire.socket.shutdown(socket.SHUT_WR)
        server.until(partial(_is_draining, server))
        server.call(go_on())
        if is_pipelined:
            assert wire.answer().json["name"] == queue
        assert wire.answer().json == {"messages": []}
        assert wire.is_closed_by_server()
    assert len(server.server.broker.waiting) == 0


def test_half_a_request_is_not_waited_for(server: RunningServer) -> None:
    with server.wire() as wire:
        wire.send(_head(100) + b"{")
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.is_closed_by_server()
