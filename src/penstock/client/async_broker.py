"""A broker as a whole, for tasks: its namespaces, queues and webhooks."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.client import catalogue, webhooks
from penstock.client.address import QueueAddress
from penstock.client.async_connection import AsyncConnection
from penstock.client.async_queue import AsyncRemoteQueue
from penstock.client.pages import every_row
from penstock.client.remote import NamespaceDetails, QueueDetails, Webhook, WebhookDelivery
from penstock.model import Stats
from penstock.names import QueueName


class AsyncRemoteBroker:
    """A broker. Queues are named "namespace/queue", or "queue" in the namespace `default`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._do = connection.do
        self._run = connection.run

    @property
    def url(self) -> str:
        return self._connection.base

    def queue(self, name: str) -> AsyncRemoteQueue:
        """One of its queues. It shares this broker's connections: closing it closes them."""
        address = QueueAddress(self.url, QueueName.parse(name))
        return AsyncRemoteQueue(address, self._connection)

    # -- namespaces --------------------------------------------------------------------------------

    async def namespaces(self) -> list[NamespaceDetails]:
        """All that the key may read, by name."""
        return await self._run(every_row(catalogue.namespaces()))

    async def create_namespace(
        self,
        name: str,
        *,
        defaults: Mapping[str, Any] | None = None,
        max_queues: int = 0,
        max_bytes: int = 0,
    ) -> NamespaceDetails:
        """Make one; its new queues begin with `defaults`. AlreadyExists if there is one."""
        return await self._do(
            catalogue.create_namespace(name, defaults or {}, max_queues, max_bytes)
        )

    async def delete_namespace(self, name: str, *, force: bool = False) -> None:
        """Forget it. NotEmpty while it has queues, unless forced: then they go as well."""
        await self._do(catalogue.delete_namespace(name, force=force))

    # -- queues ------------------------------------------------------------------------------------

    async def queues(self, namespace: str | None = None) -> list[str]:
        """The names of the queues of a namespace, or of all."""
        return await self._run(catalogue.queue_names(namespace))

    async def stats(self, queue: str) -> Stats:
        """The counts of a queue."""
        return await self.queue(queue).stats()

    async def details(self, queue: str) -> QueueDetails:
        """A queue's age and settings."""
        return await self.queue(queue).details()

    async def create_queue(self, queue: str, **settings: Any) -> QueueDetails:
        """Make a queue with some settings of `QueueSettings`.

        One that is there with the same settings is left as it is; AlreadyExists if they differ.
        """
        return await self._do(catalogue.create_queue(QueueName.parse(queue), settings))

    async def change_queue(self, queue: str, **settings: Any) -> QueueDetails:
        """Change some settings; the others stay."""
        return await self._do(catalogue.change_queue(QueueName.parse(queue), settings))

    async def delete_queue(self, queue: str) -> None:
        """Forget a queue and all that is in it."""
        await self._do(catalogue.delete_queue(QueueName.parse(queue)))

    # -- webhooks ----------------------------------------------------------------------------------

    async def webhooks(self, queue: str) -> list[Webhook]:
        """The push subscriptions of a queue."""
        return await self._do(webhooks.of_queue(QueueName.parse(queue)))

    async def create_webhook(
        self,
        queue: str,
        url: str,
        *,
        secret: str | None = None,
        group: str | None = None,
        retry_s: Sequence[float] | None = None,
    ) -> Webhook:
        """Push the messages of a queue to a URL. The answer has the secret that signs them.

        Without `group` it gets one of its own, which begins with what is published next.
        """
        options = {"secret": secret, "group": group, "retry_s": retry_s}
        return await self._do(webhooks.create(QueueName.parse(queue), url, options))

    async def webhook(self, id: str) -> Webhook:
        return await self._do(webhooks.one(id))

    async def change_webhook(
        self,
        id: str,
        *,
        url: str | None = None,
        secret: str | None = None,
        rotate_secret: bool = False,
        enabled: bool | None = None,
        retry_s: Sequence[float] | None = None,
    ) -> Webhook:
        """Change what is given; the rest stays. An old secret signs as well for a day."""
        options = {
            "url": url,
            "secret": secret,
            "rotate_secret": rotate_secret or None,
            "enabled": enabled,
            "retry_s": retry_s,
        }
        return await self._do(webhooks.change(id, options))

    async def delete_webhook(self, id: str) -> None:
        await self._do(webhooks.delete(id))

    async def webhook_deliveries(self, id: str) -> list[WebhookDelivery]:
        """What became of the latest deliveries."""
        return await self._run(every_row(webhooks.deliveries(id)))

    # -- closing -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections. May be called again."""
        await self._connection.close()

    async def __aenter__(self) -> "AsyncRemoteBroker":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
