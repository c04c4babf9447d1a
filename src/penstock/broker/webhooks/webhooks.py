"""Create, change, delete and push the subscriptions of a store.

All brokers of a store know all subscriptions. Each subscription is pushed by one broker at a time,
which holds a lock of that name and renews it. If the broker dies, its lock ends and another takes
over: it releases the messages under delivery and goes on.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from penstock.broker.access import INSIDE, Caller
from penstock.broker.broker import Broker
from penstock.broker.ownership import Ownership, Renewal
from penstock.broker.webhooks.addresses import check_url
from penstock.broker.webhooks.delivery_log import (
    Delivery,
    DeliveryCounts,
    DeliveryLogs,
    DeliveryPage,
)
from penstock.broker.webhooks.outcome import EPOCHQUEUE_RETRY_S, STANDARD_RETRY_S, Circuit
from penstock.broker.webhooks.pusher import Pusher
from penstock.broker.webhooks.requests import check_secret, new_secret
from penstock.broker.webhooks.resending import resend
from penstock.broker.webhooks.sending import HttpSender, Sender
from penstock.broker.webhooks.subscription import (
    DOCUMENT,
    Register,
    Secret,
    Style,
    Subscription,
    warn,
)
from penstock.checking import check_choice, check_number, check_whole
from penstock.errors import (
    InvalidInput,
    NoSuchDelivery,
    NoSuchGroup,
    NoSuchQueue,
    NoSuchWebhook,
    PenstockError,
)
from penstock.model import MAIN_GROUP_NAME
from penstock.names import QueueName, check_name
from penstock.operations import CreateGroup, DeleteGroup, ReleaseHolder, Verb

MAX_RETRY_WAITS = 20
_MAX_RETRY_WAIT_S = 7 * 86400.0
_GRACE_S = 5.0  # for deliveries under way when the broker stops


class EndpointHealth(NamedTuple):
    """How the endpoint of a subscription is."""

    circuit: Circuit
    failures: int = 0  # deliveries that failed in a row
    open_for_s: float = 0.0  # until one is tried


class Webhooks:
    """The push subscriptions of a broker. Start it after the broker, stop it before."""

    def __init__(self, broker: Broker, *, sender: Sender | None = None) -> None:
        self._broker = broker
        self._sender = sender or HttpSender(
            broker.clock, allow_private=lambda: broker.settings.webhook_allow_private
        )
        self._register = Register(broker.store)
        self._pushers: dict[str, Pusher] = {}
        self._logs = DeliveryLogs(broker)
        self._owned = Ownership(broker.store, broker.node_id, "webhook")
        self._renewal = Renewal(self._update, is_needed=lambda: self._register.is_used)
        self._changing = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the subscriptions and push those that no other broker pushes."""
        self._broker.on_deleted.append(self._queue_deleted)
        self._broker.on_document_changed.append(self._document_changed)
        async with self._changing:
            await self._register.load()
            await self._update_all()
        self._renewal.start()

    async def stop(self, *, grace_s: float = _GRACE_S) -> None:
        """Wait up to `grace_s` for deliveries under way, release the rest, and save the logs."""
        await self._renewal.stop()
        pushers, self._pushers = list(self._pushers.values()), {}
        await asyncio.gather(*(pusher.stop(grace_s) for pusher in pushers))
        if self._background:
            await asyncio.wait(self._background, timeout=grace_s)
        for late in list(self._background):
            late.cancel()
        while self._background:
            await asyncio.wait(self._background)
        await self._logs.save()
        for id_ in self._owned.ids:
            await self._owned.release(id_)
        await self._sender.close()

    # -- ownership ---------------------------------------------------------------------------------

    def _document_changed(self, name: str) -> None:
        if name == DOCUMENT:
            self._renewal.changed()

    async def _update(self) -> None:
        """Renew the locks, take over those that ended, and follow the changes of other brokers."""
        try:
            async with self._changing:
                await self._register.load()
                await self._update_all()
        except (PenstockError, OSError) as error:
            warn("webhooks not read", "all", error)
        for id_ in self._owned.lapsed():  # another broker may push them by now
            self._lose(id_)

    async def _update_all(self) -> None:
        """Make the pushers agree with the subscriptions and the locks."""
        for one in list(self._register):
            try:
                await self._update_one(one)
            except (PenstockError, OSError) as error:
                warn("webhook not updated", one.id, error)
        for id_ in self._owned.ids:
            if self._register.get(id_) is None:
                self._stop_pushing(id_)
                self._logs.drop(id_)
                await self._owned.release(id_)

    async def _update_one(self, subscription: Subscription) -> None:
        id_ = subscription.id
        is_new = id_ not in self._owned
        if not await self._owned.take(id_):
            self._lose(id_)
        elif not self._broker.has_queue(subscription.queue):
            await self._remove(subscription)
        elif is_new:
            try:
                await self._take_over(subscription)
            except BaseException:  # its log is not read: it must not be replaced by an empty one
                await self._owned.release(id_)
                raise
        elif (pusher := self._pushers.get(id_)) is None or pusher.subscription != subscription:
            self._stop_pushing(id_)
            self._start_pushing(subscription)

    def _lose(self, id: str) -> None:
        if self._owned.forget(id):
            warn("webhook taken over by another broker", id, "the lock was not renewed in time")
        self._stop_pushing(id, grace_s=0)
        self._logs.drop(id)

    async def _take_over(self, subscription: Subscription) -> None:
        await self._logs.take(subscription.id)
        try:
            if subscription.owns_group:
                await self._make_group(subscription)  # a crash may have prevented it
            # Deliveries under way at a crash are leased again now, not when their leases expire.
            release = ReleaseHolder(subscription.holder, group=subscription.group)
            await self._broker.run(INSIDE, release, subscription.queue)
        except PenstockError as error:  # the pusher waits until the queue works again
            warn("webhook waits for its queue", subscription.id, error)
        self._start_pushing(subscription)

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

        Without `group`, a standard subscription gets its own group, which starts with the next
        message published; an EpochQueue subscription shares `main` with other consumers.
        """
        check_choice("style", style, tuple(Style))
        style = Style(style)
        self._broker.admit(caller, Verb.MANAGE, queue.namespace)
        # A subscriber receives the messages, so it needs the right to consume as well.
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
            await self._owned.take(subscription.id)  # first: another broker might push it at once
            try:
                await self._register.add(subscription)
            except BaseException:
                await self._owned.release(subscription.id)
                raise
            try:
                await self._make_group(subscription)
            except PenstockError:
                await self._remove(subscription)
                raise
            self._start_pushing(subscription)
        return subscription

    def list(self, caller: Caller, queue: QueueName) -> list[Subscription]:
        """Return the subscriptions of a queue, oldest first."""
        self._broker.admit(caller, Verb.READ, queue.namespace)
        if not self._broker.has_queue(queue):
            raise NoSuchQueue(f"there is no queue {queue}")
        found = [one for one in self._register if one.queue == queue]
        return sorted(found, key=lambda one: (one.created_at_ns, one.id))

    def list_all(self, caller: Caller, namespace: str | None = None) -> Sequence[Subscription]:
        """Return the subscriptions of all queues that the caller may read, by queue."""
        where = caller.any_namespace if namespace is None else namespace
        self._broker.admit(caller, Verb.READ, where)
        found = [
            one
            for one in self._register
            if namespace in (None, one.queue.namespace)
            and caller.may(Verb.READ, one.queue.namespace)
        ]
        return sorted(found, key=lambda one: (one.queue, one.created_at_ns, one.id))

    def get(self, caller: Caller, id: str) -> Subscription:
        return self._find(caller, Verb.READ, id)

    def health(self, id: str) -> EndpointHealth:
        """Return how its endpoint is, as far as this broker knows it."""
        pusher, circuit = self._pushers.get(id), self.circuit(id)
        if pusher is None:
            return EndpointHealth(circuit)
        return EndpointHealth(circuit, pusher.failures, pusher.open_for_s)

    def circuit(self, id: str) -> Circuit:
        """Return the state of its endpoint's circuit breaker, if this broker pushes to it."""
        pusher, subscription = self._pushers.get(id), self._register.get(id)
        if pusher is not None:
            return pusher.circuit
        is_pushed = subscription is not None and subscription.enabled
        return Circuit.UNKNOWN if is_pushed and id not in self._owned else Circuit.CLOSED

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
        """Change the fields given. Deliveries under way are not affected.

        A new secret (`secret`, or one made by `rotate_secret`) signs at once; the old one signs as
        well for a day.
        """

        if secret is not None and rotate_secret:
            raise InvalidInput("give secret, or rotate_secret, not both")
        given = new_secret() if rotate_secret else secret

        def changed(old: Subscription) -> Subscription:
            new = old
            if url is not None:
                check_url(url, allow_private=self._broker.settings.webhook_allow_private)
                new = new._replace(url=url)
            if given is not None:
                fresh = check_secret(new.style, given)
                new = new.with_secret(fresh, self._broker.clock.now_ns())
            if retry_s is not None:
                new = new._replace(retry_s=_checked_waits(new.style, retry_s))
            if enabled is not None:
                new = new._replace(enabled=enabled, disabled_because="")
            return new

        async def change() -> Subscription:
            async with self._changing:
                old = self._find(caller, Verb.MANAGE, id)
                if changed(old) == old:
                    return old
                await self._register.replace(id, changed)
                new = self._register.get(id)
                if new is None:
                    raise NoSuchWebhook(f"there is no webhook {id!r}")
                if id in self._owned:
                    self._stop_pushing(id)
                    self._start_pushing(new)
                return new

        return await self._broker.background.run(change())

    async def delete(self, caller: Caller, id: str) -> None:
        """Stop pushing. Messages not delivered stay, unless the subscription has its own group:
        that is deleted with it."""

        async def delete() -> None:
            async with self._changing:
                await self._remove(self._find(caller, Verb.MANAGE, id))

        await self._broker.background.run(delete())

    async def deliveries(
        self, caller: Caller, id: str, *, cursor: int = 0, limit: int = 50
    ) -> DeliveryPage:
        """Return deliveries, latest first; `cursor` is the `next_cursor` of the previous page."""
        subscription = self._find(caller, Verb.READ, id)
        check_whole("limit", limit, 1, 1000)
        return (await self._logs.read(subscription.id)).page(cursor, limit)

    async def success(self, caller: Caller, id: str) -> DeliveryCounts:
        """Return how its deliveries went; of another broker's, as that one saved it."""
        subscription = self._find(caller, Verb.READ, id)
        return (await self._logs.read(subscription.id)).counts()

    async def resend(self, caller: Caller, id: str, number: int) -> Delivery:
        """Send the message of a delivery once more, now, and return how that went.

        The message in the queue is not affected. Raise NoSuchDelivery if the log does not have it
        any more, NoSuchMessage if the bytes of the message are not kept. If another broker delivers
        the webhook, its log does not show it.
        """
        subscription = self._find(caller, Verb.MANAGE, id)
        log = await self._logs.read(id)
        old = log.get(check_whole("number", number, 1, 1 << 62))
        if old is None:
            raise NoSuchDelivery(f"webhook {id} has no delivery {number} in its log (any more)")
        work = resend(self._broker, self._sender, subscription, old, log)
        found = await self._broker.background.run(work)
        self._logs.save_soon()
        return found

    # -- internals ---------------------------------------------------------------------------------

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

    async def _remove(self, subscription: Subscription) -> None:
        self._stop_pushing(subscription.id)
        # Its group first: a group left behind by a crash would keep messages forever.
        if subscription.owns_group and self._broker.has_queue(subscription.queue):
            try:
                await self._broker.run(INSIDE, DeleteGroup(subscription.group), subscription.queue)
            except (NoSuchGroup, NoSuchQueue):
                pass
        await self._register.remove(subscription.id)
        await self._logs.delete(subscription.id)
        await self._owned.release(subscription.id)

    async def _queue_deleted(self, queue: QueueName) -> None:
        """Delete the webhooks of a queue, even if a queue of that name is created at once."""
        for subscription in [one for one in self._register if one.queue == queue]:
            async with self._changing:
                try:
                    await self._remove(subscription)
                except (PenstockError, OSError) as error:  # deleted at the next start instead
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

    def _stop_pushing(self, id: str, grace_s: float | None = None) -> None:
        """Lease no more for it. Deliveries under way finish in the background."""
        pusher = self._pushers.pop(id, None)
        if pusher is not None:
            timeout_s = self._broker.settings.webhook_timeout_s
            self._in_background(pusher.stop(timeout_s if grace_s is None else grace_s))

    def _ended(self, subscription: Subscription, why: str) -> None:
        """Disable a subscription: its group was deleted, or its endpoint answered 410."""
        self._in_background(self._end(subscription.id, why))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background; `stop` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _end(self, id: str, why: str) -> None:
        async with self._changing:
            subscription = self._register.get(id)
            if subscription is None or not subscription.enabled:
                return
            warn("webhook ended", id, why)
            try:
                await self._register.replace(
                    id, lambda one: one._replace(enabled=False, disabled_because=why)
                )
                self._stop_pushing(id)
            except (PenstockError, OSError) as error:
                warn("webhook not saved", id, error)


def _first_secrets(style: Style, secret: str | None) -> tuple[Secret, ...]:
    if secret is None:
        return (Secret(new_secret()),) if style is Style.STANDARD else ()
    return (Secret(check_secret(style, secret)),)


def _checked_waits(style: Style, retry_s: Sequence[float] | None) -> tuple[float, ...]:
    if retry_s is None:
        return STANDARD_RETRY_S if style is Style.STANDARD else EPOCHQUEUE_RETRY_S
    check_whole("the number of retry_s", len(retry_s), 1, MAX_RETRY_WAITS)
    return tuple(check_number("retry_s", one, 0, _MAX_RETRY_WAIT_S) for one in retry_s)
