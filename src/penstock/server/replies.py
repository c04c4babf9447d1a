"""Whole answers as bytes, for those that are given without ASGI."""

from http import HTTPStatus

from uvicorn.server import ServerState

from penstock.server.problems import Problem

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
# On every answer. What a queue holds is nobody's to cache, nor to be taken for markup.
SAFETY_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_SAFETY = b"".join(b"%s: %s\r\n" % header for header in SAFETY_HEADERS)
_JSON = b"content-type: application/json\r\n" + _SAFETY
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Replies:
    """Makes answers; knows the headers that all answers of a server have."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._made_of: list[tuple[bytes, bytes]] | None = None
        self._always = b""

    def _default_headers(self) -> bytes:
        """uvicorn replaces its list once a second, with a new date."""
        headers = self._state.default_headers
        if headers is not self._made_of:
            self._made_of = headers
            self._always = b"".join(b"%s: %s\r\n" % header for header in headers)
        return self._always

    def json(self, status: int, body: bytes, request_id: str, *, close: bool) -> bytes:
        """A good answer."""
        return b"%s%s%sx-request-id: %s\r\ncontent-length: %d\r\n%s\r\n%s" % (
            _STATUS_LINES[status],
            self._default_headers(),
            _JSON,
            request_id.encode(),
            len(body),
            b"connection: close\r\n" if close else b"",
            body,
        )

    def json_head(self, status: int, size: int, request_id: str, *, close: bool) -> bytes:
        """The head of a good answer whose body is sent by itself."""
        return b"%s%s%sx-request-id: %s\r\ncontent-length: %d\r\n%s\r\n" % (
            _STATUS_LINES[status],
            self._default_headers(),
            _JSON,
            request_id.encode(),
            size,
            b"connection: close\r\n" if close else b"",
        )

    def problem(self, problem: Problem, request_id: str, *, close: bool) -> bytes:
        """An answer that is an error."""
        body = problem.body(request_id)
        more = "".join(f"{name}: {value}\r\n" for name, value in problem.headers.items())
        return b"%s%scontent-type: %s\r\n%s%sx-request-id: %s\r\ncontent-length: %d\r\n%s\r\n%s" % (
            _STATUS_LINES[problem.status],
            self._default_headers(),
            problem.content_type.encode(),
            _SAFETY,
            more.encode(),
            request_id.encode(),
            len(body),
            b"connection: close\r\n" if close else b"",
            body,
        )
