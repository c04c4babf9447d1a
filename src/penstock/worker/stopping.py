"""How a worker is told to stop: by a call from any thread, or by a signal."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.locks import Lock

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopButton:
    """Pressed once: finish running calls and stop. Pressed again: stop at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.urgent = asyncio.Event()
        self._lock = Lock()
        self._presses = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def press(self) -> None:
        """Ask for a stop. Callable from any thread, also before the worker runs and after."""
        with self._lock:
            self._presses += 1
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._show)

    @contextmanager
    def at_work(self, *, heed_signals: bool) -> Iterator[None]:
        """Connect the button to the running loop, and to signals, during the block."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._loop = loop
        self._show()
        try:
            if heed_signals:
                for number in _SIGNALS:
                    loop.add_signal_handler(number, self.press)
            yield
        finally:
            if heed_signals:
                for number in _SIGNALS:
                    loop.remove_signal_handler(number)
            with self._lock:
                self._loop = None

    def _show(self) -> None:
        if self._presses >= 1:
            self.asked.set()
        if self._presses >= 2:
            self.urgent.set()
