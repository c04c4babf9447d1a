"""Calls that settle leased messages. A receipt settles once, so sending one again does no harm."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.checking import Duration, as_seconds
from penstock.client.call import Call, Reply, Story, post
from penstock.client.publishing import message_body
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import LeasedMessage, NewMessage
from penstock.queue.events import as_written
from penstock.queue.settling import Leased

_PATH = "/api/v1/settle"
_ALL_GONE = 410  # a problem that has the results in it
_GOOD = frozenset(["done", "repeated"])
_LONGEST_REASON = 4096
_MOST_AT_ONCE = 10_000


def in_lots(
    leased: Iterable[Leased], settle: Callable[[Sequence[str]], Call[list[str]]]
) -> Story[list[str]]:
    """Settle any number, in as few calls as the broker takes."""
    receipts = receipts_of(leased)
    ids: list[str] = []
    for start in range(0, len(receipts), _MOST_AT_ONCE):
        ids += yield settle(receipts[start : start + _MOST_AT_ONCE])
    return ids


def receipts_of(leased: Iterable[Leased]) -> list[str]:
    """The receipts of leased messages, each once."""
    receipts = [one.receipt if isinstance(one, LeasedMessage) else one for one in leased]
    if not receipts:
        raise InvalidInput("nothing to settle: give a leased message, a receipt, or several")
    if len(set(receipts)) != len(receipts):
        raise InvalidInput("the same receipt is there twice")
    return receipts


def ack(receipts: Sequence[str], emit: Sequence[NewMessage] = ()) -> Call[list[str]]:
    """The ids of what was emitted."""
    if not emit:
        return _settle({"ack": list(receipts)})
    if len(receipts) != 1:
        raise InvalidInput("an ack with emit settles one message: ack the others by themselves")
    item = {"receipt": receipts[0], "emit": [message_body(message) for message in emit]}
    return _settle({"ack": [item]})


def nack(receipts: Sequence[str], reason: str, delay: Duration | None) -> Call[list[str]]:
    item: dict[str, Any] = {"reason": as_written("reason", reason)[:_LONGEST_REASON]}
    if delay is not None:
        item["delay_s"] = as_seconds(delay)
    return _settle(
        {"nack": [{"receipt": receipt, **item} for receipt in receipts]}, gone_if_resent=True
    )


def extend(receipts: Sequence[str], lease_s: Duration | None) -> Call[list[str]]:
    more = {} if lease_s is None else {"lease_s": as_seconds(lease_s)}
    return _settle({"extend": [{"receipt": receipt, **more} for receipt in receipts]})


def release(receipts: Sequence[str]) -> Call[list[str]]:
    return _settle({"release": list(receipts)}, gone_if_resent=True)


def give_back(receipts: Sequence[str]) -> Call[list[str]]:
    """As release; what is not held any more is left out."""
    body = {"release": list(receipts)}
    return post(_PATH, lambda reply: [], body, repeatable=True, also_read=_ALL_GONE)


def _settle(body: dict[str, Any], *, gone_if_resent: bool = False) -> Call[list[str]]:
    """`gone_if_resent`: after a try that may have arrived, "gone" is what the call itself did."""

    def read(reply: Reply) -> list[str]:
        fine = _GOOD | {"gone"} if gone_if_resent and reply.resent else _GOOD
        results = reply.data["results"]
        bad = [result for result in results if result["status"] not in fine]
        if bad:
            more = f" ({len(bad)} of {len(results)} receipts)" if len(results) > 1 else ""
            raise ReceiptInvalid(f"{bad[0].get('detail') or bad[0]['status']}{more}")
        return [emitted for result in results for emitted in result.get("ids", ())]

    return post(_PATH, read, body, repeatable=True, also_read=_ALL_GONE)
