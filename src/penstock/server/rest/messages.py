"""Messages: browse, look at one, its history; dead letters."""

from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, convert

from penstock.broker import Caller, check_name
from penstock.broker.limits import SMALL_BYTES
from penstock.errors import InvalidInput, KeyRefused, NotAllowed
from penstock.model import MAIN_GROUP_NAME
from penstock.operations import (
    STATES,
    Browse,
    GetMessage,
    ListDead,
    ListHistory,
    Page,
    Peek,
    Row,
    Verb,
)
from penstock.operations.answers import encode_record
from penstock.server.call import Answer, Call, encode
from penstock.server.off_loop import size_of_many
from penstock.server.replies import Reply
from penstock.server.rest.endpoint import (
    API,
    MOST,
    PAGING,
    QUEUE,
    Endpoint,
    Parameter,
    cursor_of,
    limit_of,
    listing_of,
)
from penstock.server.rest.lease import PAYLOAD, wants_b64
from penstock.server.rest.listed_json import listed_json
from penstock.server.rest.message_out import dead, listed
from penstock.server.rest.publish import TIME
from penstock.server.rest.structs import DeadList, History, HistoryItem, Listed, MessageList, Name
from penstock.server.streamed_reply import StreamedReply, StreamEnded, stream

_MESSAGE = f"{API}/messages/{{id}}"
_ORDERS = ("seq", "delivery")
_MOST_EXPORTED = 1_000_000_000
# What URLs of first pages ask for: those that look at a queue ask for the same again and again.
_first_pages: dict[bytes, tuple[Browse, str]] = {}
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 1024, 256


def browse_messages(call: Call) -> "Answer | Coroutine[Any, Any, Answer]":
    """List messages without leasing them."""
    b64 = wants_b64(call)
    if call.query.choice("order", _ORDERS) == "delivery":
        return _peek(call)
    asked, listing = _first_pages.get(call.url) or _asked(call)
    browsing = call.service.broker.run(call.caller, asked, call.queue)
    if not browsing.done() or _size(browsing.result().rows) > SMALL_BYTES:
        return _browse_later(call, browsing, listing)
    page = browsing.result()  # the usual case: no task is needed
    return _page_json(page, cursor_of(call, listing, page.next_seq), b64)


def _asked(call: Call) -> tuple[Browse, str]:
    """Return the operation, and the listing that a cursor belongs to."""
    wanted, cursor = _search(call), call.query.text("cursor")
    listing = listing_of(call, wanted)
    after_seq = call.service.cursors.read_number(listing, cursor)
    asked = replace(wanted, after_seq=after_seq, limit=limit_of(call))
    if cursor is None and len(call.url) <= _LONGEST_REMEMBERED:
        if len(_first_pages) >= _MOST_REMEMBERED:
            _first_pages.clear()
        _first_pages[call.url] = asked, listing
    return asked, listing


async def _browse_later(call: Call, browsing: "Future[Page]", listing: str) -> Answer:
    page = await browsing
    cursor = cursor_of(call, listing, page.next_seq)
    made = partial(_page_json, page, cursor, wants_b64(call))
    return Reply(await call.service.off_loop.page(_size(page.rows), made))


def _page_json(page: Page, cursor: str | UnsetType, b64: bool) -> bytes:
    """Return what `MessageList` says, as JSON."""
    rows = [
        (None if b64 else listed_json(row)) or encode(listed(*row, b64=b64)) for row in page.rows
    ]
    more = b',"exhausted":true' if page.exhausted else b""
    if cursor is not UNSET:
        more += b',"cursor":"%b"' % cursor.encode()  # base64 needs no escapes
    if page.next_seq:
        progress = (page.next_seq - page.first_seq + 1) / (page.end_seq - page.first_seq)
        more += b',"progress":%a' % progress
    return b'{"messages":[%b],"looked_at":%d%b}' % (b",".join(rows), page.looked_at, more)


def _search(call: Call) -> Browse:
    """Return the search that the query asks for, without its page."""
    query = call.query
    return Browse(
        query.choice("state", STATES),
        group=group_of(call),
        key=query.text("key"),
        since=query.time_s("since"),
        until=query.time_s("until"),
        text=query.text("text"),
        header=query.text("header"),
        priority=query.whole("priority", 0, 9),
    )


async def _caller_by_key(call: Call) -> Caller:
    return await call.service.admit(call.headers, call.query_string, call.connection.peer)


async def export_messages(
    call: Call, caller_now: Callable[[Call], Awaitable[Caller]] = _caller_by_key
) -> Answer:
    """Return all messages that match, as one JSON object a line.

    It is read and sent page by page. If the connection ends without the last chunk, it is not
    complete. It ends if the caller, as `caller_now` says before each page, lost the right.
    """
    b64, limit = wants_b64(call), call.query.whole("limit", 1, _MOST_EXPORTED)
    pages = call.broker.pages(call.caller, call.queue, _search(call))
    first = await anext(pages)  # errors are answered before the reply begins

    def lines(rows: Sequence[Row]) -> bytes:
        made = [listed(row.message, row.state, row.attempts, b64=b64) for row in rows]
        return b"".join([encode(one) + b"\n" for one in made])

    async def produce(reply: StreamedReply) -> None:
        left, page = limit, first
        try:
            while True:
                rows = page.rows if left is None else page.rows[:left]
                if rows:
                    await reply.send(
                        await call.service.off_loop.page(_size(rows), partial(lines, rows))
                    )
                if left is not None:
                    left -= len(rows)
                    if not left:
                        return
                try:
                    (await caller_now(call)).check(Verb.READ, call.queue.namespace)
                except (KeyRefused, NotAllowed) as error:
                    raise StreamEnded from error
                found = await anext(pages, None)
                if found is None:
                    return
                page = found
        finally:
            await pages.aclose()

    return stream(call, Reply(b"", content_type="application/x-ndjson"), produce)


