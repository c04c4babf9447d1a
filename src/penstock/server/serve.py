"""`penstock serve`: run a server until a signal ends it.

SIGTERM and SIGINT stop it in good order; a second one ends it at once, and nothing that was
answered is lost by that. SIGHUP reads the settings, keys and certificates again.
"""

import asyncio
import logging
import signal
from collections.abc import Callable

import uvloop

from penstock.errors import PenstockError
from penstock.server.configuration import Configuration
from penstock.server.logs import set_up_logs
from penstock.server.server import Server

log = logging.getLogger("penstock.server")


def serve(
    configuration: Configuration,
    *,
    read_again: Callable[[], Configuration] | None = None,
    on_listening: Callable[[Server], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. `read_again` gives the settings anew, for SIGHUP."""
    set_up_logs(configuration.server)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(configuration, read_again, on_listening))


async def _serve(
    configuration: Configuration,
    read_again: Callable[[], Configuration] | None,
    on_listening: Callable[[Server], None] | None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    server = Server(configuration)

    def on_stop() -> None:
        if stop.is_set():
            raise SystemExit(1)
        stop.set()

    reloads: set[asyncio.Task[None]] = set()

    def on_reload() -> None:
        if read_again is not None:
            task = loop.create_task(_reload(server, read_again))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop)
    loop.add_signal_handler(signal.SIGHUP, on_reload)
    await server.start()
    try:
        if on_listening is not None:
            on_listening(server)
        stopped = loop.create_task(stop.wait())
        ready = loop.create_task(server.ready())
        await asyncio.wait({stopped, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()  # raises what is in the way
        await stopped
    finally:
        await server.stop()


async def _reload(server: Server, read_again: Callable[[], Configuration]) -> None:
    try:
        await server.reload(read_again())
    except (PenstockError, OSError) as error:
        log.error("not reloaded", extra={"fields": {"reason": str(error)}})
