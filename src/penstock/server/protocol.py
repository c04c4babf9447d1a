"""HTTP/1.1 on a connection: uvicorn's protocol, with our own reading and our own short way out.

The hot routes are answered by `hot_routes` at once; everything else goes on to the ASGI app by
uvicorn's own request cycle. Requests that were sent without waiting for answers (pipelining) are
answered one after the other.
"""

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from penstock.server.exchange import Exchange, Head
from penstock.server.problems import problem_of
from penstock.server.reading import IDLE, MOST_WAITING, ReadingProtocol
from penstock.server.refusals import Refused

if TYPE_CHECKING:
    from penstock.server.hot_routes import HotRoutes


class PenstockProtocol(ReadingProtocol):
    """One connection."""

    def __init__(self, *args: Any, hot: "HotRoutes", **options: Any) -> None:
        super().__init__(*args, **options)
        self._hot = hot
        self._answering = False
        self._lease: asyncio.Future[Any] | None = None  # that is being answered
        self._is_half_closed = False  # the client sends no more, but takes answers

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what the client asked for, then close. Its leases wait for messages no longer."""
        if not self._waiting or self._phase != IDLE or self.scheme == "https":
            return False  # close; a TLS connection cannot be half closed
        self._is_half_closed = True
        if self._lease is not None and not self.service.broker.waiting.end_wait(self._lease):
            return False
        self.shutdown()
        return True

    def shutdown(self) -> None:
        """The server stops: finish what was begun, take nothing new."""
        self._draining = True
        if self.is_idle:
            self.transport.close()
        elif self.cycle is not None and len(self._waiting) == 1:
            self.cycle.keep_alive = False

    def go_on(self) -> None:
        """Answer the first that waits, unless one is being answered."""
        while self._waiting and not (
            self._answering or self.flow.write_paused or self.transport.is_closing()
        ):
            exchange = self._waiting[0]
            self._answering = True
            exchange.began_ns = self.service.broker.clock.monotonic_ns()
            given = exchange.head.known.get(b"x-request-id")
            exchange.request_id = self.service.request_ids.next(given)
            if not self._hot.answer(self, exchange):
                self._start_cycle(exchange)

    @property
    def is_last(self) -> bool:
        """Is the connection closed after the answer that is being given?"""
        return not self._waiting[0].head.keep_alive or (self._draining and len(self._waiting) == 1)

    def wait_for(self, lease: "asyncio.Future[Any]") -> None:
        """Cancel the lease if the connection is lost; end its wait if the client sends no more."""
        self._lease = lease
        if self._is_half_closed and not self.service.broker.waiting.end_wait(lease):
            self.transport.close()

    def reply(self, data: bytes, *, is_last: bool, body: bytes = b"") -> None:
        """The whole answer of the first that waits; a large body apart, so as not to copy it."""
        self.transport.write(data)
        if body:
            self.write(body)
        if is_last:
            self.transport.close()
        self._answered()

    def _start_cycle(self, exchange: Exchange) -> None:
        """Have it answered by the app."""
        try:
            scope = self._scope(exchange.head)
        except httptools.HttpParserInvalidURLError:
            problem, is_last = problem_of(Refused("the URL cannot be read")), self.is_last
            data = self.replies.problem(problem, exchange.request_id, close=is_last)
            self.reply(data, is_last=is_last)
            return
        scope["state"]["request_id"] = exchange.request_id
        scope["state"]["wait_for"] = self.wait_for
        scope["state"]["is_gone"] = self.transport.is_closing
        event = asyncio.Event()
        event.set()
        self.cycle = RequestResponseCycle(
            scope=scope,
            transport=_CountedTransport(self),
            flow=_WritingOnly(self.flow),
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,  # the app has its own
            default_headers=self.server_state.default_headers,
            message_event=event,
            expect_100_continue=False,
            keep_alive=not self.is_last,
            on_response=self._answered,
        )
        self.cycle.body += exchange.body
        self.cycle.more_body = False
        self._start_asgi_task(self.cycle, self.app)

    def _answered(self) -> None:
        """The first that waited has its answer."""
        self.server_state.total_requests += 1
        self._answering = False
        self._lease = None
        if not self._waiting:
            return  # the connection was lost
        exchange = self._waiting.popleft()
        self._buffered -= exchange.size
        self.service.held.bytes -= exchange.size
        if self.transport.is_closing():
            self._waiting.clear()
            return
        if self._refusal is not None and not self._waiting:
            self._refuse(self._refusal)
            return
        if self._draining and self.is_idle:
            self.transport.close()
            return
        if self.flow.read_paused and len(self._waiting) < MOST_WAITING:
            self.flow.resume_reading()
        if self._waiting:
            # Later, so that the answers of many requests at once do not nest in one another.
            self.loop.call_soon(self.go_on)
        elif self.is_idle and not self.flow.write_paused:
            self._set_deadline()

    def _scope(self, head: Head) -> Any:
        parsed = httptools.parse_url(head.url)
        raw_path = parsed.path or b"/"
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": head.http_version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": head.method.decode("ascii"),
            "root_path": self.root_path,
            "path": decoded_path(raw_path),
            "raw_path": raw_path,
            "query_string": parsed.query or b"",
            "headers": head.headers,
            "state": self.app_state.copy(),
        }


class _CountedTransport(asyncio.Transport):
    """The transport of a connection for one request of it: what is written counts as held."""

    def __init__(self, connection: PenstockProtocol) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: Any) -> None:
        self._connection.write(data)

    def close(self) -> None:
        self._connection.transport.close()

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()


class _WritingOnly(FlowControl):
    """The flow of a connection for one request of it, whose body is there already: when to read
    on is not its concern."""

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow

    @property
    def write_paused(self) -> bool:  # type: ignore[override]
        return self._flow.write_paused

    async def drain(self) -> None:
        await self._flow.drain()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def decoded_path(raw: bytes) -> str:
    """A path without its percent signs, but for that of a slash: `a%2Fb` is one part of a path,
    and must not become two."""
    text = raw.decode("latin-1")
    if "%" not in text:
        return text
    return unquote(text.replace("%2F", "%252F").replace("%2f", "%252f"))
