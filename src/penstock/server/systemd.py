"""Tell systemd how the server is: sd_notify(3), for units with `Type=notify` or `notify-reload`.

A message is one datagram to the socket that systemd names in the environment. The watchdog is fed
by a timer of the event loop: if the loop hangs, systemd restarts the server. While queues are
recovered, which may take long, the same timer asks for more time to start.
"""

import asyncio
import os
import socket
from collections.abc import Mapping

from penstock.clock import SystemClock

_TICK_S = 10.0  # if the unit has no watchdog
_MORE_TIME_US = 60_000_000


class Notifier:
    """Messages to systemd. Without NOTIFY_SOCKET in the environment, nothing is sent."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watched = is_ours and watchdog_us.isdecimal() and int(watchdog_us) > 0
        self._tick_s = int(watchdog_us) / 2e6 if self._watched else _TICK_S
        self._is_ready = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send signs of life from the event loop until `stopping`."""
        if self._address:
            self._tick(loop)

    def ready(self) -> None:
        """Say that calls are accepted: after the start, and after each reload."""
        self._is_ready = True
        self._send("READY=1", "STATUS=Accepting calls")

    def reloading(self) -> None:
        now_us = SystemClock().monotonic_ns() // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", "STATUS=Reloading")

    def stopping(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._send("STOPPING=1", "STATUS=Stopping")

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._tick_s, self._tick, loop)
        if not self._is_ready:
            self._send(f"EXTEND_TIMEOUT_USEC={_MORE_TIME_US}", "STATUS=Recovering queues")
        elif self._watched:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.setblocking(False)
            try:
                connection.sendto("\n".join(lines).encode(), self._address)
            except OSError:
                pass  # systemd is away, or its queue is full: the next sign of life may arrive
