"""Messages: publish, browse, look at one, cancel it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, convert

from penstock.broker import check_name
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME
from penstock.operations import (
    STATES,
    Browse,
    GetMessage,
    ListHistory,
    Peek,
    Row,
    Verb,
)
from penstock.operations.answers import encode_record
from penstock.server.off_loop import size_of_many
from penstock.server.rest import publish
from penstock.server.rest.answers import (
    History,
    HistoryItem,
    Listed,
    MessageList,
    PublishedMessage,
    PublishedMessages,
)
from penstock.server.rest.endpoint import API, QUEUE, Answer, Call, Endpoint, Parameter, Reply
from penstock.server.rest.message_in import JSON, media_type, read_messages, read_raw_message
from penstock.server.rest.message_out import PAYLOADS, encode, listed
from penstock.server.rest.paging import MOST, PAGING, cursor_of, limit_of, listing_of
from penstock.server.rest.structs import Name, NewMessageBody

_MESSAGE = f"{API}/messages/{{id}}"
_ORDERS = ("seq", "delivery")


async def publish_messages(call: Call) -> Answer:
    """Publish a message, or an array of them: all or none."""
    queue = call.queue
    content_type = call.request.headers.get("content-type")
    if media_type(content_type) == JSON:
        if call.query.given():
            raise InvalidInput(
                f"{', '.join(call.query.given())} in the query string: the options of a message in "
                f"JSON are fields of it"
            )
        body = await call.body()
        read = partial(read_messages, body)
        messages, many = await call.service.off_loop.run_if_large(len(body), read)
    else:
        headers = call.request.scope["headers"]
        body = await call.body()
        messages, many = [read_raw_message(body, content_type, headers, call.query)], False
    published = await call.broker.publish(call.caller, queue, messages)
    make = partial(publish.answer, published, many=many)
    size = size_of_many(len(published))
    return Reply(await call.service.off_loop.answer(size, make), publish.STATUS)


async def browse_messages(call: Call) -> Answer:
    """Look at messages without taking them."""
    query, b64 = call.query, wants_b64(call)
    if query.choice("order", _ORDERS) == "delivery":
        return await _peek(call)
    asked = Browse(
        group=group_of(call),
        state=query.choice("state", STATES),
        key=query.text("key"),
        since=query.time_s("since"),
        until=query.time_s("until"),
        text=query.text("text"),
    )
    listing = listing_of(call, asked)
    after = call.service.cursors.read_number(listing, query.text("cursor"))
    asked = replace(asked, after_seq=after, limit=limit_of(call))
    page = await call.broker.run(call.caller, asked, call.queue)
    cursor = cursor_of(call, listing, page.next_seq)

    def made() -> bytes:
        rows = [listed(row.message, row.state, row.attempts, b64=b64) for row in page.rows]
        return encode(MessageList(rows, page.looked_at, page.exhausted, cursor))

    return Reply(await call.service.off_loop.page(_size(page.rows), made))


async def _peek(call: Call) -> Answer:
    """Those that would be delivered next, in that order."""
    for name in ("state", "key", "since", "until", "text", "cursor"):
        if call.query.text(name) is not None:
            raise InvalidInput(f"order=delivery shows what comes next: {name} does not go with it")
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
    """Tell what happened to a message."""
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


def group_of(call: Call) -> str:
    """The group that the query names."""
    return check_name("group", call.query.text("group") or MAIN_GROUP_NAME)


def wants_b64(call: Call) -> bool:
    return call.query.choice("payload", PAYLOADS) == "b64"


GROUP = Parameter("group", "A consumer group; main if none is named.", Name)
PAYLOAD = Parameter(
    "payload", "b64: all payloads as base64, just as they were published.", Literal["json", "b64"]
)
TIME = "RFC 3339, or milliseconds since 1970."
_OPTIONS = (  # of a body that is not JSON
    Parameter("priority", "0 to 9, higher first.", Annotated[int, Meta(ge=0, le=9)]),
    Parameter("delay_s", "Seconds until it is due.", Annotated[float, Meta(ge=0)]),
    Parameter("deliver_at", f"When it is due: {TIME}"),
    Parameter("ttl_s", "Seconds until it expires.", Annotated[float, Meta(ge=0)]),
    Parameter("key", "At most one message of a key is leased at a time."),
    Parameter("dedup_id", "A second message with it is answered with the first's id."),
    Parameter("dedup_window_s", "How long that is remembered.", Annotated[float, Meta(gt=0)]),
    Parameter("max_attempts", "Then it is dead.", Annotated[int, Meta(ge=1, le=65535)]),
    Parameter("compression", "How to store it.", Literal["none", "gzip", "zstd"]),
)
_FILTERS = (
    GROUP,
    Parameter("order", "delivery: what comes next, first; no other filter then.", Literal[_ORDERS]),
    Parameter("state", "Without it, all that are not done.", Literal[STATES]),
    Parameter("key", "Only those of this key."),
    Parameter("since", f"Published at or after: {TIME}"),
    Parameter("until", f"Published before: {TIME}"),
    Parameter("text", "Only those whose payload has this text."),
    PAYLOAD,
    *PAGING,
)

ENDPOINTS = (
    Endpoint(
        "POST",
        f"{QUEUE}/messages",
        publish_messages,
        Verb.PUBLISH,
        (PublishedMessage, PublishedMessages),
        status=201,
        body=NewMessageBody | list[NewMessageBody],
        query=_OPTIONS,
        also=(404, 429),
    ),
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
)
