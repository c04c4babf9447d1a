"""Lease and settle, for requests that the hot routes leave to the app."""

import asyncio
from functools import partial
from typing import Any

from penstock.broker import Verb
from penstock.model import LeasedMessage
from penstock.server.problems import Problem
from penstock.server.rest import lease, settle
from penstock.server.rest.answers import LeasedMessages, Settled
from penstock.server.rest.endpoint import API, QUEUE, Answer, Call, Endpoint, Reply
from penstock.server.rest.messages import PAYLOAD, wants_b64
from penstock.server.rest.structs import LeaseBody, SettleBody


async def lease_messages(call: Call) -> Answer:
    """Hand out messages, perhaps after waiting for them."""
    queue, b64 = call.queue, wants_b64(call)
    asked = await call.read(LeaseBody, LeaseBody())
    started = lease.start(call.broker, call.caller, queue, asked)
    call.request.state.wait_for(started)
    leased = await _unless_gone(call, started)
    make = partial(lease.answer, leased, b64=b64)
    return Reply(await call.service.answer_lease(call.request, leased, make), lease.STATUS)


async def _unless_gone(
    call: Call, asked: "asyncio.Future[list[LeasedMessage]]"
) -> list[LeasedMessage]:
    """The messages; given back if the client went away while it waited."""
    going = asyncio.ensure_future(_wait_until_gone(call))
    either: set[asyncio.Future[Any]] = {asked, going}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if going.done() or asked.cancelled():
            asked.cancel()
            if asked.done() and not asked.cancelled() and asked.exception() is None:
                call.broker.give_back(asked.result())
            return []
        return asked.result()
    except asyncio.CancelledError:
        asked.cancel()
        raise
    finally:
        going.cancel()


async def _wait_until_gone(call: Call) -> None:
    while (await call.request.receive())["type"] != "http.disconnect":
        pass


async def settle_messages(call: Call) -> Answer:
    """Ack, nack, extend or release leased messages."""
    await call.read(SettleBody)
    body = await call.body()
    off_loop = call.service.off_loop
    settlements = await off_loop.run_if_large(len(body), partial(settle.read_settlements, body))
    made = settle.answer(await call.broker.settle(call.caller, settlements))
    return made if isinstance(made, Problem) else Reply(made, settle.STATUS)


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{QUEUE}/lease",
        lease_messages,
        Verb.CONSUME,
        LeasedMessages,
        body=LeaseBody,
        body_optional=True,
        query=(PAYLOAD,),
        also=(404, 429),
    ),
    Endpoint(
        "POST",
        f"{API}/settle",
        settle_messages,
        Verb.CONSUME,
        Settled,
        body=SettleBody,
        also=(410,),
    ),
)
