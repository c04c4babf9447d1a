"""The transport without the HTTP library: what it sends, and how it reads answers in any pieces.

Each test runs for threads, and for tasks of both event loops.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from urllib.parse import quote

import pytest
import uvloop

from penstock.client.callers import Tasks, Threads
from penstock.client.direct_transport import DirectTransport
from penstock.client.http_wire import Answer, NoAnswer
from penstock.client.options import ClientOptions
from penstock.client.request import Request, get, post
from penstock.clock import Clock, ManualClock, SystemClock
from penstock.errors import InvalidInput
from penstock.queue.binding import finish

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi"


class Served:
    """The requests that were read, and how many connections were closed."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.closed = threading.Semaphore(0)


@contextmanager
def serving(path: Path, connections: Sequence[Sequence[Iterable[bytes]]]) -> Iterator[Served]:
    """Answer: for each connection, for each request, these pieces; then close."""
    served = Served()

    def serve(listener: socket.socket) -> None:
        for answers in connections:
            one, _ = listener.accept()
            with one:
                for pieces in answers:
                    served.asked.append(one.recv(1 << 16))
                    with suppress(BrokenPipeError, ConnectionResetError):  # it has read enough
                        for piece in pieces:
                            one.sendall(piece)
            served.closed.release()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield served
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


class Client:
    """A transport, and the thread or event loop that calls it."""

    def __init__(
        self,
        path: Path,
        new_loop: Callable[[], asyncio.AbstractEventLoop] | None,
        clock: Clock | None = None,
        timeout_s: float = 20,
    ):
        base = f"http+unix://{quote(str(path), safe='')}/below"
        options = ClientOptions(timeout_s=timeout_s, key="k")
        clock = clock or SystemClock()
        self._loop = new_loop() if new_loop else None
        callers = Tasks() if new_loop else Threads(clock)
        self._transport = DirectTransport(base, options, callers, clock)

    def ask(self, request: Request[object] | None = None) -> Answer:
        request = request or get("/x", lambda reply: reply.data)
        if self._loop is None:
            return finish(self._transport.send, request)
        return self._loop.run_until_complete(self._transport.send(request))

    def close(self) -> None:
        if self._loop is None:
            finish(self._transport.close)
        else:
            self._loop.run_until_complete(self._transport.close())
            self._loop.close()


