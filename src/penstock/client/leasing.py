"""Requests that lease messages, and requests that settle them.

A lease is sent again only if nothing can have been leased, unless the caller allows it. A receipt
settles once, so a settlement may always be sent again.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.checking import Duration, check_seconds
from penstock.client.answers import Json, message_of
from penstock.client.calls import Exchanging
from penstock.client.publishing import message_body
from penstock.client.request import Asked, Reply, Request, post
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import NS, LeasedMessage, NewMessage, Receipt, Settler, Ticket
from penstock.names import check_name
from penstock.operations import Extend, Nack
from penstock.operations.answers import time_ns
from penstock.queue.delivering import check_count, check_lease_s
from penstock.queue.events import as_written
from penstock.queue.progress import check_progress
from penstock.queue.settings import YEARS_S
from penstock.queue.settling import Leased, check_delay
from penstock.queue.streaming import Stopper, is_stopped

# The longest wait of one request: proxies cut idle connections, and a dead broker must be noticed.
MAX_POLL_S = 20.0
STOPPABLE_POLL_S = 2.0  # of a wait with a stopper: a request that was sent is waited for
_MAX_HOLDER_CHARS = 256
_MAX_REASON_CHARS = 4096
_MAX_BATCH = 10_000  # receipts of one request
_SETTLE_PATH = "/api/v1/settle"
_ALL_GONE = 410  # an error whose body has the results
_GOOD = frozenset(["done", "repeated"])


class Lease:
    """The checked options of a lease, and the object that settles what it returns.

    `once` returns one request that leases with these options and waits for that many seconds.
    """

    def __init__(
        self,
        once: "Callable[[Lease, float], Asked[list[LeasedMessage]]]",
        settler: Settler,
        n: int,
        lease_s: Duration | None,
        group: str,
        holder: str = "",
        *,
        dead: bool = False,
        idempotent: bool = False,
    ) -> None:
        self._once = once
        self.settler = settler
        check_count(n)
        self.n = n
        self.lease_s = None if lease_s is None else check_lease_s(lease_s)
        self.group = check_name("group", group)
        self.holder = as_written("holder", holder)[:_MAX_HOLDER_CHARS]
        self.dead = dead
        self.idempotent = idempotent

    def once(self, wait_s: float = 0.0) -> Asked[list[LeasedMessage]]:
        """Return one request."""
        return self._once(self, wait_s)

    async def wait(
        self, exchange: Exchanging, wait_s: Duration, stopper: Stopper | None = None
    ) -> list[LeasedMessage]:
        """Ask again until there is a message, the time is over, or the stopper is stopped."""
        wait_s, clock = check_seconds("wait_s", wait_s, 0, YEARS_S), exchange.clock
        poll_s = MAX_POLL_S if stopper is None else STOPPABLE_POLL_S
        ends_ns = clock.monotonic_ns() + round(wait_s * NS)
        leased: list[LeasedMessage] = []
        while not is_stopped(stopper):
            left_s = max(ends_ns - clock.monotonic_ns(), 0) / NS
            leased = await exchange.do(self.once(min(left_s, poll_s)))
            if leased or left_s <= poll_s:
                break
        return leased


def lease_over_http(path: str, lease: Lease, wait_s: float) -> Request[list[LeasedMessage]]:
    """Return the request of a lease on the queue at a path."""

    def read(reply: Reply) -> list[LeasedMessage]:
        return [_leased_of(item, lease.group, lease.settler) for item in reply.data["messages"]]

    body = {
        "max": lease.n,
        "lease_s": lease.lease_s,
        "group": lease.group,
        "holder": lease.holder,
        "dead": lease.dead or None,
        "wait_s": wait_s,
    }
    return post(
        f"{path}/lease",
        read,
        body,
        query={"payload": "b64"},
        idempotent=lease.idempotent,
        wait_s=wait_s,
    )


def _leased_of(data: Json, group: str, settler: Settler) -> LeasedMessage:
    receipt = Receipt.unpack(data["receipt"])
    ticket = Ticket(
        identity=receipt.identity,
        group=receipt.group,
        group_name=group,
        attempt=receipt.attempt,
        nonce=receipt.nonce,
        deadline_ns=time_ns(data["deadline"]),
        settler=settler,
    )
    return LeasedMessage(message_of(data), ticket)


# -- settling --------------------------------------------------------------------------------------


async def settle_in_batches(
    exchange: Exchanging,
    leased: Iterable[Leased],
    settle: Callable[[Sequence[str]], Asked[list[str]]],
) -> list[str]:
    """Settle any number of messages, in as few requests as the broker allows."""
    receipts = receipts_of(leased)
    ids: list[str] = []
    for start in range(0, len(receipts), _MAX_BATCH):
        emitted = await exchange.do(settle(receipts[start : start + _MAX_BATCH]))
        ids += emitted
    return ids


def receipts_of(leased: Iterable[Leased]) -> list[str]:
    """Return the receipts of leased messages. Raise an error if one is given twice or is none."""
    receipts = [one.receipt if isinstance(one, LeasedMessage) else _checked(one) for one in leased]
    if not receipts:
        raise InvalidInput("nothing to settle: give a leased message, a receipt, or several")
    if len(set(receipts)) != len(receipts):
        raise InvalidInput("the same receipt is given twice")
    return receipts


def _checked(receipt: str) -> str:
    Receipt.unpack(receipt)
    return receipt


def ack(receipts: Sequence[str], emit: Sequence[NewMessage] = ()) -> Request[list[str]]:
    """Return the request that acks; its value is the ids of the emitted messages."""
    if not emit:
        return _settle({"ack": list(receipts)})
    if len(receipts) != 1:
        raise InvalidInput("an ack with emit settles one message: ack the others by themselves")
    item = {"receipt": receipts[0], "emit": [message_body(message) for message in emit]}
    return _settle({"ack": [item]})


def nack(receipts: Sequence[str], operation: Nack) -> Request[list[str]]:
    item: dict[str, Any] = {"reason": as_written("reason", operation.reason)[:_MAX_REASON_CHARS]}
    if operation.delay is not None:
        item["delay_s"] = check_delay(operation.delay)
    if operation.dead:
        item["dead"] = True
    return _settle(
        {"nack": [{"receipt": receipt, **item} for receipt in receipts]}, gone_if_resent=True
    )


def extend(receipts: Sequence[str], operation: Extend) -> Request[list[str]]:
    more = extension(operation)
    return _settle({"extend": [{"receipt": receipt, **more} for receipt in receipts]})


def extension(operation: Extend) -> dict[str, Any]:
    """Return the checked options of an extension, by the names that a request has."""
    more: dict[str, Any] = {}
    if operation.lease_s is not None:
        more["lease_s"] = check_lease_s(operation.lease_s)
    said = check_progress(operation.progress, operation.note)
    if said is not None:
        more |= {"progress": operation.progress, "note": said.note}
    return more


def release(receipts: Sequence[str]) -> Request[list[str]]:
    return _settle({"release": list(receipts)}, gone_if_resent=True)


def release_valid(receipts: Sequence[str]) -> Request[list[str]]:
    """Release, and ignore receipts that are not valid any more."""
    body = {"release": list(receipts)}
    return post(_SETTLE_PATH, lambda reply: [], body, idempotent=True, also_read=_ALL_GONE)


def _settle(body: dict[str, Any], *, gone_if_resent: bool = False) -> Request[list[str]]:
    """Return a settlement. With `gone_if_resent`, "gone" is a success if the request was resent:
    an earlier attempt may have arrived.
    """

    def read(reply: Reply) -> list[str]:
        fine = _GOOD | {"gone"} if gone_if_resent and reply.resent else _GOOD
        results = reply.data["results"]
        bad = [result for result in results if result["status"] not in fine]
        if bad:
            more = f" ({len(bad)} of {len(results)} receipts)" if len(results) > 1 else ""
            raise ReceiptInvalid(f"{bad[0].get('detail') or bad[0]['status']}{more}")
        return [emitted for result in results for emitted in result.get("ids", ())]

    return post(_SETTLE_PATH, read, body, idempotent=True, also_read=_ALL_GONE)
