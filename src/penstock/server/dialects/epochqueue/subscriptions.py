"""Webhooks in EpochQueue's style: they take from the queue beside those who lease."""

from msgspec import Struct
from starlette.responses import Response

from penstock.broker import Verb
from penstock.broker.webhooks import Style
from penstock.server.dialects.call import Call, answer, nothing, route
from penstock.server.dialects.epochqueue.catalogue import QUEUE, made_queue, queue_of
from penstock.server.dialects.json_bodies import Shape


class SubscriptionBody(Struct):
    url: str
    secret: str | None = None


_body = Shape(SubscriptionBody, closed=True)


async def subscribe(call: Call) -> Response:
    body = await call.read(_body)
    made = await call.service.webhooks.create(
        call.caller,
        await made_queue(call.broker, call.caller, Verb.CONSUME, queue_of(call)),
        body.url,
        secret=body.secret or None,
        style=Style.EPOCHQUEUE,
    )
    return answer({"id": made.id}, 201)


async def unsubscribe(call: Call) -> Response:
    await call.service.webhooks.delete(call.caller, call.path("id"))
    return nothing()


ROUTES = (
    route("POST", f"{QUEUE}/subscriptions", subscribe),
    route("DELETE", "/subscriptions/{id}", unsubscribe),
)
