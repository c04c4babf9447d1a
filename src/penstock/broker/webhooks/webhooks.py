"""All subscriptions of a broker: made, changed, kept over restarts, and pushed."""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.broker.access import INSIDE, Caller
from penstock.broker.broker import Broker
from penstock.broker.webhooks.breaker import Circuit
from penstock.broker.webhooks.delivery_log import DeliveryPage
from penstock.broker.webhooks.events import warn
from penstock.broker.webhooks.judging import EPOCHQUEUE_RETRY_S, STANDARD_RETRY_S
from penstock.broker.webhooks.log_keeper import LogKeeper
from penstock.broker.webhooks.pusher import Pusher
from penstock.broker.webhooks.register import Register
from penstock.broker.webhooks.sending import HttpSender, Sender
from penstock.broker.webhooks.signing import (
    check_epochqueue_secret,
    check_standard_secret,
    new_secret,
)
from penstock.broker.webhooks.subscription import Secret, Style, Subscription
from penstock.broker.webhooks.urls import check_url
from penstock.checking import check_choice, check_number, check_whole
from penstock.errors import (
    InvalidInput,
    NoSuchGroup,
    NoSuchQueue,
    NoSuchWebhook,
    PenstockError,
    QuotaExceeded,
)
from penstock.model import MAIN_GROUP_NAME
from penstock.names import QueueName, check_name
from penstock.operations import CreateGroup, DeleteGroup, ReleaseHolder, Verb

MOST_SUBSCRIPTIONS = 1000
MOST_RETRY_WAITS = 20
_LONGEST_RETRY_WAIT_S = 7 * 86400.0
_GRACE_S = 5.0  # for deliveries that are under way when the broker stops


