"""Push one subscription: lease its messages, post them, and settle them by the answers.

The circuit breaker sets the consumer's credit: none while it is open, one while it is half open,
all of it while it is closed.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.broker.access import INSIDE
from penstock.broker.broker import Broker
from penstock.broker.consumers import Consumer
from penstock.broker.limits import SMALL_BYTES
from penstock.broker.store import Settlement
from penstock.broker.webhooks.delivery_log import DeliveryLog
from penstock.broker.webhooks.outcome import Breaker, Circuit, Judgement, judge
from penstock.broker.webhooks.requests import request_for
from penstock.broker.webhooks.sending import Answer, Sender
from penstock.broker.webhooks.subscription import Subscription, log, warn
from penstock.errors import NoSuchGroup, NoSuchQueue, PenstockError, Unavailable
from penstock.model import LeasedMessage

_LEASE_MARGIN_S = 30.0  # a lease lasts this much longer than the timeout of its delivery
_TROUBLE_S = 30.0  # wait after an error of the queue itself


class Pusher:
    """Pushes the messages of one subscription until it is stopped."""

    def __init__(
        self,
        broker: Broker,
        subscription: Subscription,
        sender: Sender,
        deliveries: DeliveryLog,
        *,
        on_end: Callable[[Subscription, str], None],
        on_delivery: Callable[[], None],
    ) -> None:
        self.subscription = subscription
        self._broker = broker
        self._sender = sender
        self._deliveries = deliveries
        self._on_end = on_end
        self._on_delivery = on_delivery
        self._loop = asyncio.get_running_loop()
        self._breaker = Breaker()
        self._wake_up: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._ended = False  # lease no more
        self._last_failure = ""
        self._consumer = Consumer(
            broker,
            INSIDE,
            subscription.queue,
            credit=broker.settings.webhook_concurrency,
            group=subscription.group,
            lease_s=broker.settings.webhook_timeout_s + _LEASE_MARGIN_S,
            holder=subscription.holder,
        )
        self._task = self._loop.create_task(self._run())

    @property
    def circuit(self) -> Circuit:
        return self._breaker.state(self._loop.time())

    @property
    def failures(self) -> int:
        """Return how many deliveries failed in a row."""
        return self._breaker.failures

    @property
    def open_for_s(self) -> float:
        """Return how long the circuit stays open; 0 if it is not."""
        return max(self._breaker.open_until_s - self._loop.time(), 0.0)

    async def stop(self, grace_s: float) -> None:
        """Lease no more, wait up to `grace_s` for deliveries under way, and release the rest."""
        self._ended = True
        self._set_credit()
        self._task.cancel()
        try:
            await asyncio.wait([self._task])
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=grace_s)
        finally:
            for task in self._under_way:
                task.cancel()
            self._consumer.close()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _run(self) -> None:
        while True:
            try:
                messages = await self._consumer.next()
            except NoSuchQueue:
                return None  # the subscription is deleted with its queue
            except NoSuchGroup:
                return self._on_end(self.subscription, "its group was deleted")
            except Unavailable:
                return None  # the broker is stopping
            except PenstockError as error:
                warn("webhook waits for its queue", self.subscription.id, error)
                await asyncio.sleep(_TROUBLE_S)
                continue
            if not messages:
                return None
            for leased in messages:
                task = self._loop.create_task(self._deliver(leased))
                self._under_way.add(task)
                task.add_done_callback(self._delivered)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            fields = {"webhook": self.subscription.id}
            log.error("webhook delivery failed", exc_info=error, extra={"fields": fields})

    async def _deliver(self, leased: LeasedMessage) -> None:
        broker, subscription = self._broker, self.subscription
        started_ns = broker.clock.now_ns()
        started_s = self._loop.time()
        answer = await self._post(leased, started_ns)
        judgement = judge(subscription, answer, leased.attempt)
        self._deliveries.add(
            leased.id,
            leased.attempt,
            at_ns=started_ns,
            took_s=self._loop.time() - started_s,
            outcome=judgement.outcome,
            status=answer.status,
            reason=judgement.reason,
            retry_in_s=judgement.delay_s if judgement.outcome == "retry" else None,
            answer=answer.text,
        )
        self._on_delivery()
        broker.metrics.webhook_delivered(judgement.outcome)
        self._update_breaker(answer, judgement)
        try:
            await self._consumer.settle([_settlement(leased, judgement)])
        except PenstockError as error:  # it is delivered again when its lease expires
            warn("webhook delivery not settled", subscription.id, error)
        if judgement.outcome == "disabled":
            self._on_end(subscription, judgement.reason)

    async def _post(self, leased: LeasedMessage, started_ns: int) -> Answer:
        broker, size = self._broker, len(leased.payload)
        broker.held.bytes += size
        try:
            make = partial(request_for, self.subscription, leased, now_ns=started_ns)
            headers, body = make() if size <= SMALL_BYTES else await asyncio.to_thread(make)
            return await self._sender.post(
                self.subscription.url,
                headers,
                body,
                timeout_s=broker.settings.webhook_timeout_s,
            )
        finally:
            broker.held.bytes -= size

    # -- the breaker -------------------------------------------------------------------------------

    def _update_breaker(self, answer: Answer, judgement: Judgement) -> None:
        """Record the answer. Call before settling: a released message must not be leased again."""
        now_s = self._loop.time()
        self._ended = self._ended or judgement.outcome == "disabled"
        if answer.ok:
            self._breaker.succeeded()
        else:
            self._last_failure = judgement.reason
            self._breaker.failed(now_s)
            if judgement.pause_s:
                self._breaker.pause(now_s + judgement.pause_s)
        self._set_credit()

    def _set_credit(self) -> None:
        """Set the credit that the breaker allows now; again when the breaker half opens."""
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None
        circuit = self.circuit
        if self._ended:
            self._consumer.set_credit(0)
        elif circuit is Circuit.OPEN:
            if self._consumer.credit:
                warn("webhook circuit opened", self.subscription.id, self._last_failure)
            self._consumer.set_credit(0)
            self._wake_up = self._loop.call_at(self._breaker.open_until_s, self._set_credit)
        elif circuit is Circuit.HALF_OPEN:
            self._consumer.set_credit(1)
        else:
            self._consumer.set_credit(self._broker.settings.webhook_concurrency)


def _settlement(leased: LeasedMessage, judgement: Judgement) -> Settlement:
    if judgement.outcome == "delivered":
        return Settlement("ack", leased.receipt)
    if judgement.outcome == "disabled":
        return Settlement("release", leased.receipt)
    if judgement.outcome == "dead":
        return Settlement("nack", leased.receipt, reason=judgement.reason, dead=True)
    return Settlement("nack", leased.receipt, reason=judgement.reason, delay_s=judgement.delay_s)
