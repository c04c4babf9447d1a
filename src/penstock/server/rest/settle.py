# cython: annotation_typing=False
"""POST /api/v1/settle: ack, nack, extend or release leased messages."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.broker import Outcome, Settlement, Verb
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import Receipt
from penstock.server import strict_json
from penstock.server.call import Answer, Call, encode, require_json
from penstock.server.off_loop import size_of_many
from penstock.server.problems import problem_of
from penstock.server.rest.endpoint import API, Endpoint
from penstock.server.rest.publish import new_message
from penstock.server.rest.structs import (
    MOST_SETTLED,
    AckItem,
    ExtendItem,
    NackItem,
    ReleaseItem,
    SettleBody,
    Settled,
    SettledOne,
)

if TYPE_CHECKING:
    _read_ack: Callable[[bytes], tuple[str, Receipt] | None] | None
else:
    try:
        from penstock.server._deliveries import read_ack as _read_ack
    except ImportError:  # there was no compiler
        _read_ack = None

_decoder = msgspec.json.Decoder(SettleBody)
# The usual body, in any valid form: an ack of one receipt, which has 32 characters.
_SPACE = rb"[ \t\r\n]*"
_ONE_ACK = re.compile(
    _SPACE.join([b"", b"{", b'"ack"', b":", rb"\[", b'"([A-Za-z0-9_-]{32})"', b"]", b"}", b""])
).fullmatch
_MOST_OF_ONE = 200  # bytes of such a body


def settle_messages(call: Call) -> Any:
    """Ack, nack, extend or release leased messages."""
    require_json(call)
    if call.size <= _MOST_OF_ONE:
        one = read_ack(call.whole_body())
        if one is not None:
            outcomes = call.service.broker.ack(call.caller, one[0], one[1], call)
            if type(outcomes) is list:  # the usual case if the answer need not be durable
                return _answer(call, outcomes)
            return call.when_done(outcomes, _answer)
    return call.with_body(_read, _settle)


def plain_read_ack(body: bytes) -> tuple[str, Receipt] | None:
    """Return the receipt of a body that acks one message, as text and read; None for others."""
    found = _ONE_ACK(body)
    if found is None:
        return None
    receipt = found[1].decode()
    return receipt, Receipt.unpack(receipt)


read_ack = plain_read_ack if _read_ack is None else _read_ack


def _settle(call: Call, settlements: list[Settlement]) -> Answer:
    return call.when_done(call.broker.settle(call.caller, settlements, call), _answer, _size)


def _size(outcomes: Sequence[Outcome]) -> int:
    return size_of_many(len(outcomes))


def _read(body: bytes) -> list[Settlement]:
    """Return settlements in the order of their results: acks, nacks, extends, releases."""
    asked = strict_json.decode_closed(body, _decoder)
    if len(asked.ack) == 1 and not (asked.nack or asked.extend or asked.release):
        item = asked.ack[0]  # the usual call
        return [_ack(item, "$.ack[0]") if isinstance(item, AckItem) else Settlement("ack", item)]
    count = len(asked.ack) + len(asked.nack) + len(asked.extend) + len(asked.release)
    if not 1 <= count <= MOST_SETTLED:
        raise InvalidInput(f"a call settles 1 to {MOST_SETTLED} receipts, not {count}")
    found = [
        _ack(item, f"$.ack[{index}]") if isinstance(item, AckItem) else Settlement("ack", item)
        for index, item in enumerate(asked.ack)
    ]
    found += [
        Settlement("nack", item.receipt, reason=item.reason, delay_s=item.delay_s, dead=item.dead)
        if isinstance(item, NackItem)
        else Settlement("nack", item)
        for item in asked.nack
    ]
    found += [
        Settlement(
            "extend",
            item.receipt,
            lease_s=item.lease_s,
            progress=item.progress,
            note=item.note,
        )
        if isinstance(item, ExtendItem)
        else Settlement("extend", item)
        for item in asked.extend
    ]
    found += [
        Settlement("release", item.receipt if isinstance(item, ReleaseItem) else item)
        for item in asked.release
    ]
    return found


def _ack(item: AckItem, path: str) -> Settlement:
    emitted = [new_message(body, f"{path}.emit[{index}]") for index, body in enumerate(item.emit)]
    return Settlement("ack", item.receipt, emit=emitted)


def _answer(_: Call, outcomes: Sequence[Outcome]) -> Answer:
    """Return a result for each receipt; as a problem if none was settled."""
    first = outcomes[0]
    if len(outcomes) == 1 and first.status == "done" and not first.ids:
        # A receipt that was valid needs no escape.
        return b'{"results":[{"receipt":"%s","status":"done"}]}' % first.receipt.encode()
    results = [SettledOne(one.receipt, one.status, one.detail, list(one.ids)) for one in outcomes]
    if first.ok or any(one.ok for one in outcomes):
        return encode(Settled(results))
    asked_wrongly = all(one.status == "invalid" and _is_receipt(one.receipt) for one in outcomes)
    error = InvalidInput(first.detail) if asked_wrongly else ReceiptInvalid(first.detail)
    return problem_of(error, results=results)


def _is_receipt(text: str) -> bool:
    try:
        Receipt.unpack(text)
    except ReceiptInvalid:
        return False
    return True


ENDPOINTS = (
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
