"""Limits of exports: how many are under way, and how many bytes they hold together.

A page is made only if its bytes fit into the part of `max_buffered_bytes` that exports may use.
Otherwise the export waits until another one was read, or has ended.
"""

import asyncio

from penstock.broker.limits import Held
from penstock.errors import Overloaded

MOST_EXPORTS = 32  # under way, of a server; above it 503
EXPORT_PAGE_BYTES = 256 * 1024  # of payloads; a larger message is a page of its own
_MOST_PAGES = 2  # made at the same time; others wait
_LOOK_S = 1.0
_PART = 4  # exports may use one part in four of `max_buffered_bytes`


class ExportLimits:
    """The exports of one server. What they hold counts in `held` as well."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.count = 0  # exports under way
        self.bytes = 0  # of pages that clients have not read
        self.making = asyncio.Semaphore(_MOST_PAGES)
        self._changed = asyncio.Event()

    def begin(self) -> None:
        """Count an export. Raise Overloaded if too many are under way."""
        if self.count >= MOST_EXPORTS:
            raise Overloaded(f"{MOST_EXPORTS} exports are under way: retry later")
        self._held.check_room()
        self.count += 1

    def end(self) -> None:
        self.count -= 1

    def fits(self, size: int) -> bool:
        """Return whether there is room for a page. A single page always fits."""
        return not self.bytes or self.bytes + size <= self._held.max_bytes // _PART

    def take(self, size: int) -> None:
        """Count a page."""
        self.bytes += size
        self._held.bytes += size

    def free(self, size: int) -> None:
        """Count a page no longer: the client has read it, or has left."""
        self.bytes -= size
        self._held.bytes -= size
        self.wake()

    def wake(self) -> None:
        """Let waiting exports look again: a page was read, or a client disconnected."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Wait until `wake` is called, or for a second: the caller may wait for another thing."""
        timer = asyncio.get_running_loop().call_later(_LOOK_S, self.wake)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
