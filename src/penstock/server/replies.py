# cython: annotation_typing=False
"""Replies as bytes. The common part of all JSON replies of a second is made once."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple

from penstock.server.problems import Problem

JSON = "application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
# On every reply: messages must not be cached, or interpreted as markup.
_SAFETY = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))
_SAFETY_LINES = b"".join(f"{name}: {value}\r\n".encode() for name, value in _SAFETY)

Headers = Sequence[tuple[str, str]]


class Reply(NamedTuple):
    """An answer with its own status, content type or headers."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Headers = ()


class Replies:
    """Make the heads of replies."""

    def __init__(self) -> None:
        self._date = b""
        self._json: dict[int, bytes] = {}  # by status, up to the request id

    def set_date(self, date: str) -> None:
        self._date = f"date: {date}\r\n".encode()
        self._json.clear()

    def json(self, status: int, body: bytes, request_id: bytes) -> bytes:
        """Return a whole reply, after which the connection stays open."""
        start = self._json.get(status)
        if start is None:
            start = self._json[status] = (
                b"%s%scontent-type: application/json\r\n%sx-request-id: "
                % (
                    _STATUS_LINES[status],
                    self._date,
                    _SAFETY_LINES,
                )
            )
        return b"%s%s\r\ncontent-length: %d\r\n\r\n%s" % (start, request_id, len(body), body)

    def head(self, reply: Reply, request_id: bytes, more: Headers, *, close: bool) -> bytes:
        """Return the head of any reply. A reply with status 204 has no body."""
        lines = list(reply.headers)
        given = {name for name, _ in lines}
        if reply.status != HTTPStatus.NO_CONTENT:
            lines.append(("content-type", reply.content_type))
            if "transfer-encoding" not in given:
                lines.append(("content-length", str(len(reply.body))))
        lines += [header for header in _SAFETY if header[0] not in given]
        lines += more
        lines.append(("x-request-id", request_id.decode()))
        if close:
            lines.append(("connection", "close"))
        text = "".join([f"{name}: {value}\r\n" for name, value in lines])
        return _STATUS_LINES[reply.status] + self._date + text.encode("latin-1") + b"\r\n"

    def refusal(self, problem: Problem, request_id: bytes, *, is_head: bool = False) -> bytes:
        """Return a whole reply to a request that was refused early. The connection is closed."""
        reply = reply_of(problem, request_id)
        head = self.head(reply, request_id, (), close=True)
        return head if is_head else head + reply.body


def reply_of(problem: Problem, request_id: bytes) -> Reply:
    return Reply(
        problem.body(request_id.decode()),
        problem.status,
        problem.content_type,
        [*problem.headers.items()],
    )
