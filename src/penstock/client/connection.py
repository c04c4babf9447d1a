"""Calls over HTTP, for threads."""

import os
from threading import Condition
from typing import Any

from penstock.client.call import Call, Story, T
from penstock.client.counts import Counts
from penstock.client.http import client_settings, failure_of, httpx, request_settings
from penstock.client.options import ClientOptions
from penstock.client.tries import Done, Pause, Tries
from penstock.clock import Clock, SystemClock
from penstock.errors import LedgerClosed, PenstockError
from penstock.model import NS


class Connection:
    """To one broker, with connections that are kept and shared by all threads."""

    def __init__(self, base: str, options: ClientOptions, *, clock: Clock | None = None) -> None:
        self.base = base
        self.options = options
        self.clock = clock or SystemClock()
        self.counts = Counts()
        self._library = httpx()
        self._closing = Condition()
        self._closed = False
        self._retrying = options.retrying()
        self._connect()

    def _connect(self) -> None:
        self._http = self._library.Client(**client_settings(self.base, self.options))
        self._pid = os.getpid()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def do(self, call: Call[T]) -> T:
        """The call's value, tried again as long as that is safe and allowed."""
        tries = Tries(call, self._retrying, self.clock, base=self.base)
        while True:
            outcome = self._try(call, tries)
            if isinstance(outcome, Done):
                return outcome.value
            self.counts.retried()
            self._wait(outcome.seconds)

    def _try(self, call: Call[T], tries: Tries[T]) -> Done[T] | Pause:
        self._check()
        started_ns = self.clock.monotonic_ns()
        try:
            answer = self._http.request(**request_settings(call, self.options))
        except self._library.TransportError as error:
            return tries.failed(**failure_of(error, self.base)._asdict())
        self.counts.answered(self.clock.monotonic_ns() - started_ns)
        return tries.answered(answer.status_code, answer.headers, answer.content)

    def run(self, story: Story[T]) -> T:
        """The value of a story, call by call."""
        try:
            call = next(story)
            while True:
                try:
                    value: Any = self.do(call)
                except PenstockError as error:
                    call = story.throw(error)
                else:
                    call = story.send(value)
        except StopIteration as end:
            result: T = end.value
            return result

    def _check(self) -> None:
        if self._closed:
            raise LedgerClosed("this client was closed; open the queue again")
        if self._pid != os.getpid():
            # A forked child: the sockets are the parent's, and so would be the answers on them.
            self._connect()

    def _wait(self, seconds: float) -> None:
        """Until the time is over, or the client is closed."""
        ends_ns = self.clock.monotonic_ns() + round(seconds * NS)
        with self._closing:
            while not self._closed and (left_ns := ends_ns - self.clock.monotonic_ns()) > 0:
                self.clock.wait(self._closing, left_ns / NS)

    def close(self) -> None:
        """May be called again."""
        with self._closing:
            self._closed = True
            self._closing.notify_all()
        if self._pid == os.getpid():
            self._http.close()
