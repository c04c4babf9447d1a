"""Dead letters: look at them, deliver them again, throw them away."""

from dataclasses import replace
from typing import Any

from penstock.operations import Discard, ListDead, Redrive, Verb
from penstock.server.off_loop import size_of_many
from penstock.server.rest.answers import DeadList, Discarded, Redriven
from penstock.server.rest.endpoint import QUEUE, Answer, Call, Endpoint, Parameter, Reply
from penstock.server.rest.message_out import dead, encode
from penstock.server.rest.messages import GROUP, PAYLOAD, TIME, group_of, wants_b64
from penstock.server.rest.paging import PAGING, cursor_of, limit_of, listing_of
from penstock.server.rest.structs import DeadFilterBody, RedriveBody
from penstock.server.times import unix_seconds


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


async def redrive(call: Call) -> Answer:
    """Deliver dead letters again: those named, those that match, or all."""
    asked = await call.read(RedriveBody, RedriveBody())
    redrive = Redrive(**_filter(asked), dry_run=asked.dry_run)
    if asked.max_rate and not asked.dry_run:
        paced = call.broker.redrive_paced(call.caller, call.queue, redrive, asked.max_rate)
        return Redriven(await paced)
    return Redriven(await call.broker.run(call.caller, redrive, call.queue))


async def discard(call: Call) -> Answer:
    """Throw dead letters away: those named, those that match, or all."""
    asked = await call.read(DeadFilterBody, DeadFilterBody())
    return Discarded(await call.broker.run(call.caller, Discard(**_filter(asked)), call.queue))


def _filter(asked: DeadFilterBody) -> dict[str, Any]:
    return {
        "ids": asked.ids,
        "reason": asked.reason,
        "since": None if asked.since is None else unix_seconds("$.since", asked.since),
        "until": None if asked.until is None else unix_seconds("$.until", asked.until),
        "limit": asked.limit,
        "group": asked.group,
    }


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
    Endpoint(
        "POST",
        f"{QUEUE}/redrive",
        redrive,
        Verb.MANAGE,
        Redriven,
        body=RedriveBody,
        body_optional=True,
        also=(404,),
    ),
    Endpoint(
        "POST",
        f"{QUEUE}/discard",
        discard,
        Verb.MANAGE,
        Discarded,
        body=DeadFilterBody,
        body_optional=True,
        also=(404,),
    ),
)
