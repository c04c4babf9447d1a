"""Send one delivery of a webhook once more, by hand. The message in the queue is not affected."""

import asyncio
from functools import partial

from penstock.broker.access import INSIDE
from penstock.broker.broker import Broker
from penstock.broker.limits import SMALL_BYTES
from penstock.broker.webhooks.delivery_log import Delivery, DeliveryLog
from penstock.broker.webhooks.requests import request_for
from penstock.broker.webhooks.sending import Sender
from penstock.broker.webhooks.subscription import Subscription
from penstock.model import LeasedMessage, Ticket
from penstock.operations import GetMessage


class _NotLeased:
    """Refuses to settle a message that is sent once more: it is not leased."""

    def ack(self, leased: LeasedMessage, /) -> None:
        raise TypeError("a message that is sent once more is not leased")

    def nack(self, leased: LeasedMessage, /, reason: str = "") -> None:
        raise TypeError("a message that is sent once more is not leased")


_NOT_LEASED = _NotLeased()


async def resend(
    broker: Broker, sender: Sender, subscription: Subscription, old: Delivery, log: DeliveryLog
) -> Delivery:
    """Post the message of an earlier delivery, with the same id and attempt, signed anew.

    Raise NoSuchMessage if its bytes are not kept any more. The circuit breaker is neither asked
    nor told. Its receipt, in EpochQueue's style, settles nothing.
    """
    found = await broker.run(INSIDE, GetMessage(old.message_id), subscription.queue)
    ticket = Ticket(0, 0, subscription.group, old.attempt, 0, 0, _NOT_LEASED)
    leased = LeasedMessage(found.message, ticket)
    loop, started_ns, size = asyncio.get_running_loop(), broker.clock.now_ns(), len(leased.payload)
    started_s = loop.time()
    broker.held.bytes += size
    try:
        make = partial(request_for, subscription, leased, now_ns=started_ns)
        headers, body = make() if size <= SMALL_BYTES else await asyncio.to_thread(make)
        answer = await sender.post(
            subscription.url, headers, body, timeout_s=broker.settings.webhook_timeout_s
        )
    finally:
        broker.held.bytes -= size
    return log.add(
        old.message_id,
        old.attempt,
        at_ns=started_ns,
        took_s=loop.time() - started_s,
        outcome="delivered" if answer.ok else "failed",
        status=answer.status,
        reason="" if answer.ok else answer.error or f"the endpoint answered {answer.status}",
        retry_in_s=None,
        answer=answer.text,
        is_resent=True,
    )