@pytest.fixture(
    params=[None, asyncio.new_event_loop, uvloop.new_event_loop],
    ids=["threads", "asyncio", "uvloop"],
)
def client(path: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    made = Client(path, request.param)
    yield made
    made.close()


def test_a_request_has_the_path_the_query_and_the_headers(path: Path, client: Client) -> None:
    request = post("/x", lambda reply: reply.data, {"a": 1}, query={"q": "ä &"})
    with serving(path, [[[_OK]]]) as served:
        assert client.ask(request) == Answer(200, {"content-length": "2", "x-a": "b"}, b"hi")
    head, _, body = served.asked[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /below/x?q=%C3%A4+%26 HTTP/1.1"
    assert {"authorization: Bearer k", "content-length: 7"} < set(lines)
    assert body == b'{"a":1}'


@pytest.mark.parametrize(
    "answer",
    [
        _OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" + _OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1;x=y\r\ni\r\n0\r\n\r\n",
    ],
    ids=["length", "continue", "chunks"],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_answer_is_read_in_any_pieces(
    path: Path, client: Client, answer: bytes, size: int
) -> None:
    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    with serving(path, [[pieces, pieces]]):
        assert client.ask().content == b"hi"
        assert client.ask().content == b"hi"  # on the same connection


def test_the_same_length_twice_is_one_length(path: Path, client: Client) -> None:
    with serving(path, [[[_OK.replace(b"X-A: b", b"Content-Length: 2")]]]):
        assert client.ask().content == b"hi"


def test_an_answer_without_content(path: Path, client: Client) -> None:
    with serving(path, [[[b"HTTP/1.1 204 No Content\r\n\r\n"], [_OK]]]):
        assert client.ask() == Answer(204, {}, b"")
        assert client.ask().content == b"hi"


def test_a_connection_that_the_server_closed_is_not_used_again(path: Path, client: Client) -> None:
    with serving(path, [[[_OK]], [[_OK]], [[_OK]]]) as served:
        for _ in range(3):
            assert client.ask().status_code == 200
            assert served.closed.acquire(timeout=30)


def test_a_connection_that_the_server_closed_between_two_calls_is_not_used_again(
    path: Path, client: Client
) -> None:
    """An event loop that did not run in between has not heard of it."""
    is_answered = threading.Event()

    def answer_and_wait() -> Iterator[bytes]:
        yield _OK
        is_answered.wait(30)

    with serving(path, [[answer_and_wait()], [[_OK]]]) as served:
        assert client.ask().status_code == 200
        is_answered.set()
        assert served.closed.acquire(timeout=30)
        assert client.ask().status_code == 200


def test_a_connection_that_the_server_will_close_is_not_used_again(
    path: Path, client: Client
) -> None:
    last = _OK.replace(b"X-A: b", b"Connection: close")
    with serving(path, [[[last]], [[last]]]):
        for _ in range(2):
            assert client.ask().status_code == 200


def test_no_server_means_that_nothing_was_sent(client: Client) -> None:
    with pytest.raises(NoAnswer, match="no connection to") as caught:
        client.ask()
    assert not caught.value.sent


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([], "closed it"),
        ([b"HTTP/1.1 200 OK\r\nContent-Le"], "closed it"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"], "closed it"),
        ([b"HTTP/1.1 200 OK\r\n\r\nhi"], "has no length"),
        ([b"220 mail.example.com\r\n\r\n"], "is not HTTP"),
        ([_OK, b"more"], "more than one answer|hi"),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000], "too long"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"] * 400, "only says that it will answer"),
        ([_OK.replace(b"X-A: b", b"Content-Length: 3")], "two lengths"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-6\r\n"], "bad length"),
    ],
)
def test_what_is_no_answer_may_have_arrived(
    path: Path, client: Client, pieces: list[bytes], text: str
) -> None:
    with serving(path, [[[b"".join(pieces)]]]):
        with pytest.raises(NoAnswer, match=text) as caught:
            client.ask()
        assert caught.value.sent


class TickingClock(ManualClock):
    """A second passes each time it is read."""

    def monotonic_ns(self) -> int:
        self.advance(1)
        return super().monotonic_ns()


_ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n"
_PIECE = bytes(1 << 16)


def test_threads_wait_until_one_deadline_for_the_whole_answer(path: Path) -> None:
    client = Client(path, None, TickingClock())
    pieces = [_ENDLESS, *[_PIECE] * 200]  # more than the client reads before its deadline
    with serving(path, [[pieces]]):
        with pytest.raises(NoAnswer, match="did not answer in time") as caught:
            client.ask()
        assert caught.value.sent
    client.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_tasks_wait_until_one_deadline_for_the_whole_answer(
    path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    client = Client(path, new_loop, timeout_s=0.05)
    with serving(path, [[chain([_ENDLESS], repeat(_PIECE))]]):
        with pytest.raises(NoAnswer, match="did not answer in time") as caught:
            client.ask()
        assert caught.value.sent
    client.close()


def test_what_the_broker_may_wait_is_added_to_the_timeout(path: Path) -> None:
    client = Client(path, None, TickingClock())
    request = replace(get("/x", lambda reply: reply.data), wait_s=3600)
    size = 3_000_000  # more than 20 reads
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode()
    with serving(path, [[[head, bytes(size)]]]):
        assert len(client.ask(request).content) == size
    client.close()


def test_a_header_with_a_line_break_is_refused(client: Client) -> None:
    request: Request[object] = Request(
        method="GET",
        path="/x",
        read=lambda reply: reply.data,
        headers={"a": "b\r\nc: d"},
        idempotent=True,
    )
    with pytest.raises(InvalidInput, match="line break"):
        client.ask(request)
