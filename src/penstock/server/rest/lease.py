# cython: annotation_typing=False
"""POST …/{queue}/lease: lease messages, and optionally wait for them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec

from penstock.broker import Verb, check_name
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME, LeasedMessage
from penstock.server import strict_json
from penstock.server.call import Answer, Call, encode, require_json
from penstock.server.rest.endpoint import QUEUE, Endpoint, Parameter
from penstock.server.rest.message_out import PAYLOADS, leased, leased_json
from penstock.server.rest.structs import LeaseBody, LeasedMessages

PAYLOAD = Parameter(
    "payload", "b64: all payloads as base64, just as they were published.", Literal["json", "b64"]
)
_decoder = msgspec.json.Decoder(LeaseBody)
_DEFAULTS = LeaseBody()
_MOST_CACHED_BYTES = 200


def lease_messages(call: Call) -> Any:
    """Lease messages, and optionally wait for them."""
    if not call.size:
        return _lease_one(call)
    require_json(call)
    if call.size <= _MOST_CACHED_BYTES:
        asked = _read_small(call.whole_body())
        return _lease_one(call) if asked is None else _lease(call, asked)
    return call.with_body(_read, _lease)


def _read(body: bytes) -> LeaseBody:
    return strict_json.decode_closed(body, _decoder)


@lru_cache(maxsize=256)  # a client leases with the same body each time
def _read_small(body: bytes) -> LeaseBody | None:
    """Return what is asked; None if it is the default."""
    asked = _read(body)
    return None if asked == _DEFAULTS else asked


def _lease_one(call: Call) -> Answer:
    return call.lease_one(_answer_b64 if call.query_string and wants_b64(call) else _answer)


def _lease(call: Call, asked: LeaseBody) -> Answer:
    make = _answer_b64 if wants_b64(call) else _answer
    queue = call.queue
    if asked.group != MAIN_GROUP_NAME:
        check_name("group", asked.group)
    if asked.dead:
        if asked.wait_s:
            raise InvalidInput("dead letters are not waited for: leave wait_s out")
        return call.when_leased(
            call.broker.lease_dead(
                call.caller,
                queue,
                n=asked.max,
                lease_s=asked.lease_s,
                group=asked.group,
                holder=asked.holder,
            ),
            make,
        )
    return call.when_leased(
        call.broker.lease(
            call.caller,
            queue,
            n=asked.max,
            lease_s=asked.lease_s,
            wait_s=asked.wait_s,
            group=asked.group,
            holder=asked.holder,
            pending=call,
        ),
        make,
    )


def wants_b64(call: Call) -> bool:
    return bool(call.query_string) and call.query.choice("payload", PAYLOADS) == "b64"


def _answer(_: Call, found: Sequence[LeasedMessage]) -> bytes:
    if len(found) == 1:
        made = leased_json(found[0])
        if made is not None:
            return made
    return encode(LeasedMessages([leased(one, b64=False) for one in found]))


def _answer_b64(_: Call, found: Sequence[LeasedMessage]) -> bytes:
    return encode(LeasedMessages([leased(one, b64=True) for one in found]))


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
)
