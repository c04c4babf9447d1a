"""Shared by the dialects: decode bodies, read counts from queries, settle a lease."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from msgspec import Struct

from penstock.broker import Outcome, Settlement
from penstock.errors import ReceiptInvalid
from penstock.server.call import Answer, Call, encode
from penstock.server.dialects.json_bodies import Shape
from penstock.server.replies import Reply

_T = TypeVar("_T")
_S = TypeVar("_S", bound=Struct)
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def count(call: Call, name: str, default: _T, most: int) -> int | _T:
    """Return a count in the query, at most `most`; `default` if it is missing or not above 0."""
    if not call.query_string:
        return default
    pairs = parse_qsl(call.query_string.decode("latin-1"), keep_blank_values=True)
    text = dict(pairs).get(name, "")
    if not _WHOLE.fullmatch(text) or int(text) <= 0:
        return default
    return min(int(text), most)


async def read(call: Call, shape: Shape[_S], default: _S | None = None) -> _S:
    """Decode a JSON body of any content type. An empty body gives the default, if there is one."""
    body = call.body
    if default is not None and not body.strip():
        return default
    return await call.service.off_loop.run_if_large(len(body), partial(shape.read, body))


def settle(
    call: Call, settlement: Settlement, make: Callable[[Call, Sequence[Outcome]], Answer]
) -> Answer:
    """Settle one lease. Raise an error if it was not settled; see `check_settled`."""
    return call.when_done(call.broker.settle(call.caller, [settlement], call), make)


def check_settled(outcomes: Sequence[Outcome]) -> None:
    """Raise ReceiptInvalid unless this call settled the lease; a repeated call did not."""
    (outcome,) = outcomes
    if outcome.status == "repeated":
        raise ReceiptInvalid("this lease was acked before: a lease settles once")
    if not outcome.ok:
        raise ReceiptInvalid(outcome.detail)


def json(value: Any, status: int = 200) -> Reply:
    return Reply(encode(value), status)