class Webhooks:
    """The push subscriptions of a broker. Start it after the broker, stop it before."""

    def __init__(self, broker: Broker, *, sender: Sender | None = None) -> None:
        self._broker = broker
        self._sender = sender or HttpSender(
            broker.clock, allow_private=lambda: broker.settings.webhook_allow_private
        )
        self._register = Register(broker.store)
        self._pushers: dict[str, Pusher] = {}
        self._logs = LogKeeper(broker)
        self._changing = asyncio.Lock()
        self._endings: set[asyncio.Task[None]] = set()

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read what was subscribed, and go on pushing."""
        self._broker.on_deleted.append(self._queue_deleted)
        async with self._changing:
            await self._register.load()
            for one in list(self._register):
                if self._broker.has_queue(one.queue):
                    await self._resume(one)
                else:
                    await self._forget(one)

    async def _resume(self, subscription: Subscription) -> None:
        await self._logs.load(subscription.id)
        try:
            if subscription.owns_group:
                await self._make_group(subscription)  # a crash may have come between the two
            # What was under way at a crash is nobody's: it need not wait for the end of its lease.
            release = ReleaseHolder(subscription.holder, group=subscription.group)
            await self._broker.run(INSIDE, release, subscription.queue)
        except PenstockError as error:  # the queue is in trouble: its pusher waits until it is not
            warn("webhook waits for its queue", subscription.id, error)
        self._start_pushing(subscription)

    async def stop(self, *, grace_s: float = _GRACE_S) -> None:
        """Finish what is under way within the grace, hand back the rest, write the logs down."""
        pushers, self._pushers = list(self._pushers.values()), {}
        await asyncio.gather(*(pusher.stop(grace_s) for pusher in pushers))
        if self._endings:
            await asyncio.wait(self._endings, timeout=grace_s)
        for late in list(self._endings):
            late.cancel()
        while self._endings:
            await asyncio.wait(self._endings)
        await self._logs.save()
        await self._sender.close()

    # -- subscriptions -----------------------------------------------------------------------------

    async def create(
        self,
        caller: Caller,
        queue: QueueName,
        url: str,
        *,
        secret: str | None = None,
        group: str | None = None,
        style: Style | str = Style.STANDARD,
        retry_s: Sequence[float] | None = None,
    ) -> Subscription:
        """Push a queue's messages to a URL from now on.

        Without `group` a standard subscription gets one of its own, that begins with what is
        published next; an EpochQueue subscription takes from `main`, beside those who lease.
        """
        check_choice("style", style, tuple(Style))
        style = Style(style)
        self._broker.admit(caller, Verb.MANAGE, queue.namespace)
        # Whoever subscribes gets the messages, so it takes the right to consume as well.
        caller.check(Verb.CONSUME, queue.namespace)
        check_url(url, allow_private=self._broker.settings.webhook_allow_private)
        if group is not None:
            check_name("group", group)
        waits = _checked_waits(style, retry_s)
        keys = _first_secrets(style, secret)
        own_group = group is None and style is Style.STANDARD
        new_id = f"wh-{secrets.token_hex(12)}"
        subscription = Subscription(
            id=new_id,
            queue=queue,
            url=url,
            style=style,
            group=new_id if own_group else group or MAIN_GROUP_NAME,
            owns_group=own_group,
            secrets=keys,
            retry_s=waits,
            created_at_ns=self._broker.clock.now_ns(),
        )
        return await self._broker.background.run(self._create(subscription))

    async def _create(self, subscription: Subscription) -> Subscription:
        async with self._changing:
            self._register.check()
            if len(self._register) >= MOST_SUBSCRIPTIONS:
                raise QuotaExceeded(f"there are {MOST_SUBSCRIPTIONS} webhooks: delete some first")
            await self._register.put(subscription)
            try:
                await self._make_group(subscription)
            except PenstockError:
                await self._forget(subscription)
                raise
        self._start_pushing(subscription)
        return subscription

    def list(self, caller: Caller, queue: QueueName) -> list[Subscription]:
        """Those of a queue, oldest first."""
        self._broker.admit(caller, Verb.READ, queue.namespace)
        if not self._broker.has_queue(queue):
            raise NoSuchQueue(f"there is no queue {queue}")
        found = [one for one in self._register if one.queue == queue]
        return sorted(found, key=lambda one: (one.created_at_ns, one.id))

    def get(self, caller: Caller, id: str) -> Subscription:
        return self._find(caller, Verb.READ, id)

    def circuit(self, id: str) -> Circuit:
        """How its endpoint fares: see `breaker`."""
        pusher = self._pushers.get(id)
        return Circuit.CLOSED if pusher is None else pusher.circuit

    async def change(
        self,
        caller: Caller,
        id: str,
        *,
        url: str | None = None,
        secret: str | None = None,
        rotate_secret: bool = False,
        enabled: bool | None = None,
        retry_s: Sequence[float] | None = None,
    ) -> Subscription:
        """Change what is given. A new secret (`secret`, or one made by `rotate_secret`) signs at
        once; the old one signs as well for a day. Deliveries under way end as they began."""

        async def change() -> Subscription:
            async with self._changing:
                old = self._find(caller, Verb.MANAGE, id)
                new = old
                if url is not None:
                    check_url(url, allow_private=self._broker.settings.webhook_allow_private)
                    new = new._replace(url=url)
                if secret is not None and rotate_secret:
                    raise InvalidInput("give secret, or rotate_secret, not both")
                fresh = new_secret() if rotate_secret else secret
                if fresh is not None:
                    new = new.with_secret(
                        _checked_secret(new.style, fresh), self._broker.clock.now_ns()
                    )
                if retry_s is not None:
                    new = new._replace(retry_s=_checked_waits(new.style, retry_s))
                if enabled is not None:
                    new = new._replace(enabled=enabled, disabled_because="")
                if new != old:
                    await self._register.put(new)
                    self._stop_pushing(id)
                    self._start_pushing(new)
                return new

        return await self._broker.background.run(change())

    async def delete(self, caller: Caller, id: str) -> None:
        """Push no more. Messages that were not delivered stay, but for those of a group of its
        own, which goes with it."""

        async def delete() -> None:
            async with self._changing:
                subscription = self._find(caller, Verb.MANAGE, id)
                await self._forget(subscription)

        await self._broker.background.run(delete())

    def deliveries(
        self, caller: Caller, id: str, *, cursor: int = 0, limit: int = 50
    ) -> DeliveryPage:
        """The latest deliveries, latest first; `cursor` is the `next_cursor` of the page before."""
        subscription = self._find(caller, Verb.READ, id)
        check_whole("limit", limit, 1, 1000)
        return self._logs.of(subscription.id).page(cursor, limit)

    # -- helping -----------------------------------------------------------------------------------

    def _find(self, caller: Caller, verb: Verb, id: str) -> Subscription:
        found = self._register.get(id)
        if found is None:
            self._broker.admit(caller, verb, caller.any_namespace)
            self._register.check()
            raise NoSuchWebhook(f"there is no webhook {id!r}")
        self._broker.admit(caller, verb, found.queue.namespace)
        return found

    async def _make_group(self, subscription: Subscription) -> None:
        queue, group = subscription.queue, subscription.group
        if group != MAIN_GROUP_NAME:
            await self._broker.run(INSIDE, CreateGroup(group, to="end"), queue)
        elif not self._broker.has_queue(queue):
            if not self._broker.settings.create_on_use:
                raise NoSuchQueue(f"there is no queue {queue}: create it first")
            await self._broker.create_queue(INSIDE, queue)

    async def _forget(self, subscription: Subscription) -> None:
        self._stop_pushing(subscription.id)
        # Its group first: one that was left behind by a crash would keep messages for ever.
        if subscription.owns_group and self._broker.has_queue(subscription.queue):
            try:
                await self._broker.run(INSIDE, DeleteGroup(subscription.group), subscription.queue)
            except (NoSuchGroup, NoSuchQueue):
                pass
        await self._register.remove(subscription.id)
        await self._logs.forget(subscription.id)

    async def _queue_deleted(self, queue: QueueName) -> None:
        """Its webhooks go with it, also if another of its name is made at once."""
        for subscription in [one for one in self._register if one.queue == queue]:
            async with self._changing:
                try:
                    await self._forget(subscription)
                except (PenstockError, OSError) as error:  # forgotten at the next start, at last
                    warn("webhook not forgotten", subscription.id, error)

    def _start_pushing(self, subscription: Subscription) -> None:
        if not subscription.enabled:
            return
        self._pushers[subscription.id] = Pusher(
            self._broker,
            subscription,
            self._sender,
            self._logs.of(subscription.id),
            on_end=self._ended,
            on_delivery=self._logs.save_soon,
        )

    def _stop_pushing(self, id: str) -> None:
        """Lease no more for it. What is under way ends by itself, and nobody waits for that."""
        pusher = self._pushers.pop(id, None)
        if pusher is not None:
            self._behind(pusher.stop(self._broker.settings.webhook_timeout_s))

    def _ended(self, subscription: Subscription, why: str) -> None:
        """A pusher found that it has nothing to push, or nobody to push to."""
        self._behind(self._end(subscription.id, why))

    def _behind(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it behind whatever goes on; `stop` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _end(self, id: str, why: str) -> None:
        async with self._changing:
            subscription = self._register.get(id)
            if subscription is None or not subscription.enabled:
                return
            warn("webhook ended", id, why)
            try:
                ended = subscription._replace(enabled=False, disabled_because=why)
                await self._register.put(ended)
                self._stop_pushing(id)
            except (PenstockError, OSError) as error:
                warn("webhook not saved", id, error)


def _checked_secret(style: Style, secret: str) -> str:
    if style is Style.EPOCHQUEUE:
        return check_epochqueue_secret(secret)
    return check_standard_secret(secret)


def _first_secrets(style: Style, secret: str | None) -> tuple[Secret, ...]:
    if secret is None:
        return (Secret(new_secret()),) if style is Style.STANDARD else ()
    return (Secret(_checked_secret(style, secret)),)


def _checked_waits(style: Style, retry_s: Sequence[float] | None) -> tuple[float, ...]:
    if retry_s is None:
        return STANDARD_RETRY_S if style is Style.STANDARD else EPOCHQUEUE_RETRY_S
    check_whole("the number of retry_s", len(retry_s), 1, MOST_RETRY_WAITS)
    return tuple(check_number("retry_s", one, 0, _LONGEST_RETRY_WAIT_S) for one in retry_s)
