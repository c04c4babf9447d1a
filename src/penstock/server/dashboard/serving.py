"""Serve pages and actions: find the visitor, load, render, stream the live parts, show errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.broker import Caller
from penstock.errors import InvalidInput, PenstockError
from penstock.server.call import Answer, Call
from penstock.server.dashboard.formatting import html_escape
from penstock.server.dashboard.rendering import live_blocks, render, render_blocks
from penstock.server.dashboard.rest_call import RestCall
from penstock.server.dashboard.session import (
    LoginNeeded,
    Session,
    Visitor,
    check_form,
    cookie_of,
    new_session,
    session_of,
    visitor_of,
)
from penstock.server.dashboard.visit import Visit, form_fields, query_fields
from penstock.server.problems import NoSuchRoute, problem_of
from penstock.server.replies import Reply
from penstock.server.routes import Route
from penstock.server.streamed_reply import StreamedReply, StreamEnded, stream

log = logging.getLogger("penstock.server")

HTML = "text/html; charset=utf-8"
EVENTS = "text/event-stream"
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("vary", "accept, cookie"),
)
_EVERY_S = 1.0  # a live page looks again
_SHARE = 20  # a page that holds the loop for 0.1 s is rendered every 2 s
_RAREST_S = 5.0
_QUIET_S = 15.0  # then a comment is sent, so that proxies keep the connection

Values = Mapping[str, Any]


class Page(NamedTuple):
    """A page: what it shows, by its template. Its blocks named `live_…` are sent again."""

    path: str
    template: str
    load: Callable[[Visit], Awaitable[Values]]
    follow: Callable[[Visit], Awaitable[Values]] | None = None  # only what the live parts need

    @property
    def route(self) -> Route:
        return Route("GET", self.path, self.serve, needs_key=False)

    async def serve(self, call: Call) -> Answer:
        """Answer with the page, or as an event stream with its live parts."""
        try:
            visit = Visit(call, await visitor_in(call), query_fields(call))
            if call.headers.get(b"accept") == EVENTS.encode():
                return self._stream(visit)
            values = await self.load(visit)
            page = await _rendered(visit, self.template, values)
            return _reply(visit, page)
        except LoginNeeded as error:
            return await login_page(call, str(error))
        except PenstockError as error:
            return await error_page(call, error)
        except Exception as error:
            log.error(
                "page failed",
                exc_info=error,
                extra={"fields": {"request_id": call.request_id.decode()}},
            )
            return await error_page(call, error)

    def _stream(self, visit: Visit) -> Answer:
        head = Reply(b"", 200, EVENTS, [*HEADERS, ("x-accel-buffering", "no")])
        return stream(visit.call, head, lambda reply: self._send_changes(visit, reply))

    async def _send_changes(self, visit: Visit, reply: StreamedReply) -> None:
        """Send the live parts that changed, as long as the visitor may see them."""
        call, loop = visit.call, asyncio.get_running_loop()
        names = await asyncio.to_thread(live_blocks, self.template)
        sent: dict[str, str] = {}
        last_sent = loop.time()
        await reply.send(b"retry: 2000\n\n")
        while names:
            render_s = 0.0
            try:
                visit = Visit(call, await visitor_of(call), visit.fields)
                values = await (self.follow or self.load)(visit)
                began = loop.time()
                parts = render_blocks(self.template, visit, values, names)
                render_s = loop.time() - began
            except LoginNeeded:
                await reply.send(b"event: login\ndata: \n\n")  # the page goes to the login
                return
            except PenstockError as error:
                await reply.send(_event("trouble", html_escape(str(error))))
                parts = {}
            changed = {name: text for name, text in parts.items() if sent.get(name) != text}
            if changed or loop.time() - last_sent > _QUIET_S:
                sent |= changed
                last_sent = loop.time()
                events = [_event(name, text) for name, text in changed.items()]
                await reply.send(b"".join(events) or b": still here\n\n")
            try:
                async with asyncio.timeout(min(max(_EVERY_S, render_s * _SHARE), _RAREST_S)):
                    await reply.ended.wait()
                raise StreamEnded
            except TimeoutError:
                pass


def _event(name: str, markup: str) -> bytes:
    """Return an event. A carriage return would end a line of the stream."""
    lines = markup.replace("\r", "&#13;").split("\n")
    return "".join([f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n"]).encode()


async def visitor_in(call: Call) -> Visitor:
    """Return who asks, if there is a dashboard."""
    if not call.service.settings.dashboard:
        raise NoSuchRoute("the dashboard is off: set dashboard = true in [server] to use it")
    return await visitor_of(call)


async def _rendered(visit: Visit, template: str, values: Values) -> bytes:
    """Render in the loop, which costs the rows of the page; large payloads in a thread."""
    size = int(values.get("large_bytes", 0))
    if template not in _compiled:
        await asyncio.to_thread(render, template, visit, values)  # compiles the template
        _compiled.add(template)
    off_loop = visit.call.service.off_loop
    return await off_loop.run_if_large(size, lambda: render(template, visit, values))


_compiled: set[str] = set()


def _reply(visit: Visit, page: bytes, status: int = 200, *more: tuple[str, str]) -> Reply:
    headers = [*HEADERS, *more]
    if visit.session.is_new:
        headers.append(cookie_of(visit.call, visit.session, visit.prefix))
    return Reply(page, status, HTML, headers)


# -- actions ---------------------------------------------------------------------------------------


class Done(NamedTuple):
    """What an action did."""

    text: str
    go: str = ""  # the page to go to; empty: stay
    secret: str = ""  # shown once
    session: Session | None = None  # the session from now on
    shown: Values = MappingProxyType({})  # for the template of the result
    template: str = "notice.html"


class Action(NamedTuple):
    """What a form asks for: the REST call that does the same, and how the broker does it."""

    rest: RestCall
    run: Callable[[], Awaitable[Done]]
    confirm: str = ""  # what has to be typed first


class Form(NamedTuple):
    """A place that takes forms. `read` makes an action of the fields, and changes nothing."""

    path: str
    read: Callable[[Visit], Awaitable[Action] | Action]

    @property
    def route(self) -> Route:
        return Route("POST", self.path, self.serve, needs_key=False)

    async def serve(self, call: Call) -> Answer:
        """Carry out an action, or (`preview`) only show its REST call."""
        try:
            visitor = await visitor_in(call)
            fields = await form_fields(call)
            _check(call, visitor.session, fields)
            visit = Visit(call, visitor, fields)
            if "preview" in fields:
                return await self._preview(visit)
            action = await self._action(visit)
            curl = visit.curl(action.rest)
            if action.confirm and fields.get("confirm") != action.confirm:
                raise InvalidInput(f"type {action.confirm} to confirm; nothing was changed")
            done = await action.run()
            if done.session is not None:
                visit.session = done.session
            values = {"done": done, "curl": curl, **done.shown}
            return _result(visit, done, values)
        except LoginNeeded as error:
            return await login_page(call, str(error))
        except PenstockError as error:
            return await _refused(call, error)
        except Exception as error:
            log.error(
                "action failed",
                exc_info=error,
                extra={"fields": {"request_id": call.request_id.decode()}},
            )
            return await _refused(call, error)

    async def _action(self, visit: Visit) -> Action:
        found = self.read(visit)
        return found if isinstance(found, Action) else await found

    async def _preview(self, visit: Visit) -> Reply:
        """Show the REST call. While the form is not complete, a comment says what is missing."""
        try:
            curl = visit.curl((await self._action(visit)).rest)
        except PenstockError as error:
            curl = f"# {error}"
        return _fragment(visit, "preview.html", {"curl": curl})


def _check(call: Call, session: Session, fields: Mapping[str, str]) -> None:
    given = call.headers.get(b"x-csrf-token", b"").decode("latin-1") or fields.get("csrf", "")
    check_form(call, session, given)


def _is_fragment(call: Call) -> bool:
    return call.headers.get(b"hx-request") == b"true"


def _fragment(visit: Visit, template: str, values: Values) -> Reply:
    return _reply(visit, render(template, visit, values))


def _result(visit: Visit, done: Done, values: Values) -> Reply:
    go = done.go and visit.with_notice(done.go, done.text)
    if _is_fragment(visit.call):
        if go:
            return _reply(visit, b"", 200, ("hx-redirect", go))
        page = render(done.template, visit, values)
        return _reply(visit, page, 200, ("hx-trigger", "penstock:changed"))
    if go:
        return _reply(visit, b"", 303, ("location", go))
    return _reply(visit, render("result.html", visit, {**values, "inner": done.template}))


async def _refused(call: Call, error: BaseException) -> Reply:
    if not _is_fragment(call):
        return await error_page(call, error)
    visit = anonymous(call)
    problem = problem_of(error)
    values = {"problem": problem, "request_id": call.request_id.decode()}
    headers = [*HEADERS, *problem.headers.items()]
    return Reply(render("refused.html", visit, values), problem.status, HTML, headers)


# -- pages without a visitor -----------------------------------------------------------------------


def anonymous(call: Call) -> Visit:
    """Return a visit without any right, for errors and the login."""
    session = session_of(call) if call.broker.is_open else new_session(call)
    without_rights = Caller("nobody", frozenset(), frozenset())
    return Visit(call, Visitor(without_rights, session), {})


async def login_page(call: Call, why: str, status: int = 401) -> Reply:
    """Return the login in place of a page. Afterwards the browser goes to that page."""
    visit = anonymous(call)
    if _is_fragment(call):
        return Reply(b"", status, HTML, [*HEADERS, ("hx-refresh", "true")])
    target = call.url.decode("latin-1") if call.method != "POST" else ""
    is_foreign = call.headers.get(b"sec-fetch-site") == b"cross-site"  # so it has no cookie
    values = {"why": why, "next": target, "retry": is_foreign, "failed": call.method == "POST"}
    return _reply(visit, await _rendered(visit, "login.html", values), status)


async def error_page(call: Call, error: BaseException) -> Reply:
    """Return what went wrong, and what to do."""
    problem = problem_of(error)
    visit = anonymous(call)
    values = {"problem": problem, "request_id": call.request_id.decode()}
    page = await _rendered(visit, "error.html", values)
    headers = [*HEADERS, *problem.headers.items()]
    return Reply(page, problem.status, HTML, headers)
