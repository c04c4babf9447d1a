# cython: annotation_typing=False
"""Read the requests of one HTTP/1.1 connection within limits, by callbacks of httptools' parser.

Callbacks do not raise: they record a refusal, which the connection sends after the parser has
returned. The parser stops after the head of a request with an `Upgrade` header. Only upgrades to
WebSocket are accepted. Any other upgrade is ignored, and a new parser reads the body and further
requests.
"""

import logging
import re
from collections import deque
from typing import TYPE_CHECKING, Any

import httptools

from penstock.broker.limits import SMALL_BYTES
from penstock.errors import Overloaded, PenstockError
from penstock.server.call import Call
from penstock.server.problems import (
    BodyCompressed,
    BodyTooLarge,
    HeadersTooLarge,
    Refused,
    UrlTooLong,
)

if TYPE_CHECKING:
    from penstock.server.connection import Connection
    from penstock.server.service import Service
    from penstock.server.settings import ServerSettings

log = logging.getLogger("penstock.server")

_SPACE = ord(" ")
_PART_BYTES = 4096  # larger data is the rest of a body
_EMPTY_LINE = b"\r\n\r\n"  # the parser accepts no other line ends
_LINE_ENDS = (b"\r\n", b"\n")
IDLE, HEAD, BODY, LINGER = 0, 1, 2, 3  # LINGER: after a refusal, received bytes are discarded
_OVERHEAD_PER_BYTE = 16  # of a body in chunks; a chunk of one byte needs 5
_HOST = re.compile(rb"([A-Za-z0-9._~%-]{0,255}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{0,5})?")
_METHODS = {
    name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
}
# If such a header is repeated, a proxy and this server may use different ones.
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


