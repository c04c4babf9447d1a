"""The transport for Unix sockets: what it sends, and how it reads answers in any pieces."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from penstock.client.direct_transport import DirectTransport
from penstock.client.http_wire import Answer, NoAnswer
from penstock.client.options import ClientOptions
from penstock.client.request import Request, get, post
from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.queue.binding import finish

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi"


class Served:
    """The requests that were read, and how many connections were closed."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.closed = threading.Semaphore(0)


@contextmanager
def serving(path: Path, connections: Sequence[Sequence[Sequence[bytes]]]) -> Iterator[Served]:
    """Answer: for each connection, for each request, these pieces; then close."""
    served = Served()

    def serve(listener: socket.socket) -> None:
        for answers in connections:
            one, _ = listener.accept()
            with one:
                for pieces in answers:
                    served.asked.append(one.recv(1 << 16))
                    with suppress(BrokenPipeError):  # it has read enough
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


@pytest.fixture
def transport(path: Path) -> Iterator[DirectTransport]:
    base = f"http+unix://{quote(str(path), safe='')}/below"
    made = DirectTransport(base, ClientOptions(timeout_s=20, key="k"), SystemClock())
    yield made
    finish(made.close)


def ask(transport: DirectTransport, request: Request[object] | None = None) -> Answer:
    return finish(transport.send, request or get("/x", lambda reply: reply.data))


def test_a_request_has_the_path_the_query_and_the_headers(
    path: Path, transport: DirectTransport
) -> None:
    request = post("/x", lambda reply: reply.data, {"a": 1}, query={"q": "ä &"})
    with serving(path, [[[_OK]]]) as served:
        assert ask(transport, request) == Answer(200, {"content-length": "2", "x-a": "b"}, b"hi")
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
    path: Path, transport: DirectTransport, answer: bytes, size: int
) -> None:
    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    with serving(path, [[pieces, pieces]]):
        assert ask(transport).content == b"hi"
        assert ask(transport).content == b"hi"  # on the same connection


def test_an_answer_without_content(path: Path, transport: DirectTransport) -> None:
    with serving(path, [[[b"HTTP/1.1 204 No Content\r\n\r\n"], [_OK]]]):
        assert ask(transport) == Answer(204, {}, b"")
        assert ask(transport).content == b"hi"


def test_a_connection_that_the_server_closed_is_not_used_again(
    path: Path, transport: DirectTransport
) -> None:
    with serving(path, [[[_OK]], [[_OK]], [[_OK]]]) as served:
        for _ in range(3):
            assert ask(transport).status_code == 200
            assert served.closed.acquire(timeout=30)


def test_a_connection_that_the_server_will_close_is_not_used_again(
    path: Path, transport: DirectTransport
) -> None:
    last = _OK.replace(b"X-A: b", b"Connection: close")
    with serving(path, [[[last]], [[last]]]):
        for _ in range(2):
            assert ask(transport).status_code == 200


def test_no_server_means_that_nothing_was_sent(transport: DirectTransport) -> None:
    with pytest.raises(NoAnswer, match="no connection to") as caught:
        ask(transport)
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
    ],
)
def test_what_is_no_answer_may_have_arrived(
    path: Path, transport: DirectTransport, pieces: list[bytes], text: str
) -> None:
    with serving(path, [[[b"".join(pieces)]]]):
        with pytest.raises(NoAnswer, match=text) as caught:
            ask(transport)
        assert caught.value.sent


def test_a_header_with_a_line_break_is_refused(transport: DirectTransport) -> None:
    request: Request[object] = Request(
        method="GET",
        path="/x",
        read=lambda reply: reply.data,
        headers={"a": "b\r\nc: d"},
        idempotent=True,
    )
    with pytest.raises(InvalidInput, match="line break"):
        ask(transport, request)
