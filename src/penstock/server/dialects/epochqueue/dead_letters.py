"""Dead letters: leased and settled as messages are, or replayed."""

from starlette.responses import Response

from penstock.operations import Redrive
from penstock.server.dialects.call import Call, answer, answer_leased, route
from penstock.server.dialects.epochqueue.catalogue import QUEUE, queue_of
from penstock.server.dialects.epochqueue.messages import MOST_LEASED, delivery

_LEASED, _REPLAYED = 10, 100  # where nothing is said
_MOST_REPLAYED = 100_000


async def lease_dead(call: Call) -> Response:
    queue = queue_of(call)
    limit = call.count("limit", _LEASED, MOST_LEASED)
    leased = await call.broker.lease_dead(call.caller, queue, n=limit)
    return await answer_leased(
        call, leased, lambda: {"messages": [delivery(queue, one) for one in leased]}
    )


async def replay(call: Call) -> Response:
    """They are due now, with the same ids and all their attempts."""
    limit = call.count("limit", _REPLAYED, _MOST_REPLAYED)
    replayed = await call.broker.run(call.caller, Redrive(limit=limit), queue_of(call))
    return answer({"replayed": replayed})


ROUTES = (
    route("GET", f"{QUEUE}/dlq", lease_dead),
    route("POST", f"{QUEUE}/dlq/replay", replay),
)
