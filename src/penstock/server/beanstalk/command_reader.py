"""Reads commands from the bytes of a connection, in pieces of any size.

Puts without options that follow each other are handed over together. One connection may use only a
part of a turn of the event loop.
"""

from typing import TYPE_CHECKING

from penstock.server.beanstalk.commands import (
    MAX_LINE_BYTES,
    Put,
    Unreadable,
    is_http,
    parse_put,
)

if TYPE_CHECKING:
    from penstock.server.beanstalk.connection import Connection

# Of one connection in one turn of the event loop: a few milliseconds.
WORK_PER_TURN = 1000
_WORK_OF_PUT = 1  # without options
_WORK_OF_COMMAND = 10  # of any other, and of a large body
_BYTES_PER_TURN = 512 * 1024  # of bodies
_MOST_BATCHED = 400  # puts that are published together
_MOST_BATCHED_BYTES = 128 * 1024
_LARGE_BODY_BYTES = 4096  # bodies above it are collected in a buffer of their own
_MOST_HEADS = 4096

_heads: dict[bytes, Put] = {}  # lines of puts: clients send few different ones


def _put_of(line: bytes) -> Put:
    head = _heads.get(line)
    if head is None:
        head = parse_put(line)
        if len(_heads) >= _MOST_HEADS:
            _heads.clear()
        _heads[line] = head
    return head


class CommandReader:
    """The bytes of one connection that are not read yet."""

    __slots__ = (
        "_after_skip",
        "_body",
        "_connection",
        "_head",
        "_is_in_long_line",
        "_skips",
        "_turn_bytes",
        "is_reading",
        "rest",
        "work",
    )

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.rest = b""  # received, not read yet
        self._body: bytearray | None = None  # of a large put, so far
        self._head: Put | None = None  # its line
        self._skips = 0  # bytes of a refused body that are still to come
        self._after_skip = ""  # the answer then
        self._is_in_long_line = False
        self.work = 0  # in this turn
        self._turn_bytes = 0  # of bodies in this turn
        self.is_reading = False

    @property
    def is_in_body(self) -> bool:
        """Return whether a large body, or one that is skipped, has not arrived as a whole."""
        return self._body is not None or self._skips > 0

    @property
    def is_unfinished(self) -> bool:
        """Return whether the last command has not arrived as a whole."""
        return bool(self.rest) or self._is_in_long_line or self.is_in_body

    @property
    def body_bytes(self) -> int:
        return 0 if self._body is None else len(self._body)

    def begin_turn(self) -> None:
        """Allow the work of one turn of the event loop."""
        self.work = self._turn_bytes = 0

    def clear(self) -> None:
        self.rest, self._body, self._head = b"", None, None

    def feed(self, data: bytes) -> None:
        self.rest = self.rest + data if self.rest else data

    def read_on(self) -> None:
        """Read commands until the bytes end, one blocks the others, or the turn is over."""
        self.is_reading = True
        try:
            if self.is_in_body and not self._connection.must_wait:
                self.rest = self._skip(self.rest) if self._skips else self._add(self.rest)
            self._read()
        finally:
            self.is_reading = False

    def _read(self) -> None:
        connection, data, pos = self._connection, self.rest, 0
        end, find = len(data), data.find
        batch: list[bytes] = []
        batched_bytes = 0
        while pos < end and not connection.must_wait:
            if self.work >= WORK_PER_TURN or self._turn_bytes >= _BYTES_PER_TURN:
                connection.yield_turn()
                break
            eol = find(b"\r\n", pos)
            line = data[pos:eol] if eol >= 0 else b""
            head = _heads.get(line)
            if head is not None and head[5] and not self._is_in_long_line:  # it has no options
                size = head[0]
                start = eol + 2
                stop = start + size
                if size <= _LARGE_BODY_BYTES and data[stop : stop + 2] == b"\r\n":
                    batch.append(data[start:stop])
                    batched_bytes += size
                    pos = stop + 2
                    self.work += _WORK_OF_PUT
                    self._turn_bytes += size
                    if len(batch) >= _MOST_BATCHED or batched_bytes > _MOST_BATCHED_BYTES:
                        connection.put_batch(batch, batched_bytes)
                        batch, batched_bytes = [], 0
                    continue
            if batch:
                connection.put_batch(batch, batched_bytes)
                batch, batched_bytes = [], 0
                continue  # it may block
            read = self._read_one(data, pos, eol, line)
            if read == pos:
                break  # the rest of the command has not arrived
            pos = read
        if batch:
            connection.put_batch(batch, batched_bytes)
        if pos:
            self.rest = data[pos:]

    def _read_one(self, data: bytes, pos: int, eol: int, line: bytes) -> int:
        """Read one command. Return where the next starts; `pos` if this one is not complete."""
        connection = self._connection
        if eol < 0 or eol - pos > MAX_LINE_BYTES or self._is_in_long_line:
            return self._read_long_line(data, pos, eol)
        start = eol + 2
        self.work += _WORK_OF_COMMAND
        if not line.startswith(b"put "):
            connection.run_line(line)
            return len(data) if connection.is_ending else start
        try:
            head = _put_of(line)
        except Unreadable as error:
            connection.refuse_line(line, str(error))
            return len(data) if connection.is_ending else start
        refusal = connection.refusal_of_size(head.size)
        stop = start + head.size
        if stop + 2 > len(data):
            if refusal is None and head.size <= _LARGE_BODY_BYTES:
                return pos  # the line is read again with the body
            self._begin_body(head, data[start:], refusal)
            return len(data)
        if refusal is not None:
            connection.refuse(refusal)
        elif data[stop : stop + 2] != b"\r\n":
            connection.refuse("EXPECTED_CRLF")
        else:
            self._turn_bytes += head.size
            connection.put(head, data[start:stop])
        return stop + 2

    def _read_long_line(self, data: bytes, pos: int, eol: int) -> int:
        """Read an unfinished line, or one that is too long, which is refused at its end."""
        end = eol if eol >= 0 else len(data) - data.endswith(b"\r")  # the next byte may be the LF
        if not self._is_in_long_line and end - pos > MAX_LINE_BYTES:
            self._is_in_long_line = True
            if is_http(data[pos : pos + MAX_LINE_BYTES]):
                self._connection.close_http()
                return len(data)
        if eol >= 0:
            self._is_in_long_line = False
            self._connection.refuse("BAD_FORMAT")
            return eol + 2
        return end if self._is_in_long_line else pos

    # -- large bodies ------------------------------------------------------------------------------

    def _begin_body(self, head: Put, part: bytes, refusal: str | None) -> None:
        """Collect a large body, or skip it."""
        self._connection.expect_body(head.size)
        if refusal is not None:
            self._skips = head.size + 2 - len(part)
            self._after_skip = refusal
        else:
            self._head, self._body = head, bytearray(part)

    def _skip(self, data: bytes) -> bytes:
        """Discard bytes of a refused body. Return what follows it."""
        skipped = min(self._skips, len(data))
        self._skips -= skipped
        if not self._skips:
            self._connection.refuse(self._after_skip)
        return data[skipped:]

    def _add(self, data: bytes) -> bytes:
        """Add to a large body. Return what follows it."""
        body, head = self._body, self._head
        assert body is not None and head is not None
        part = data[: head.size + 2 - len(body)]
        body += part
        if len(body) == head.size + 2:
            self._body = self._head = None
            if body.endswith(b"\r\n"):
                self._turn_bytes += head.size
                self._connection.put(head, bytes(memoryview(body)[:-2]))
            else:
                self._connection.refuse("EXPECTED_CRLF")
        return data[len(part) :]
