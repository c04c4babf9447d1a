"""Check the keys of open streams again, so that a revoked or changed key ends its streams."""

import asyncio

from penstock.broker import Caller, Keys

_EVERY_S = 0.4  # the streams of a revoked key end within a second


class StreamKeys:
    """The keys of all open streams. One task checks them while there are any."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._checked = 0  # the version of the keys that all streams were checked against
        self._streams: dict[asyncio.Event, tuple[str | None, str, Caller]] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, token: str | None, address: str, caller: Caller) -> asyncio.Event:
        """Return an event that is set when this token no longer has the rights of `caller`.

        Call it in the same turn of the loop in which the token was accepted.
        """
        if not self._streams:
            self._checked = self._keys.version
        is_refused = asyncio.Event()
        self._streams[is_refused] = token, address, caller
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return is_refused

    def forget(self, is_refused: asyncio.Event) -> None:
        self._streams.pop(is_refused, None)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._streams:
            await asyncio.sleep(_EVERY_S)
            await self._keys.refresh()
            if self._keys.version == self._checked:
                continue
            self._checked = self._keys.version
            for is_refused, (token, address, caller) in self._streams.items():
                if self._keys.match(token, address) != caller:
                    is_refused.set()
        self._task = None
