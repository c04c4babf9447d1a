"""Change a small document of the broker (keys, webhooks …) that others may change as well."""

from collections.abc import Callable

from penstock.broker.store import Store


async def update_document(
    store: Store, name: str, change: Callable[[bytes | None], bytes | None]
) -> bytes | None:
    """Replace a document by what `change` makes of it, durably. Return what it holds then.

    None is a document that does not exist. `change` is called again if another process, or another
    broker of the same store, changed the document in the meantime.
    """
    while True:
        old = await store.load_document(name)
        new = change(old)
        if new == old or await store.replace_document(name, old, new):
            return new


async def save_document(store: Store, name: str, data: bytes) -> None:
    """Replace a document, whatever it holds."""
    await update_document(store, name, lambda _: data)


async def delete_document(store: Store, name: str) -> None:
    """Delete a document; do nothing if there is none."""
    await update_document(store, name, lambda _: None)
