"""Choose a store by where the data is: a directory, or the memory of this process."""

from collections.abc import Callable

from penstock.broker.embedded import EmbeddedStore
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Store
from penstock.checking import MEMORY
from penstock.clock import Clock
from penstock.ledger.files import Files
from penstock.ledger.memory_files import MemoryFiles


def open_store(
    location: str,
    settings: BrokerSettings,
    *,
    observe_commit: Callable[[float, int], None],
    clock: Clock,
    files: Files | None = None,
) -> Store:
    """Return the store at a location: a directory, or `memory:`, which is gone with the process.

    `files` is the file system that holds a directory, if it is not the operating system's.
    """
    if location == MEMORY:
        location, files = f"/{MEMORY}", files or MemoryFiles()
    return EmbeddedStore(
        location,
        max_open=settings.max_open_queues,
        idle_close_s=settings.idle_close_s,
        observe_commit=observe_commit,
        files=files,
        clock=clock,
    )
