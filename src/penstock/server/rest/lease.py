"""POST …/{queue}/lease: hand messages to one holder, perhaps after waiting for them."""

from asyncio import Future
from collections.abc import Sequence

import msgspec

from penstock.broker import Broker, Caller, QueueName, check_name
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME, LeasedMessage
from penstock.server import strict_json
from penstock.server.rest.answers import LeasedMessages
from penstock.server.rest.message_out import encode, leased
from penstock.server.rest.structs import LeaseBody

STATUS = 200

_decoder = msgspec.json.Decoder(LeaseBody)
_DEFAULTS = LeaseBody()


def start(
    broker: Broker, caller: Caller, queue: QueueName, body: bytes
) -> Future[list[LeasedMessage]]:
    """Ask the broker. Nothing in the body means the defaults."""
    asked = strict_json.decode_closed(body, _decoder) if body else _DEFAULTS
    if asked.group != MAIN_GROUP_NAME:
        check_name("group", asked.group)
    if asked.dead:
        if asked.wait_s:
            raise InvalidInput("dead letters are not waited for: leave wait_s out")
        return broker.lease_dead(
            caller,
            queue,
            n=asked.max,
            lease_s=asked.lease_s,
            group=asked.group,
            holder=asked.holder,
        )
    return broker.lease(
        caller,
        queue,
        n=asked.max,
        lease_s=asked.lease_s,
        wait_s=asked.wait_s,
        group=asked.group,
        holder=asked.holder,
    )


def answer(found: Sequence[LeasedMessage], *, b64: bool) -> bytes:
    return encode(LeasedMessages([leased(one, b64=b64) for one in found]))
