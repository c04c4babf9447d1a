"""Plain HTTP over TCP and Unix sockets, without the HTTP library: connections that are kept open.

One definition for threads and for tasks; `direct_sockets` has their sockets. The transport of the
HTTP library remains for TLS and for proxies. By benchmarks/tasks.py, a job over a broker takes 0.4
to 0.5 of the processor time, server included, with this one.
"""

import os
from typing import Any

from penstock.client.callers import Callers
from penstock.client.direct_sockets import DirectSocket, DirectSockets, TaskSockets, ThreadSockets
from penstock.client.http_wire import ALL_IN_USE, KEEP_ALIVE_S, Answer, Endpoint, NoAnswer
from penstock.client.options import ClientOptions
from penstock.client.request import Request
from penstock.clock import Clock
from penstock.errors import InvalidInput
from penstock.model import NS

_KEEP_ALIVE_NS = round(KEEP_ALIVE_S * NS)


class DirectTransport:
    """Connections to one broker."""

    def __init__(self, base: str, options: ClientOptions, callers: Callers, clock: Clock) -> None:
        self._endpoint = Endpoint(base, options)
        self._options = options
        self._callers = callers
        self._clock = clock
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        make = TaskSockets if self._callers.suspend else ThreadSockets
        self._idle: list[DirectSocket] = []
        self._sockets: DirectSockets = make(self._options.max_connections, self._clock)
        self._pid = os.getpid()

    async def send(self, request: Request[Any]) -> Answer:
        """Send a request and return the answer; raise NoAnswer if there is none."""
        self._callers.check()
        if self._pid != os.getpid():
            self._begin()  # after a fork the sockets are shared with the parent
        data = self._endpoint.bytes_of(request)
        sockets, timeout_s = self._sockets, self._options.timeout_s
        if not await sockets.acquire(timeout_s):
            raise NoAnswer(ALL_IN_USE, sent=False)
        try:
            one = self._idle_socket() or await self._connected(timeout_s)
            is_kept = False
            try:
                answer = await one.ask(data, timeout_s + request.wait_s)
                is_kept = one.is_open and not self._closed
            except TimeoutError:
                raise NoAnswer(f"{self._endpoint.base} did not answer in time", sent=True) from None
            except OSError as error:
                text = f"the connection to {self._endpoint.base} broke: {error}"
                raise NoAnswer(text, sent=True) from error
            finally:
                if not is_kept:  # after an interrupt, its next answer would be of this request
                    one.close()
            if is_kept:
                one.used_ns = self._clock.monotonic_ns()
                self._idle.append(one)
            return answer
        finally:
            sockets.release()

    def _idle_socket(self) -> DirectSocket | None:
        """Return a connection that can be used, if there is one."""
        old_ns = self._clock.monotonic_ns() - _KEEP_ALIVE_NS
        while self._idle:
            try:
                one = self._idle.pop()  # the one that was used last
            except IndexError:
                break  # another thread took it
            if one.used_ns >= old_ns and one.is_idle():
                return one
            one.close()
        return None

    async def _connected(self, timeout_s: float) -> DirectSocket:
        try:
            return await self._sockets.connect(self._endpoint, timeout_s)
        except (OSError, UnicodeError, InvalidInput) as error:
            text = f"no connection to {self._endpoint.base}: {str(error) or 'timed out'}"
            raise NoAnswer(text, sent=False) from error

    async def close(self) -> None:
        """Close the connections that are not in use; the others close after their answer."""
        self._closed = True
        if self._callers.leave() and self._pid == os.getpid():
            while self._idle:
                self._idle.pop().close()
