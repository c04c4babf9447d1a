"""The process that holds the lock: it serves the directory to the others, in a thread.

Its own calls do not go through the socket. They use the same open queues as the broker, under the
locks that queues have for threads.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvloop

from penstock.broker.embedded import EmbeddedStore
from penstock.broker.settings import BrokerSettings
from penstock.client.long_paths import short_path
from penstock.clock import SystemClock
from penstock.locks import Lock
from penstock.names import QueueName
from penstock.queue.core import QueueCore
from penstock.server.configuration import Configuration
from penstock.server.exit_threads import ExitThreads
from penstock.server.server import Server
from penstock.server.settings import ServerSettings
from penstock.shared.inherited import replace_locks_in, replace_sockets_at
from penstock.shared.place import Place

if TYPE_CHECKING:
    from penstock.broker.embedded.data_directory import Home

log = logging.getLogger("penstock.shared")

_THREADS = 4
_SHUTDOWN_S = 10.0
# The others keep a connection without requests, to notice the end of the holder.
_IDLE_S = 86_400.0
_NEVER_CLOSE_S = 30 * 86_400.0


class Holder:
    """Serves a directory. The caller of `run` holds its lock, and `run` releases it."""

    def __init__(self, place: Place, home: "Home") -> None:
        self._place = place
        self._home = home
        self._address = short_path(place.socket_path)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store: EmbeddedStore | None = None
        self._stopping: asyncio.Event | None = None
        self._is_stopped = False  # before there was a loop
        self._lock = Lock()
        self._cores: dict[QueueName, QueueCore] = {}
        self._wanted: set[QueueName] = set()  # queues that are being opened for `core_of`

    # -- in the thread that serves -----------------------------------------------------------------

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop` is called, then hand over. Call `on_ready` when calls are answered."""
        loop = uvloop.new_event_loop()
        loop.set_default_executor(ExitThreads(_THREADS, "penstock-shared"))
        try:
            with self._lock:
                self._loop = loop
                self._stopping = asyncio.Event()
                if self._is_stopped:
                    self._stopping.set()
            try:
                loop.run_until_complete(self._serve(on_ready))
            finally:
                loop.run_until_complete(_cancel_others())
        finally:
            self._cores.clear()
            self._home.close()  # also if it never served; may be closed already
            with self._lock:
                self._loop = None
            loop.close()

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        assert self._stopping is not None
        clock = SystemClock()
        broker = self._broker_settings()
        self._store = EmbeddedStore(
            self._place.path,
            max_open=broker.max_open_queues,
            idle_close_s=broker.idle_close_s,
            clock=clock,
            claimed=self._home,
        )
        store = self._store
        server = Server(
            Configuration(self._server_settings(), broker),
            open_store=lambda *_, **__: store,
            clock=clock,
            url=self._place.url,
            uses_keys=False,
            answers_early=False,
        )
        await server.start()
        try:
            await server.ready()
            on_ready()
            await self._stopping.wait()
        finally:
            self._cores.clear()
            await server.stop()

    def _server_settings(self) -> ServerSettings:
        return ServerSettings(
            data=self._place.path,
            tcp=False,
            unix=self._address,
            unix_mode="0600",
            idle_timeout_s=_IDLE_S,
            shutdown_s=_SHUTDOWN_S,
            dashboard=False,
        )

    def _broker_settings(self) -> BrokerSettings:
        if not self._place.is_one_queue:
            return BrokerSettings()
        # A new queue has the settings that it has when it is opened alone.
        return BrokerSettings(queues={"sync": "interval"}, idle_close_s=_NEVER_CLOSE_S)

    # -- in any thread -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Have `run` return soon."""
        with self._lock:
            self._is_stopped = True
            if self._loop is not None and self._stopping is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)

    def core_of(self, queue: QueueName) -> QueueCore | None:
        """Return a queue if it is open. If not, have it opened, for later calls."""
        core = self._cores.get(queue)
        if core is None and queue not in self._wanted:
            with self._lock:
                if self._loop is not None:
                    self._wanted.add(queue)
                    self._loop.call_soon_threadsafe(self._find, queue)
        return core

    def forget(self, queue: QueueName, core: QueueCore) -> None:
        """Note that a queue was closed, for example to change its settings."""
        if self._cores.get(queue) is core:
            self._cores.pop(queue, None)

    def _find(self, queue: QueueName) -> None:
        assert self._store is not None
        try:
            # Quotas count what goes through the store.
            if not self._store.quotas.is_counting:
                found = self._store.open_queues.get(queue)
                if found is not None and not found.core.ledger.is_closed:
                    self._cores[queue] = found.core
        except AttributeError:
            pass  # not open yet, or closed already
        finally:
            self._wanted.discard(queue)

    def forked(self) -> None:
        """In a forked child, give up the copies of the lock and the sockets."""
        self._cores.clear()
        self._home.close()
        replace_sockets_at(self._address)
        replace_locks_in(self._place.path)


async def _cancel_others() -> None:
    """End what still runs in the loop, which is about to be closed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
