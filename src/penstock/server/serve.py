"""`penstock serve`: run a server until a signal ends it.

SIGTERM and SIGINT stop it gracefully; a second one ends it at once, without losing anything that
was answered. SIGHUP reloads the settings, keys and certificates.
"""

import asyncio
import ctypes
import logging
import signal
from collections.abc import Callable

import uvloop

from penstock.errors import PenstockError
from penstock.server.configuration import Configuration
from penstock.server.logs import set_up_logs
from penstock.server.server import Server
from penstock.server.systemd import Notifier

log = logging.getLogger("penstock.server")

_M_MMAP_THRESHOLD = -3  # of malloc.h
_OWN_MAPPING_BYTES = 4 << 20


def serve(
    configuration: Configuration,
    *,
    read_again: Callable[[], Configuration] | None = None,
    on_listening: Callable[[Server], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. `read_again` reads the settings again, for SIGHUP."""
    set_up_logs(configuration.server)
    _return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(configuration, read_again, on_listening))


def _return_large_blocks() -> None:
    """Have glibc return large blocks to the system as soon as they are freed.

    Otherwise it keeps them in its heaps once one was freed: 100 MiB with 16 answers of 16 MiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)


async def _serve(
    configuration: Configuration,
    read_again: Callable[[], Configuration] | None,
    on_listening: Callable[[Server], None] | None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    server = Server(configuration)
    systemd = Notifier()

    def on_stop() -> None:
        if stop.is_set():
            raise SystemExit(1)
        stop.set()

    reloads: set[asyncio.Task[None]] = set()

    def on_reload() -> None:
        if read_again is not None:
            task = loop.create_task(_reload(server, read_again, systemd))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop)
    loop.add_signal_handler(signal.SIGHUP, on_reload)
    systemd.start(loop)
    await server.start()
    try:
        if on_listening is not None:
            on_listening(server)
        stopped = loop.create_task(stop.wait())
        ready = loop.create_task(server.ready())
        await asyncio.wait({stopped, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()  # raise the error of a failed start
            systemd.ready()
        await stopped
    finally:
        systemd.stopping()
        await server.stop()


async def _reload(
    server: Server, read_again: Callable[[], Configuration], systemd: Notifier
) -> None:
    systemd.reloading()
    try:
        await server.reload(read_again())
    except (PenstockError, OSError) as error:
        log.error("not reloaded", extra={"fields": {"reason": str(error)}})
    finally:
        systemd.ready()
