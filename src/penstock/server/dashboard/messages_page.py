"""Browse and search the messages of a queue, and export them.

A search reads a limited number of messages, shows what it found and how far it came, and goes on
with the next part until its page is full, the queue ends, or the reader stops it.
"""

from typing import Any

from penstock.broker import Caller
from penstock.errors import PenstockError
from penstock.model import Stats
from penstock.operations import STATES, Browse, GetStats
from penstock.operations import Page as MessagePage
from penstock.server.call import Answer, Call
from penstock.server.dashboard.queue_page import QUEUE
from penstock.server.dashboard.rest_call import RestCall, queue_path
from penstock.server.dashboard.serving import Page, Values, error_page, login_page, visitor_in
from penstock.server.dashboard.session import LoginNeeded
from penstock.server.dashboard.visit import Visit
from penstock.server.rest.messages import export_messages
from penstock.server.rest.query import Query
from penstock.server.routes import Route

_ROWS = 50
_FILTERS = ("state", "group", "key", "priority", "since", "until", "header", "text")
_MAX_SEQ = (1 << 63) - 1
_SUM = 1 << 62


def _browse(visit: Visit, limit: int) -> Browse:
    return Browse(
        visit.text("state"),
        group=visit.group(),
        key=visit.text("key"),
        since=visit.time("since"),
        until=visit.time("until"),
        priority=visit.whole("priority", 0, 9),
        header=visit.text("header"),
        text=visit.text("text"),
        after_seq=visit.whole("after", 0, _MAX_SEQ) or 0,
        limit=limit,
    )


async def load(visit: Visit) -> Values:
    queue = visit.queue
    found = visit.whole("found", 0, _ROWS - 1) or 0  # rows that the page has already
    page = await visit.broker.run(visit.caller, _browse(visit, _ROWS - found), queue)
    stats = await visit.broker.run(visit.caller, GetStats(), queue)
    looked_at = (visit.whole("looked", 0, _SUM) or 0) + page.looked_at
    searching = page.exhausted and bool(page.next_seq) and found + len(page.rows) < _ROWS
    return {
        "queue": queue,
        "stats": stats,
        "group": visit.group(),
        "groups": list(stats.groups),
        "page": page,
        "states": STATES,
        "is_filtered": any(visit.text(name) for name in _FILTERS if name != "group"),
        "searching": searching,
        "progress": _progress(page, stats),
        "looked_at": looked_at,
        "more": _more(visit, page, found + len(page.rows), looked_at),
        "next": _next(visit, page) if page.next_seq else "",
        "export": visit.queue_link(queue, "messages", "export", **dict(_rest(visit).query)),
        "rest": _rest(visit),
        "large_bytes": sum(min(len(row.message.payload), 200) for row in page.rows),
    }


def _more(visit: Visit, page: MessagePage, found: int, looked_at: int) -> str:
    """Return where the search goes on, for the same page."""
    position = {"after": page.next_seq, "found": found, "looked": looked_at}
    return visit.queue_link(visit.queue, "messages", "part", **_filters(visit), **position)


def _next(visit: Visit, page: MessagePage) -> str:
    return visit.queue_link(visit.queue, "messages", **_filters(visit), after=page.next_seq)


def _progress(page: MessagePage, stats: Stats) -> float:
    """Return which part of the queue has been looked at."""
    if not page.next_seq:
        return 1.0
    whole = max(stats.next_seq - stats.first_seq, 1)
    return min(max((page.next_seq - stats.first_seq) / whole, 0.0), 1.0)


def _filters(visit: Visit) -> dict[str, Any]:
    return {name: visit.text(name) for name in _FILTERS}


def _rest(visit: Visit) -> RestCall:
    names = {"since": _instant(visit.text("since")), "until": _instant(visit.text("until"))}
    given = {**_filters(visit), **names}
    asked = tuple((name, value) for name, value in given.items() if value)
    return RestCall("GET", queue_path(visit.queue, "messages"), query=asked)


def _instant(text: str | None) -> str | None:
    """Return a time of a form, which has no zone, as the API takes it."""
    if text is None or text.endswith("Z") or "+" in text:
        return text
    return f"{text}:00Z" if text.count(":") == 1 else f"{text}Z"


async def _caller_of_session(call: Call) -> Caller:
    return (await visitor_in(call)).caller


async def export(call: Call) -> Answer:
    """Send the messages that match, one JSON object a line: the REST call, with the session."""
    try:
        call.caller = await _caller_of_session(call)
        call.query = Query(call.query_string, frozenset(_FILTERS))
        return await export_messages(call, _caller_of_session)
    except LoginNeeded as error:
        return await login_page(call, str(error))
    except PenstockError as error:
        return await error_page(call, error)


PAGES = (
    Page(f"{QUEUE}/messages", "messages.html", load),
    Page(f"{QUEUE}/messages/part", "messages_part.html", load),
)
ROUTES = (Route("GET", f"{QUEUE}/messages/export", export, needs_key=False),)
