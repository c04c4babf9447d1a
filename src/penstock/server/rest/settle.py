"""POST /api/v1/settle: what is to become of leased messages."""

from collections.abc import Sequence

import msgspec

from penstock.broker import Outcome, Settlement
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import Receipt
from penstock.server import strict_json
from penstock.server.problems import Problem, problem_of
from penstock.server.rest.answers import Settled, SettledOne
from penstock.server.rest.message_in import new_message
from penstock.server.rest.message_out import encode
from penstock.server.rest.structs import (
    MOST_SETTLED,
    AckItem,
    ExtendItem,
    NackItem,
    ReleaseItem,
    SettleBody,
)

STATUS = 200

_decoder = msgspec.json.Decoder(SettleBody)


def read_settlements(body: bytes) -> list[Settlement]:
    """In the order in which they are answered: acks, nacks, extends, releases."""
    asked = strict_json.decode_closed(body, _decoder)
    count = len(asked.ack) + len(asked.nack) + len(asked.extend) + len(asked.release)
    if not 1 <= count <= MOST_SETTLED:
        raise InvalidInput(f"a call settles 1 to {MOST_SETTLED} receipts, not {count}")
    found = [
        _ack(item, f"$.ack[{index}]") if isinstance(item, AckItem) else Settlement("ack", item)
        for index, item in enumerate(asked.ack)
    ]
    found += [
        Settlement("nack", item.receipt, reason=item.reason, delay_s=item.delay_s)
        if isinstance(item, NackItem)
        else Settlement("nack", item)
        for item in asked.nack
    ]
    found += [
        Settlement("extend", item.receipt, lease_s=item.lease_s)
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


def answer(outcomes: Sequence[Outcome]) -> bytes | Problem:
    """A result each; a problem if there is nothing good to tell, with the results in it."""
    results = [SettledOne(one.receipt, one.status, one.detail, list(one.ids)) for one in outcomes]
    if any(one.ok for one in outcomes):
        return encode(Settled(results))
    first = outcomes[0]
    asked_wrongly = all(one.status == "invalid" and _is_receipt(one.receipt) for one in outcomes)
    error = InvalidInput(first.detail) if asked_wrongly else ReceiptInvalid(first.detail)
    return problem_of(error, results=results)


def _is_receipt(text: str) -> bool:
    try:
        Receipt.unpack(text)
    except ReceiptInvalid:
        return False
    return True
