"""Pages of dead letters."""

from dataclasses import replace

from penstock.operations import ListDead, Verb
from penstock.server.off_loop import size_of_many
from penstock.server.rest.answers import DeadList
from penstock.server.rest.endpoint import QUEUE, Answer, Call, Endpoint, Parameter, Reply
from penstock.server.rest.message_out import dead, encode
from penstock.server.rest.messages import GROUP, PAYLOAD, TIME, group_of, wants_b64
from penstock.server.rest.paging import PAGING, cursor_of, limit_of, listing_of


async def list_dead(call: Call) -> Answer:
    """List dead letters, in the order they were published."""
    query, b64, group = call.query, wants_b64(call), group_of(call)
    wanted = ListDead(
        reason=query.text("reason"),
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


_FILTERS = (
    GROUP,
    Parameter("reason", "Only those whose reason has this text."),
    Parameter("since", f"Failed last at or after: {TIME}"),
    Parameter("until", f"Failed last before: {TIME}"),
    PAYLOAD,
    *PAGING,
)

ENDPOINTS = (
    Endpoint(
        "GET",
        f"{QUEUE}/dead",
        list_dead,
        Verb.READ,
        DeadList,
        query=_FILTERS,
        also=(404,),
        is_large=True,
    ),
)
