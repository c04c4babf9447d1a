"""Choose a store by its location: a directory, a PostgreSQL database, or this process's memory."""

import asyncio
from collections.abc import Callable, Iterable

from penstock.broker.embedded import EmbeddedStore
from penstock.broker.keys import Key, KeyEditor
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Store
from penstock.checking import MEMORY, is_database_url
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput
from penstock.extras import requires_extra
from penstock.ledger.files import Files
from penstock.ledger.memory_files import MemoryFiles


def _unobserved(seconds: float, answers: int) -> None:
    """The default of `observe_commit`."""


def open_store(
    location: str,
    settings: BrokerSettings | None = None,
    *,
    observe_commit: Callable[[float, int], None] = _unobserved,
    clock: Clock | None = None,
    files: Files | None = None,
) -> Store:
    """Return the store at a location: a directory, the URL of a PostgreSQL database, or `memory:`,
    which is lost with the process.

    Nothing is read or written before `claim` or `open`, except for documents. `files` is the file
    system that holds a directory, if it is not the operating system's.
    """
    settings = settings or BrokerSettings()
    if is_database_url(location):
        return _postgres_store(location, settings, observe_commit, clock)
    if location == MEMORY:
        location, files = f"/{MEMORY}", files or MemoryFiles()
    return EmbeddedStore(
        location,
        max_open=settings.max_open_queues,
        idle_close_s=settings.idle_close_s,
        observe_commit=observe_commit,
        files=files,
        clock=clock or SystemClock(),
    )


def _postgres_store(
    url: str,
    settings: BrokerSettings,
    observe_commit: Callable[[float, int], None],
    clock: Clock | None,
) -> Store:
    with requires_extra("postgres", "a store in PostgreSQL", InvalidInput):
        from penstock.broker.postgres import ClusterOptions, PostgresStore
    options = ClusterOptions(
        schema=settings.postgres_schema,
        max_connections=settings.postgres_connections,
        host=settings.cluster_host,
        port=settings.cluster_port,
        cache=settings.cache_directory or None,
        cache_bytes=settings.cache_bytes,
        migrate=settings.postgres_migrate,
        queue_defaults={"sync": "always", **settings.queues},
    )
    return PostgresStore(
        url,
        options,
        max_open=settings.max_open_queues,
        idle_close_s=settings.idle_close_s,
        observe_commit=observe_commit,
        clock=clock,
    )


class KeyAdmin:
    """The API keys of the store at a location, for programs that run no event loop."""

    def __init__(self, location: str, schema: str = "penstock") -> None:
        """`schema`: that of the tables, if the location is a database."""
        settings = BrokerSettings(postgres_schema=schema)
        self._keys = KeyEditor(open_store(location, settings))

    def list(self) -> "list[Key]":
        return asyncio.run(self._keys.list())

    def create(
        self,
        label: str,
        verbs: Iterable[str],
        namespaces: Iterable[str] | None = None,
        value: str | None = None,
        *,
        signs: bool = False,
    ) -> tuple[Key, str]:
        """Return the key, and its token, which is not kept. `value`: the token to use."""
        return asyncio.run(self._keys.create(label, verbs, namespaces, value, signs=signs))

    def revoke(self, id: str) -> Key:
        """Revoke a key: it is refused from now on. It stays listed."""
        return asyncio.run(self._keys.revoke(id))
