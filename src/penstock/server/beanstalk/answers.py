"""Answers of the protocol, and those that wait for the broker."""

import logging
from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    DiskFull,
    InvalidInput,
    NoSuchMessage,
    NoSuchQueue,
    Overloaded,
    PenstockError,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ReceiptInvalid,
    TooLarge,
    TooManyRequests,
)
from penstock.server.coroutines import error_of

if TYPE_CHECKING:
    from penstock.server.beanstalk.connection import Connection

log = logging.getLogger("penstock.server")

# The first class that an error belongs to decides.
_BY_ERROR: tuple[tuple[type[BaseException], str], ...] = (
    (TooLarge, "JOB_TOO_BIG"),
    (NoSuchQueue, "NOT_FOUND"),
    (NoSuchMessage, "NOT_FOUND"),
    (ReceiptInvalid, "NOT_FOUND"),
    (InvalidInput, "BAD_FORMAT"),
    (QueueFull, "OUT_OF_MEMORY"),
    (QuotaExceeded, "OUT_OF_MEMORY"),
    (RateLimited, "OUT_OF_MEMORY"),
    (TooManyRequests, "OUT_OF_MEMORY"),
    (Overloaded, "OUT_OF_MEMORY"),
    (DiskFull, "OUT_OF_MEMORY"),
)


def answer_of(error: BaseException, command: str = "") -> str:
    """Return the answer to a command that failed."""
    for kind, answer in _BY_ERROR:
        if isinstance(error, kind):
            if command == "put" and answer == "NOT_FOUND":
                break  # put has no such answer
            return answer
    fields = {"command": command, "reason": str(error)}
    if isinstance(error, PenstockError):
        log.warning("refused", extra={"fields": fields})
    else:
        log.error("a command failed", extra={"fields": fields}, exc_info=error)
    return "INTERNAL_ERROR"


def with_body(head: bytes, body: bytes) -> bytes:
    """Return an answer that has a body. `head` has no length yet.

    >>> with_body(b"OK", b"x")
    b'OK 1\\r\\nx\\r\\n'
    """
    return b"%s %d\r\n%s\r\n" % (head, len(body), body)


def as_it_is(answer: "Answer", result: bytes) -> bytes:
    """Return a result that is the answer already, for `Answer.make`."""
    return result


class Answer:
    """The place of an answer that is not known yet, in the order of the commands.

    The broker calls `succeed` or `fail`, see `Pending`.
    """

    __slots__ = ("blocks", "command", "connection", "count", "data", "make", "size", "subject")

    def __init__(
        self,
        connection: "Connection",
        command: str,
        make: Callable[["Answer", Any], bytes | None],
        subject: Any = None,
    ) -> None:
        self.connection = connection
        self.command = command
        self.make = make  # returns the answer for a result; None: it is answered later
        self.subject = subject  # what `make` needs
        self.data: bytes | None = None  # once it is known
        self.blocks = False  # later commands wait for it
        self.count = 1  # commands that it answers
        self.size = 0  # bytes of their bodies, in `Held`

    def wait_for(self, found: Any) -> None:
        """Take what a call of the broker returned: the result, a future, or None for later."""
        if found is None:
            return
        if not isinstance(found, Future):
            self.succeed(found)
        elif found.done():
            self._done(found)
        else:
            found.add_done_callback(self._done)

    def _done(self, future: "Future[Any]") -> None:
        error = error_of(future)
        if error is None:
            self.succeed(future.result())
        else:
            self.fail(error)

    def succeed(self, result: Any) -> None:
        try:
            data = self.make(self, result)
        except Exception as error:
            self.fail(error)
            return
        if data is not None:
            self.give(data)

    def fail(self, error: BaseException) -> None:
        self.connection.fail(self, error)

    def give(self, data: bytes) -> None:
        """Answer with these bytes."""
        self.data = data
        self.connection.answered(self)