class RequestReader:
    """The parser of a connection, and the request that is being read."""

    __slots__ = (
        "_at_body",
        "_checks_spaces",
        "_connection",
        "_ends_in_space",
        "_header_bytes",
        "_headers",
        "_host",
        "_parser",
        "_piece",
        "_raw_head",
        "_repeated",
        "_service",
        "_settings",
        "body_bytes",
        "buffered",
        "call",
        "expects_continue",
        "got_last_request",
        "head_bytes",
        "messages",
        "phase",
        "refusal",
        "url",
        "waiting",
    )

    def __init__(self, connection: "Connection", service: "Service") -> None:
        self._connection = connection
        self._service = service
        self._settings: ServerSettings = service.settings  # for the request being read
        self._parser = self._new_parser()
        self._headers: dict[bytes, bytes] = {}  # by name; the last one of a repeated header
        self._repeated: list[tuple[bytes, bytes]] = []  # the others
        self._header_bytes = 0  # of the headers and trailers read so far
        self._piece: bytes | memoryview = b""  # being parsed
        self._raw_head = b""  # earlier pieces of an incomplete head
        self._at_body = False  # the body follows, after an ignored upgrade
        self._checks_spaces = False  # the head being read has two spaces in a row
        self._ends_in_space = False  # the data before did
        self._host = b""  # of an earlier request, which was valid
        self.phase = IDLE
        self.messages = 0  # number of requests whose first byte arrived
        self.url = b""  # of the latest request
        self.head_bytes = 0  # received since the first part of an incomplete head
        self.body_bytes = 0  # received after the head, with the overhead of chunks and trailers
        self.buffered = 0  # bytes of bodies that this connection added to `Held`
        self.refusal: PenstockError | None = None
        self.expects_continue = False
        self.got_last_request = False
        self.call: Call | None = None  # the request whose body is being read
        self.waiting: deque[Call] = deque()  # without a reply yet; the first is being answered

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # Data after the last request is ignored by the connection, not an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def feed(self, data: bytes | memoryview) -> bytes | None:
        """Parse data. Return the bytes after a WebSocket's handshake; None if there was none.

        The parser accepts several spaces between the parts of a request line, and does not say
        where a line is. So data is parsed in parts: every request begins where a part does. What
        has a single empty line is at most one request and the beginning of another: one part.
        """
        if not isinstance(data, bytes) and len(data) > _PART_BYTES:
            return self._feed(data)  # the rest of a body
        part = bytes(data)
        is_head = self.phase == HEAD
        has_spaces = b"  " in part or (is_head and self._ends_in_space and part[0] == _SPACE)
        self._checks_spaces = has_spaces or (is_head and self._checks_spaces)
        self._ends_in_space = part[-1] == _SPACE
        if self.phase == IDLE and not has_spaces and part.count(_EMPTY_LINE) <= 1:  # the usual case
            rest = self._feed(part)
            if self.phase == HEAD and self.waiting:
                end = part.find(_EMPTY_LINE)
                if end >= 0:  # another head begins behind the first request
                    self._raw_head = part[end + len(_EMPTY_LINE) + self.waiting[-1].size :]
            return rest
        while True:
            size = self._part_bytes(part)
            rest = self._feed(part[:size])
            part = part[size:]
            if rest is not None:
                return rest + part
            if not part or self.refusal is not None or self.got_last_request:
                return None

    def _part_bytes(self, data: bytes) -> int:
        """Return the size of the first part of data, after which a request may begin.

        That is the end of a body with a known length, an empty line, or at first a line end: the
        beginning of an empty line may be in the data before.
        """
        call = self.call
        if call is not None and b"transfer-encoding" not in call.headers:
            return max(int(call.headers.get(b"content-length", b"0")) - call.size, 1)
        if data.startswith(_LINE_ENDS):
            return data.index(b"\n") + 1
        end = data.find(_EMPTY_LINE)
        return len(data) if end < 0 else end + len(_EMPTY_LINE)

    def _feed(self, data: bytes | memoryview) -> bytes | None:
        self._piece = data
        try:
            while True:
                try:
                    self._parser.feed_data(data)
                except httptools.HttpParserUpgrade as stopped:
                    if self.refusal is not None:
                        return None
                    data = data[stopped.args[0] :]
                    if not self._at_body:
                        # CONNECT was handled as an ordinary request.
                        return bytes(data) if is_websocket(self.header_list) else None
                    self._read_body_anew()
                else:
                    if self.phase == HEAD:
                        self._raw_head += data
                    return None
        except httptools.HttpParserCallbackError as error:
            log.error("a parser callback failed", exc_info=error.__context__ or error)
            self.refusal = PenstockError("something went wrong inside the server")
        except httptools.HttpParserError as error:
            if self.refusal is None and not self.got_last_request:
                self.refusal = Refused(f"the request is not valid HTTP: {error}")
        return None

    def _read_body_anew(self) -> None:
        """Read the body of a request whose upgrade is ignored, with a new parser."""
        assert self.call is not None
        headers = self.call.headers
        framing = b"transfer-encoding" if b"transfer-encoding" in headers else b"content-length"
        self._parser = self._new_parser()
        self._parser.feed_data(
            b"POST / HTTP/1.1\r\n%s: %s\r\n\r\n" % (framing, headers.get(framing, b"0"))
        )

    @property
    def method(self) -> str:
        """Return the method of the latest request; none before its URL was read."""
        method: bytes = self._parser.get_method() if self.url else b""
        return method.decode("ascii")

    @property
    def header_list(self) -> list[tuple[bytes, bytes]]:
        """Return all headers of the latest request; repeated ones in their order."""
        return [*self._repeated, *self._headers.items()]

    def piece_bytes(self, usual: int) -> int:
        """Return the bytes to parse next. The rest of a body with a known length is one piece."""
        call = self.call
        if call is None or self._at_body:
            return usual
        return max(usual, int(call.headers.get(b"content-length", b"0")) - call.size)

    def check_header_bytes(self) -> None:
        """Record a refusal if the headers read so far are beyond the limits."""
        settings = self._settings
        most_bytes = settings.max_header_bytes
        if self.refusal is None and (
            self._header_bytes > most_bytes
            or self.head_bytes > most_bytes
            or len(self._headers) + len(self._repeated) > settings.max_headers
        ):
            self.refusal = HeadersTooLarge(
                f"a request has at most {settings.max_headers} headers (max_headers) with together "
                f"at most {settings.max_header_bytes} bytes (max_header_bytes)"
            )

    def check_overhead(self) -> None:
        """Record a refusal if chunk extensions and trailers are beyond the limits.

        A chunk of one byte has 5 bytes of overhead.
        """
        if self.call is not None and self.refusal is None:
            most = self._settings.max_header_bytes
            if self.body_bytes > most + _OVERHEAD_PER_BYTE * self.call.size:
                self.refusal = HeadersTooLarge(
                    f"chunk extensions and trailers have together at most {most} bytes "
                    f"(max_header_bytes)"
                )

    def _has_single_spaces(self, method: bytes) -> bool:
        """Return whether the request line has exactly two spaces."""
        head = self._raw_head + bytes(self._piece)
        return head.lstrip(b"\r\n").startswith(b"%s %s HTTP/" % (method, self.url))

    # -- called by the parser ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._at_body or self.got_last_request or self.refusal is not None:
            return
        self.messages += 1
        self.phase = HEAD
        self._header_bytes = self.head_bytes = self.body_bytes = 0
        self.url = b""
        self._headers, self._repeated = {}, []
        self._settings = self._service.settings

    def on_url(self, url: bytes) -> None:
        if self._at_body or self.got_last_request or self.refusal is not None:
            return
        self.url = url = self.url + url if self.url else url
        limit = self._settings.max_url_bytes
        if len(url) > limit and self.refusal is None:
            self.refusal = UrlTooLong(f"a URL has at most {limit} bytes (max_url_bytes)")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._at_body:
            return
        self._header_bytes += len(name) + len(value) + 4
        if self.phase == HEAD:  # trailers are ignored
            headers, name = self._headers, name.lower()
            if name in headers:
                self._repeated.append((name, headers[name]))
            headers[name] = value

    def on_headers_complete(self) -> None:
        if self._at_body:
            self._at_body = False  # this was the head made by `_read_body_anew`
            return
        if self.got_last_request:
            return
        self.check_header_bytes()
        if self.refusal is not None:
            return
        parser, headers = self._parser, self._headers
        keep_alive = parser.should_keep_alive()
        # Without a Connection header, only HTTP/1.1 is kept alive. Asking costs more than all this.
        version = (
            "1.1" if keep_alive and b"connection" not in headers else parser.get_http_version()
        )
        self.refusal = self._judge_head(version)
        method = parser.get_method()
        if self._checks_spaces and self.refusal is None and not self._has_single_spaces(method):
            self.refusal = Refused("the request line has more than one space between its parts")
        self._raw_head = b""
        if self.refusal is not None:
            return
        method = _METHODS.get(method) or method.decode("ascii")
        if version != "1.1":
            keep_alive = False
        if parser.should_upgrade():
            if is_websocket(self.header_list):
                if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
                    self.refusal = Refused("a WebSocket handshake has no body")
                    return
            elif method == "CONNECT":
                keep_alive = False  # the following bytes are not HTTP
            else:
                self._at_body = True
        self.phase = BODY
        self.call = Call(
            self._connection, self._service, method, self.url, headers, self._repeated, keep_alive
        )
        expected = headers.get(b"expect")
        if expected is not None and version == "1.1":
            self.expects_continue = expected.lower() == b"100-continue"

    def _judge_head(self, version: str) -> PenstockError | None:
        """Return the reason to refuse a request before its body is read; None to accept it."""
        headers = self._headers
        for name, _ in self._repeated:
            if name in _ONLY_ONCE:
                return Refused(f"the header {name.decode()} is given twice")
        host = headers.get(b"host")
        if host is None:
            if version == "1.1":
                return Refused("the Host header is missing")
        elif host != self._host:
            if _HOST.fullmatch(host) is None:
                return Refused(
                    "the Host header is not a host name or address with an optional port"
                )
            self._host = host
        if version not in ("1.1", "1.0"):
            return Refused(f"HTTP/{version} is not supported; use HTTP/1.1")
        encoding = headers.get(b"content-encoding")
        transfer = headers.get(b"transfer-encoding")
        if (encoding is not None and encoding.lower() != b"identity") or (
            transfer is not None and transfer.strip().lower() != b"chunked"
        ):
            return BodyCompressed("compressed bodies are not supported: send the body uncompressed")
        length = headers.get(b"content-length")
        return None if length is None else self._judge_length(length)

    def _judge_length(self, length: bytes) -> PenstockError | None:
        if not length.isdigit():
            return Refused("the Content-Length is not a number")
        max_body_bytes = self._settings.max_body_bytes
        size = int(length) if len(length) <= 18 else max_body_bytes + 1
        if size > max_body_bytes:
            return _too_large(max_body_bytes)
        if size > SMALL_BYTES and not self._service.held.has_room_for_body(size):
            return _no_room()
        return None

    def on_body(self, body: bytes) -> None:
        call = self.call
        if call is None or self.refusal is not None:
            return
        call.add(body)
        self.buffered += len(body)
        held = self._service.held
        held.bytes += len(body)
        max_body_bytes = self._settings.max_body_bytes
        if call.size > max_body_bytes:
            self.refusal = _too_large(max_body_bytes)
        elif (
            call.size > SMALL_BYTES or held.bytes > held.max_bytes
        ) and not held.has_room_for_body(call.size):
            self.refusal = _no_room()

    def on_message_complete(self) -> None:
        if self._at_body:
            return  # only the head was read: `_read_body_anew` comes next
        call, self.call = self.call, None
        if self._header_bytes > self._settings.max_header_bytes:
            self.check_header_bytes()  # of trailers
        if call is None or self.refusal is not None:
            return
        self.phase = IDLE
        self.expects_continue = False
        if self._parser.should_upgrade() and is_websocket(call.header_list):
            return  # `feed` returns the rest next
        self.got_last_request = not call.keep_alive
        self.waiting.append(call)


def is_websocket(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a request asks for an upgrade to WebSocket only."""
    upgrade, connection = b"", list[bytes]()
    for name, value in headers:
        if name == b"connection":
            connection = [token.strip().lower() for token in value.split(b",")]
        elif name == b"upgrade":
            upgrade = value.lower()
    return upgrade == b"websocket" and b"upgrade" in connection


def _too_large(max_body_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"a body has at most {max_body_bytes} bytes (max_body_bytes): send less at a time"
    )


def _no_room() -> Overloaded:
    return Overloaded(
        "requests and answers use all of their memory (max_buffered_bytes): retry in a moment"
    )
