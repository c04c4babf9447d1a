"""One request and its answer, as the protocol sees them; and what is refused by its head alone."""

from collections.abc import Mapping
from typing import Any

from penstock.server.refusals import BodyCompressed, BodyTooLarge, Refused

NOT_LOOKED_FOR = object()

# Given twice, two readers may believe different ones.
_ONLY_ONCE = frozenset(
    {
        b"host",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        b"authorization",
        b"x-api-key",
        b"expect",
        b"origin",
    }
)


class Head:
    """The head of a request that was read and found good. The same bytes have the same head."""

    __slots__ = (
        "headers",
        "http_version",
        "keep_alive",
        "known",
        "method",
        "route",
        "token",
        "url",
    )

    def __init__(
        self,
        method: bytes,
        url: bytes,
        headers: list[tuple[bytes, bytes]],
        known: Mapping[bytes, bytes],
        http_version: str,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.url = url
        self.headers = headers
        self.known = known  # the same by name, where a header that may be repeated has its last
        self.http_version = http_version
        self.keep_alive = keep_alive
        self.route: Any = NOT_LOOKED_FOR  # see `hot_routes`, as for the token
        self.token: str | None = None


class Exchange:
    """A request and its answer."""

    __slots__ = ("began_ns", "chunks", "head", "request_id", "size")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.chunks: list[bytes] = []
        self.size = 0  # of the body so far
        self.began_ns = 0  # when it was its turn
        self.request_id = ""

    @property
    def body(self) -> bytes:
        return self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)


def judge_head(
    headers: list[tuple[bytes, bytes]], http_version: str, max_body_bytes: int
) -> tuple[Mapping[bytes, bytes], Refused | None]:
    """The headers by name, and why the request is refused before its body is read, if it is."""
    known = dict(headers)
    refusal = None
    if len(known) < len(headers):
        refusal = _judge_repeats(headers)
    if http_version not in ("1.0", "1.1"):
        refusal = Refused(f"HTTP/{http_version} is not spoken here; HTTP/1.1 is")
    elif b"host" not in known and http_version == "1.1":
        refusal = Refused("the Host header is missing")
    encoding = known.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        refusal = _compressed()
    transfer = known.get(b"transfer-encoding")
    if transfer is not None and transfer.strip().lower() != b"chunked":
        refusal = _compressed()
    length = known.get(b"content-length")
    if length is not None:
        if not length.isdigit():
            refusal = Refused("the Content-Length is not a number")
        elif len(length) > 18 or int(length) > max_body_bytes:
            refusal = too_large(max_body_bytes)
    return known, refusal


def too_large(max_body_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"a body has at most {max_body_bytes} bytes here (max_body_bytes): send less at a time"
    )


def _compressed() -> BodyCompressed:
    return BodyCompressed("compressed bodies are not read: send it plain")


def _judge_repeats(headers: list[tuple[bytes, bytes]]) -> Refused | None:
    seen = set()
    for name, _ in headers:
        if name in seen and name in _ONLY_ONCE:
            return Refused(f"the header {name.decode()} is given twice")
        seen.add(name)
    return None
