"""The subscriptions of a broker, as they stand on disk: one small document, replaced whole."""

from collections.abc import Iterator

from penstock.broker.documents import save_document
from penstock.broker.store import Store
from penstock.broker.webhooks.events import log
from penstock.broker.webhooks.subscription import Subscription, dump, load
from penstock.errors import CorruptLedger, PenstockError, Unavailable

_DOCUMENT = "webhooks.json"


class Register:
    """All subscriptions by id. A change is on disk before it is seen here.

    A document that cannot be read is left alone: there are no subscriptions then, and no changes,
    so that nothing is written over what may yet be mended by hand.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_id: dict[str, Subscription] = {}
        self._is_loaded = False
        self._damage = ""

    async def load(self) -> None:
        document = await self._store.load_document(_DOCUMENT)
        try:
            self._by_id = {one.id: one for one in load(document)} if document else {}
        except (ValueError, TypeError, KeyError, AttributeError, PenstockError) as error:
            self._damage = f"{type(error).__name__}: {error}"
            log.error(
                "webhooks unreadable",
                extra={"fields": {"document": _DOCUMENT, "reason": self._damage}},
            )
        self._is_loaded = True

    def check(self) -> None:
        """Raises why there can be no change now."""
        if not self._is_loaded:
            raise Unavailable("the webhooks are not read yet: try again in a moment")
        if self._damage:
            raise CorruptLedger(
                f"the broker's document {_DOCUMENT} cannot be read ({self._damage}): mend it, or "
                f"move it away to begin anew, and start again"
            )

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_id.values())

    def get(self, id: str) -> Subscription | None:
        return self._by_id.get(id)

    async def put(self, subscription: Subscription) -> None:
        """Add it, or replace the one with its id."""
        await self._save({**self._by_id, subscription.id: subscription})

    async def remove(self, id: str) -> None:
        await self._save({one.id: one for one in self if one.id != id})

    async def _save(self, by_id: dict[str, Subscription]) -> None:
        self.check()
        await save_document(self._store, _DOCUMENT, dump(list(by_id.values())))
        self._by_id = by_id
