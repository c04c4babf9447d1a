"""The delivery logs of all subscriptions, and when they are written down."""

import asyncio

from penstock.broker.broker import Broker
from penstock.broker.documents import delete_document, save_document
from penstock.broker.webhooks.delivery_log import DeliveryLog
from penstock.broker.webhooks.events import warn
from penstock.errors import PenstockError

_SAVE_AFTER_S = 5.0  # so many seconds of a log may be lost by a crash


class LogKeeper:
    """Keeps a log for each subscription. Saved together, some seconds after something changed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._logs: dict[str, DeliveryLog] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None

    def of(self, id: str) -> DeliveryLog:
        found = self._logs.get(id)
        if found is None:
            found = self._logs[id] = DeliveryLog(self._broker.settings.webhook_log)
        return found

    async def load(self, id: str) -> None:
        """What was saved. One that cannot be read is begun anew: it is only a log."""
        document = await self._broker.store.load_document(_name(id))
        try:
            self._logs[id] = DeliveryLog(self._broker.settings.webhook_log, document)
        except (ValueError, TypeError, KeyError) as error:
            warn("webhook log unreadable", id, error)

    def save_soon(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_SAVE_AFTER_S, self._start_saving)

    async def save(self) -> None:
        """Write down what changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for webhook, one in list(self._logs.items()):
            if one.changed:
                try:
                    await save_document(self._broker.store, _name(webhook), one.dump())
                except (PenstockError, OSError) as error:
                    warn("webhook log not saved", webhook, error)

    async def forget(self, id: str) -> None:
        if self._logs.pop(id, None) is not None:
            await delete_document(self._broker.store, _name(id))

    def _start_saving(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self.save())


def _name(id: str) -> str:
    return f"webhook-log-{id.removeprefix('wh-')}.json"