async def _peek(call: Call) -> Answer:
    """Return the messages that would be delivered next, in that order."""
    for name in ("state", "key", "since", "until", "text", "header", "priority", "cursor"):
        if call.query.text(name) is not None:
            raise InvalidInput(f"order=delivery cannot be combined with {name}")
    peek = Peek(limit_of(call), group=group_of(call))
    rows = await call.broker.run(call.caller, peek, call.queue)
    b64 = wants_b64(call)

    def made() -> bytes:
        found = [listed(row.message, row.state, row.attempts, b64=b64) for row in rows]
        return encode(MessageList(found, len(found)))

    return Reply(await call.service.off_loop.page(_size(rows), made))


def _size(rows: Sequence[Row]) -> int:
    return size_of_many(len(rows), sum(len(row.message.payload) for row in rows))


async def get_message(call: Call) -> Answer:
    """Show a message and its state in a group."""
    row = await call.broker.run(call.caller, GetMessage(call.path("id"), group=group_of(call)))
    b64 = wants_b64(call)

    def made() -> bytes:
        return encode(listed(row.message, row.state, row.attempts, b64=b64))

    return Reply(await call.service.off_loop.page(_size([row]), made))


async def get_history(call: Call) -> Answer:
    """Show the history of a message."""
    group = call.query.text("group")
    if group is not None:
        check_name("group", group)
    listing, limit = listing_of(call, group), call.query.whole("limit", 1, MOST) or MOST
    skip = call.service.cursors.read_number(listing, call.query.text("cursor"))
    asked = ListHistory(call.path("id"), group=group, skip=skip, limit=limit + 1)
    found = await call.broker.run(call.caller, asked)
    events, more = found[:limit], found[limit:]
    items = [convert(encode_record(one, omit_empty=True), HistoryItem) for one in events]
    cursor = cursor_of(call, listing, skip + limit if more else 0)
    return History(call.path("id"), items, cursor)


async def list_dead(call: Call) -> Answer:
    """List dead letters, in the order they were published."""
    query, b64, group = call.query, wants_b64(call), group_of(call)
    wanted = ListDead(
        reason=query.text("reason"),
        reason_group=query.text("reason_group"),
        since=query.time_s("since"),
        until=query.time_s("until"),
        group=group,
    )
    listing = listing_of(call, wanted)
    after = call.service.cursors.read_number(listing, query.text("cursor"))
    page = await call.broker.run(
        call.caller, replace(wanted, after_seq=after, limit=limit_of(call)), call.queue
    )
    cursor = cursor_of(call, listing, page.next_seq)
    size = size_of_many(
        len(page.letters), sum(len(letter.message.payload) for letter in page.letters)
    )

    def made() -> bytes:
        return encode(DeadList([dead(letter, b64=b64) for letter in page.letters], cursor))

    return Reply(await call.service.off_loop.page(size, made))


def group_of(call: Call) -> str:
    """Return the group that the query names."""
    return check_name("group", call.query.text("group") or MAIN_GROUP_NAME)


GROUP = Parameter("group", "A consumer group; main if none is named.", Name)
_SEARCH = (
    GROUP,
    Parameter("state", "Without it, all that are not done.", Literal[STATES]),
    Parameter("key", "Only those of this key."),
    Parameter("since", f"Published at or after: {TIME}"),
    Parameter("until", f"Published before: {TIME}"),
    Parameter("text", "Only messages with this text in the payload or in a header."),
    Parameter("header", "Only messages with this header: its name, or name=value."),
    Parameter("priority", "Only those of this priority.", Annotated[int, Meta(ge=0, le=9)]),
    PAYLOAD,
)
_FILTERS = (
    *_SEARCH,
    Parameter("order", "delivery: what comes next, first; no other filter then.", Literal[_ORDERS]),
    *PAGING,
)
_EXPORTED = Parameter(
    "limit",
    "How many at most; all if it is left out.",
    Annotated[int, Meta(ge=1, le=_MOST_EXPORTED)],
)
_DEAD_FILTERS = (
    GROUP,
    Parameter("reason", "Only dead letters whose reason contains this text."),
    Parameter("reason_group", "Only dead letters of this reason, as dead_reasons names it."),
    Parameter("since", f"Failed last at or after: {TIME}"),
    Parameter("until", f"Failed last before: {TIME}"),
    PAYLOAD,
    *PAGING,
)

ENDPOINTS = (
    Endpoint(
        "GET",
        f"{QUEUE}/messages",
        browse_messages,
        Verb.READ,
        MessageList,
        query=_FILTERS,
        also=(404,),
        is_large=True,
    ),
    Endpoint(
        "GET",
        f"{QUEUE}/messages/export",
        export_messages,
        Verb.READ,
        Listed,
        query=(*_SEARCH, _EXPORTED),
        also=(404,),
    ),
    Endpoint(
        "GET",
        _MESSAGE,
        get_message,
        Verb.READ,
        Listed,
        query=(GROUP, PAYLOAD),
        also=(404,),
        is_large=True,
    ),
    Endpoint(
        "GET",
        f"{_MESSAGE}/history",
        get_history,
        Verb.READ,
        History,
        query=(GROUP, *PAGING),
        also=(404,),
    ),
    Endpoint(
        "GET",
        f"{QUEUE}/dead",
        list_dead,
        Verb.READ,
        DeadList,
        query=_DEAD_FILTERS,
        also=(404,),
        is_large=True,
    ),
)
