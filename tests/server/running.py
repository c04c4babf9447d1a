"""A server of one's own: in a thread, on a free port, with its data in a directory of the test."""

import asyncio
import atexit
import os
import threading
import zlib
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import psycopg
import uvloop

from penstock.broker import BrokerSettings, Store
from penstock.broker.stores import KeyAdmin, open_store
from penstock.ledger.files import Files
from penstock.ledger.memory_files import MemoryFiles
from penstock.server.configuration import Configuration
from penstock.server.server import Server
from penstock.server.settings import ServerSettings
from tests.harness.postgres_server import PostgresServer
from tests.server.wire import Wire

_T = TypeVar("_T")
_PATIENCE_S = 30
_memory: dict[Path, MemoryFiles] = {}


@cache
def _database_server() -> PostgresServer:
    """Return a PostgreSQL server that runs as long as this process."""
    server = PostgresServer()
    atexit.register(server.remove)
    return server.create().start()


@cache
def location_of(data: Path) -> str:
    """Return the location of a store for a path: itself, or a database if the run asks for it."""
    if os.environ.get("PENSTOCK_TEST_STORE") != "postgres":
        return str(data)
    server = _database_server()
    name = f"data_{zlib.crc32(str(data).encode())}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return server.url.replace("/postgres", f"/{name}")


class RunningServer:
    """Starts when entered; whoever leaves finds it stopped."""

    def __init__(
        self, data: Path, *, broker: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        queues = {"sync": "never", "min_free_bytes": 0}
        self.data = data
        self.settings = ServerSettings(**{"data": str(data), "port": 0, **settings})
        self._configuration = Configuration(
            self.settings, BrokerSettings(**{"queues": queues, **(broker or {})})
        )
        self.server: Server
        self._loop: asyncio.AbstractEventLoop
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def __enter__(self) -> "RunningServer":
        self._thread.start()
        assert self._started.wait(_PATIENCE_S), "the server did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop in good order, if it still runs."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_PATIENCE_S)
            assert not self._thread.is_alive(), "the server did not stop"

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do something in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def rewrite_keys(self, change: Callable[[str], str]) -> None:
        """Change the document of the keys, as an administrator might."""

        async def rewrite() -> None:
            store = self.server.broker.store
            old = await store.load_document("keys.json")
            assert old is not None
            assert await store.replace_document("keys.json", old, change(old.decode()).encode())

        self.call(rewrite())

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something to be so, in the server's event loop, round by round."""

        async def rounds() -> None:
            async with asyncio.timeout(_PATIENCE_S):
                while not is_so():
                    await asyncio.sleep(0)

        self.call(rounds())

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._life())

    def _open_store(self, location: str, settings: BrokerSettings, **options: Any) -> Store:
        return open_store(self.location, settings, files=self._files(), **options)

    @property
    def location(self) -> str:
        """Return where the store is: a directory, or a database that stands for it."""
        return location_of(self.data)

    def _files(self) -> Files | None:
        """Return files in memory if the run asks for them. A path stands for the same files, so
        that a second server of a test finds what the first has stored."""
        if os.environ.get("PENSTOCK_TEST_STORE") != "memory":
            return None
        files = _memory.get(self.data)
        if files is None:
            files = _memory[self.data] = MemoryFiles()
            for parent in reversed(self.data.parents):
                files.make_directory(str(parent))
        return files

    async def _life(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        try:
            self.server = Server(self._configuration, open_store=self._open_store)
            await self.server.start()
            try:
                await self.server.ready()
            except BaseException:
                await self.server.stop()
                raise
        except BaseException as error:
            self._error = error
            return
        finally:
            self._started.set()
        await self._stopping.wait()
        await self.server.stop()

    # -- reaching it -------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx2.Client:
        # Nothing is encrypted here; without `verify` no certificates are read for each client.
        options = {"base_url": self.url, "verify": False, **options}
        return httpx2.Client(timeout=_PATIENCE_S, trust_env=False, **options)

    def wire(self, *, receive_buffer_bytes: int | None = None) -> Wire:
        """A connection to write bytes to."""
        return Wire(self.port, receive_buffer_bytes=receive_buffer_bytes)

    def new_key(self, *verbs: str, namespaces: list[str] | None = None, signs: bool = False) -> str:
        """A key that is good from now on."""
        return self.new_key_and_id(*verbs, namespaces=namespaces, signs=signs)[1]

    def new_key_and_id(
        self, *verbs: str, namespaces: list[str] | None = None, signs: bool = False
    ) -> tuple[str, str]:
        key, token = KeyAdmin(self.location).create("test", verbs, namespaces, signs=signs)
        self.call(self.server.service.keys.load())
        return key.id, token


def queue_path(queue: str, *rest: str, namespace: str = "default") -> str:
    """The path of a queue, or of something below it."""
    return "/".join([f"/api/v1/namespaces/{namespace}/queues/{queue}", *rest])
