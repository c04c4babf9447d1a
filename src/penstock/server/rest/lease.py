"""POST …/{queue}/lease: hand messages to one holder, perhaps after waiting for them."""

from asyncio import Future
from collections.abc import Sequence

import msgspec

from penstock.broker import Broker, Caller, QueueName, check_name
from penstock.broker.store import payload_bytes
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME, LeasedMessage
from penstock.server import strict_json
from penstock.server.off_loop import size_of_many
from penstock.server.rest.answers import LeasedMessages
from penstock.server.rest.message_out import encode, leased
from penstock.server.rest.structs import LeaseBody

STATUS = 200

_decoder = msgspec.json.Decoder(LeaseBody)
_DEFAULTS = LeaseBody()


def read(body: bytes) -> LeaseBody:
    """What is asked for. Nothing in the body means the defaults."""
    return strict_json.decode_closed(body, _decoder) if body else _DEFAULTS


def start(
    broker: Broker, caller: Caller, queue: QueueName, asked: LeaseBody
) -> Future[list[LeasedMessage]]:
    """Ask the broker."""
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


def size(found: Sequence[LeasedMessage]) -> int:
    """Return the size of the answer, at most."""
    return size_of_many(len(found), payload_bytes(found))


def answer(found: Sequence[LeasedMessage], *, b64: bool) -> bytes:
    return encode(LeasedMessages([leased(one, b64=b64) for one in found]))
