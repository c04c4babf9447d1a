"""Whatever bytes come, in whatever pieces: no fault of the server, and it serves on."""

import itertools
import re
import socket

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.running import RunningServer, queue_path
from tests.server.test_pipelining import request_text

PUBLISH = queue_path("fuzz", "messages")
GOOD = [
    request_text("POST", PUBLISH, {"payload": 1}),
    request_text("POST", PUBLISH, [{"payload_b64": "eA=="}], "X-Request-Id: a"),
    request_text("POST", queue_path("fuzz", "lease"), {"max": 3}),
    request_text("POST", "/api/v1/settle", {"ack": ["x"]}),
    request_text("GET", f"{PUBLISH}?limit=3&cursor=x"),
    request_text("GET", "/livez", None, "Connection: keep-alive"),
    f"POST {PUBLISH} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    "3\r\nabc\r\n0\r\n\r\n".encode(),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Some good requests, with some bytes changed, cut or put in."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        stroke = draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        if stroke == "flip" and data:
            data[at] ^= draw(st.integers(1, 255))
        elif stroke == "cut":
            del data[at : at + draw(st.integers(1, 20))]
        elif stroke == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 60))]
    return bytes(data)


def ask(server: RunningServer, pieces: list[bytes]) -> bytes:
    """Send, say that nothing more comes, and read to the end."""
    with server.wire() as wire:
        try:
            for piece in pieces:
                wire.send(piece)
            wire.socket.shutdown(socket.SHUT_WR)
            received = b""
            while more := wire.socket.recv(1 << 16):
                received += more
        except ConnectionError:  # it was closed for what came before
            return b""
    return received


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=damaged(), cuts=st.lists(st.integers(0, 400), max_size=4))
def test_damaged_requests_are_answered_or_refused(
    server: RunningServer, data: bytes, cuts: list[int]
) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(places) if a < b]
    received = ask(server, pieces)
    assert not re.search(rb"HTTP/1\.1 5\d\d", received), (data, received)
    with server.wire() as wire:
        wire.request("GET", "/livez")
        assert wire.answer().status == 200


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_or_ignored(server: RunningServer, data: bytes) -> None:
    received = ask(server, [data])
    assert received == b"" or received.startswith(b"HTTP/1.1 400"), (data, received)
