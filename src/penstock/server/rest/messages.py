"""Messages: browse, look at one, its history; dead letters."""

from asyncio import Future
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import UNSET, Meta, UnsetType, convert

from penstock.broker import check_name
from penstock.broker.limits import SMALL_BYTES
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME
from penstock.operations import (
    NO_BYTE_LIMIT,
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
from penstock.server.off_loop import payload_bytes_in, size_of_many
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
from penstock.server.rest.exporting import (
    MOST_EXPORTED,
    NDJSON,
    CallerNow,
    caller_by_key,
    export,
)
from penstock.server.rest.lease import PAYLOAD, wants_b64
from penstock.server.rest.listed_json import rows_json
from penstock.server.rest.message_out import dead
from penstock.server.rest.publish import TIME
from penstock.server.rest.structs import DeadList, History, HistoryItem, Listed, MessageList, Name

_MESSAGE = f"{API}/messages/{{id}}"
_ORDERS = ("seq", "delivery")
# What URLs of first pages ask for: those that look at a queue ask for the same again and again.
_first_pages: dict[bytes, "_Asked"] = {}
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 1024, 256


class _Asked(NamedTuple):
    """What a URL asks for."""

    operation: Browse
    listing: str  # that a cursor belongs to
    b64: bool


def browse_messages(call: Call) -> "Answer | Coroutine[Any, Any, Answer]":
    """List messages without leasing them."""
    asked = _first_pages.get(call.url)
    if asked is None:
        if call.query.choice("order", _ORDERS) == "delivery":
            return _peek(call)
        asked = _asked(call)
    operation, listing, b64 = asked
    page = call.service.broker.browse(call.caller, call.target.queue(), operation)
    if type(page) is Page:
        rows, next_seq, *_ = page
        most = payload_bytes_in(SMALL_BYTES, len(rows))
        body = _page_json(page, cursor_of(call, listing, next_seq), b64, most)
        if body:
            return body
    return _browse_later(call, page, asked)


def _asked(call: Call) -> _Asked:
    wanted, cursor = _search(call), call.query.text("cursor")
    listing = listing_of(call, wanted)
    after_seq = call.service.cursors.read_number(listing, cursor)
    operation = replace(wanted, after_seq=after_seq, limit=limit_of(call))
    asked = _Asked(operation, listing, wants_b64(call))
    if cursor is None and len(call.url) <= _LONGEST_REMEMBERED:
        if len(_first_pages) >= _MOST_REMEMBERED:
            _first_pages.clear()
        _first_pages[call.url] = asked
    return asked


async def _browse_later(call: Call, browsing: "Future[Page] | Page", asked: _Asked) -> Answer:
    page = browsing if isinstance(browsing, Page) else await browsing
    cursor = cursor_of(call, asked.listing, page.next_seq)
    made = partial(_page_json, page, cursor, asked.b64)
    return Reply(await call.service.off_loop.page(_size(page.rows), made))


def _page_json(
    page: Page, cursor: str | UnsetType, b64: bool, max_payload_bytes: int = NO_BYTE_LIMIT
) -> bytes:
    """Return what `MessageList` says, as JSON; nothing if the payloads are larger than that."""
    rows, next_seq, looked_at, exhausted, first_seq, end_seq = page
    more = ',"exhausted":true' if exhausted else ""
    if cursor is not UNSET:
        more += f',"cursor":"{cursor}"'  # base64 needs no escapes
    if next_seq:
        progress = (next_seq - first_seq + 1) / (end_seq - first_seq)
        more += f',"progress":{progress!r}'
    end = f'],"looked_at":{looked_at}{more}}}'
    return rows_json(rows, b64, b'{"messages":[', end.encode(), max_payload_bytes)


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


async def export_messages(call: Call, caller_now: CallerNow = caller_by_key) -> Answer:
    """Return all messages that match, as one JSON object a line."""
    return await export(call, _search(call), caller_now)


async def _peek(call: Call) -> Answer:
    """Return the messages that would be delivered next, in that order."""
    for name in ("state", "key", "since", "until", "text", "header", "priority", "cursor"):
        if call.query.text(name) is not None:
            raise InvalidInput(f"order=delivery cannot be combined with {name}")
    peek = Peek(limit_of(call), group=group_of(call))
    rows = await call.broker.run(call.caller, peek, call.queue)
    b64 = wants_b64(call)

    def made() -> bytes:
        return rows_json(rows, b64, b'{"messages":[', b'],"looked_at":%d}' % len(rows))

    return Reply(await call.service.off_loop.page(_size(rows), made))


def _size(rows: Sequence[Row]) -> int:
    return size_of_many(len(rows), sum(len(row.message.payload) for row in rows))


async def get_message(call: Call) -> Answer:
    """Show a message and its state in a group."""
    row = await call.broker.run(call.caller, GetMessage(call.path("id"), group=group_of(call)))
    b64 = wants_b64(call)

    def made() -> bytes:
        return rows_json([row], b64, b"", b"")

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
    Annotated[int, Meta(ge=1, le=MOST_EXPORTED)],
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
        str,  # a `Listed` on each line
        query=(*_SEARCH, _EXPORTED),
        also=(404,),
        media_type=NDJSON,
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
