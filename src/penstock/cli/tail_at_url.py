"""Following a queue of a broker: a consumer group of its own, for as long as it is watched."""

import secrets
from collections.abc import Iterator

from penstock.client import RemoteQueue
from penstock.errors import NoSuchGroup
from penstock.model import Message

_AT_A_TIME = 500
_WAIT_S = 20.0


class UrlFollower:
    """Shows each message to itself only: other groups do not notice."""

    def __init__(self, queue: RemoteQueue, lines: int) -> None:
        self._queue = queue
        self._group = f"tail-{secrets.token_hex(4)}"
        next_seq = queue.stats().next_seq
        queue.groups.create(self._group, seq=max(next_seq - lines, 1))

    def news(self, *, wait: bool) -> Iterator[Message]:
        """What came since the last time; waits for something if told to."""
        wait_s = _WAIT_S if wait else 0.0
        while leased := self._queue.lease(_AT_A_TIME, wait_s=wait_s, group=self._group):
            self._queue.ack(leased)
            yield from sorted((job.message for job in leased), key=lambda message: message.seq)
            wait_s = 0.0

    def close(self) -> None:
        try:
            self._queue.groups.delete(self._group)
        except NoSuchGroup:
            pass  # somebody was faster
