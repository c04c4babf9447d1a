"""Serve, and measure the event loop from inside: `loop_probe.py FILE serve DIRECTORY …`.

A heartbeat runs in the loop every millisecond. FILE holds the longest gap between two heartbeats in
wall time, in processor time of the loop's thread, and in processor time of the process. Only the
first includes the time of other processes. Write zeros to FILE to reset it.
"""

import asyncio
import mmap
import struct
import sys
import time
from operator import sub
from pathlib import Path

from penstock.cli import main
from penstock.server.server import Server

LAYOUT = struct.Struct("3d")
_BEAT_S = 0.001


async def _beat(found: mmap.mmap) -> None:
    before = _now()
    while True:
        await asyncio.sleep(_BEAT_S)
        now = _now()
        gaps = map(sub, now, before)
        largest = map(max, LAYOUT.unpack_from(found), gaps)
        LAYOUT.pack_into(found, 0, *largest)
        before = now


def _now() -> tuple[float, float, float]:
    return time.perf_counter(), time.thread_time(), time.process_time()


def _probe(path: Path) -> None:
    """Have each server start a heartbeat in its loop."""
    with path.open("r+b") as file:
        found = mmap.mmap(file.fileno(), LAYOUT.size)
    start = Server.start

    async def start_and_beat(server: Server) -> None:
        await start(server)
        server.heartbeat = asyncio.ensure_future(_beat(found))  # type: ignore[attr-defined]

    Server.start = start_and_beat  # type: ignore[method-assign]


if __name__ == "__main__":
    _probe(Path(sys.argv[1]))
    del sys.argv[1]
    main()
