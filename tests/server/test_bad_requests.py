"""Bad input, below JSON: requests that are too large or malformed. Each gets its answer, and the
server goes on serving."""

from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer, queue_path
from tests.server.wire import Wire

MOST_BODY = 4096


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With small limits."""
    with RunningServer(
        tmp_path_factory.mktemp("bad") / "data",
        max_body_bytes=MOST_BODY,
        max_buffered_bytes=2 * MOST_BODY,
    ) as running:
        yield running


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Wire]:
    with server.wire() as connection:
        yield connection
    with server.wire() as another:  # whatever happened, it serves on
        another.request("GET", "/livez")
        assert another.answer().status == 200


PUBLISH = queue_path("orders", "messages")
JSON = "Content-Type: application/json"
HEAD = f"POST {PUBLISH} HTTP/1.1\r\nHost: t\r\n{JSON}\r\n"


# -- too large -------------------------------------------------------------------------------------


def test_a_large_content_length_is_refused_before_the_body_is_sent(wire: Wire) -> None:
    wire.send(f"{HEAD}Content-Length: {1 << 40}\r\n\r\n".encode())
    answer = wire.answer()
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert wire.is_closed_by_server()


def test_a_large_body_is_refused_also_if_it_is_being_sent(wire: Wire) -> None:
    """The answer arrives although the client sends first and reads then."""
    wire.request("POST", PUBLISH, b"x" * (MOST_BODY * 100), JSON)
    assert wire.answer().status == 413


def test_an_absurd_content_length_is_refused(wire: Wire) -> None:
    wire.send(f"POST {PUBLISH} HTTP/1.1\r\nHost: t\r\nContent-Length: {'9' * 19}\r\n\r\n".encode())
    assert wire.answer().status in (400, 413)
    assert wire.is_closed_by_server()


def test_a_large_body_without_content_length_is_refused_where_it_gets_too_large(wire: Wire) -> None:
    wire.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    wire.send(chunk * 5)  # and there is no end to it
    answer = wire.answer()
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert wire.is_closed_by_server()


def test_a_body_of_exactly_the_limit_is_read(wire: Wire) -> None:
    wire.request("POST", PUBLISH, b"x" * MOST_BODY, "Content-Type: text/plain")
    assert wire.answer().status == 201


def test_bodies_of_all_connections_together_are_bounded(server: RunningServer) -> None:
    head = f"{HEAD}Content-Length: {MOST_BODY}\r\n\r\n"
    first, second, third = (server.wire() for _ in range(3))
    with first, second, third:
        for wire in (first, second):
            wire.send(head.encode() + b" " * (MOST_BODY - 1))
        server.until(lambda: server.server.service.held.bytes >= 2 * MOST_BODY - 2)
        third.send(head.encode() + b" " * 100)
        answer = third.answer()
        assert (answer.status, answer.code) == (503, "overloaded")
        assert "retry-after" in answer.headers
    server.until(lambda: server.server.service.held.bytes == 0)


def test_more_than_a_hundred_headers_are_refused(wire: Wire) -> None:
    wire.request("GET", "/livez", b"", *(f"X-{number}: y" for number in range(101)))
    answer = wire.answer()
    assert (answer.status, answer.code) == (431, "headers_too_large")
    assert wire.is_closed_by_server()


def test_more_than_16_kilobytes_of_headers_are_refused(wire: Wire) -> None:
    wire.request("GET", "/livez", b"", f"X-Large: {'y' * 17_000}")
    assert wire.answer().status == 431
    assert wire.is_closed_by_server()


def test_headers_within_the_limit_may_come_in_pieces(wire: Wire) -> None:
    wire.send(b"GET /livez HTTP/1.1\r\nHost: t\r\n")
    for number in range(15):
        wire.send(b"X-%d: " % number + b"y" * 500)
        wire.send(b"y" * 500 + b"\r\n")
    wire.send(b"\r\n")
    assert wire.answer().status == 200


def test_a_header_without_an_end_is_refused_before_it_fills_memory(wire: Wire) -> None:
    wire.send(b"GET /livez HTTP/1.1\r\nX-Endless: ")
    for _ in range(100):
        try:
            wire.send(b"y" * 16_384)
        except (BrokenPipeError, ConnectionResetError):
            break
    assert wire.answer().status == 431


def test_too_many_trailers_are_refused(wire: Wire) -> None:
    wire.send(f"POST {PUBLISH} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    wire.send(b"0\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 200) for n in range(100)) + b"\r\n")
    assert wire.answer().status == 431


def test_a_url_over_8_kilobytes_is_refused(wire: Wire) -> None:
    wire.request("GET", "/livez?" + "x" * 8192)
    answer = wire.answer()
    assert (answer.status, answer.code) == (414, "url_too_long")
    assert wire.is_closed_by_server()


def test_connections_beyond_the_limit_are_told_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("few") / "data"
    with RunningServer(data, max_connections=2) as server:
        with server.wire() as first, server.wire() as second:
            for wire in (first, second):
                wire.request("GET", "/livez")
                assert wire.answer().status == 200
            with server.wire() as third:
                answer = third.answer()
                assert (answer.status, answer.code) == (503, "overloaded")
        server.until(lambda: not len(server.server.service.connections))
        with server.wire() as later:
            later.request("GET", "/livez")
            assert later.answer().status == 200


# -- malformed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lengths",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: -5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: five",
    ],
)
def test_ambiguous_lengths_are_refused_and_the_connection_closed(wire: Wire, lengths: str) -> None:
    wire.send(f"POST {PUBLISH} HTTP/1.1\r\nHost: t\r\n{lengths}\r\n\r\nhello".encode())
    assert wire.answer().status == 400
    assert wire.is_closed_by_server()


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",  # TLS to a plain port
        b"GET\r\n\r\n",
        b"GET /livez HTTP/9.9\r\nHost: t\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost : t\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: t\r\nX: a\x00b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: t\nX: bare line feed\n\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(wire: Wire, text: bytes) -> None:
    wire.send(text)
    assert wire.answer().status == 400
    assert wire.is_closed_by_server()


def test_a_missing_host_is_refused(wire: Wire) -> None:
    wire.send(b"GET /livez HTTP/1.1\r\n\r\n")
    assert wire.answer().status == 400


@pytest.mark.parametrize("name", ["Host: b", "Content-Type: a\r\nContent-Type: b"])
def test_a_header_given_twice_that_may_be_there_once_is_refused(wire: Wire, name: str) -> None:
    wire.request("GET", "/livez", b"", name)
    assert wire.answer().status == 400


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "zstd"])
def test_compressed_bodies_are_refused(wire: Wire, encoding: str) -> None:
    wire.request("POST", PUBLISH, b"x", JSON, f"Content-Encoding: {encoding}")
    answer = wire.answer()
    assert (answer.status, answer.code) == (415, "body_compressed")


def test_a_compressing_transfer_encoding_is_refused(wire: Wire) -> None:
    wire.request("POST", PUBLISH, b"0\r\n\r\n", "Transfer-Encoding: gzip, chunked", length=False)
    assert wire.answer().status == 415


def test_bad_chunks_are_refused(wire: Wire) -> None:
    wire.send(
        f"POST {PUBLISH} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nnope\r\n".encode()
    )
    assert wire.answer().status == 400
    assert wire.is_closed_by_server()


def test_an_unknown_route_is_404_and_a_wrong_method_405(wire: Wire) -> None:
    wire.request("GET", "/no/such/route")
    assert (answer := wire.answer()).status == 404 and answer.code == "no_such_route"
    wire.request("PUT", PUBLISH)
    answer = wire.answer()
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_a_url_that_is_none_is_refused(wire: Wire) -> None:
    wire.send(b"CONNECT example.com:443 HTTP/1.1\r\nHost: t\r\n\r\n")
    assert wire.answer().status in (400, 404)
    assert wire.is_closed_by_server()


def test_an_upgrade_to_something_unknown_is_ignored(wire: Wire) -> None:
    wire.request("GET", "/livez", b"", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
    assert wire.answer().status == 200


def test_expect_continue_is_answered_before_the_body(wire: Wire) -> None:
    body = b'{"payload": 1}'
    head = f"{HEAD}Content-Length: {len(body)}\r\n"
    wire.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert wire.answer().status == 100
    wire.send(body)
    assert wire.answer().status == 201


def test_expect_continue_is_not_answered_for_a_body_that_is_too_large(wire: Wire) -> None:
    head = f"{HEAD}Content-Length: {MOST_BODY + 1}\r\n"
    wire.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert wire.answer().status == 413


def test_a_defect_of_our_own_is_a_500_and_logged(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("penstock.server.request_reader.is_websocket", fail)
    with server.wire() as wire:
        wire.send(b"GET /livez HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
        assert wire.answer().status == 500
        assert wire.is_closed_by_server()
    assert "RuntimeError: a defect" in caplog.text


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("a=%ff", "the query string is not UTF-8, percent-encoded"),
        ("&".join(["a=%20"] * 51), "the query string has more than 50 parameters"),
    ],
)
def test_a_query_that_cannot_be_read_is_refused_in_plain_words(
    server: RunningServer, query: str, detail: str
) -> None:
    with server.client() as http:
        answer = http.get(f"/livez?{query}")
    assert (answer.status_code, answer.json()["detail"]) == (400, detail)
