"""Heads of requests that were read before, byte for byte.

Why: a client sends the same head again and again. To parse it, judge it and find its route
is half of what a small request costs. A request that arrives in one piece, on a connection with
nothing else under way, with a head that went through all of that once, has the same head again:
identical bytes, identical judgement. Who the caller is, and what is in the body, is asked anew.
"""

from penstock.server.exchange import NOT_LOOKED_FOR, Exchange, Head
from penstock.server.service import Service

_MOST = 1024
_LARGEST = 2048  # bytes
_END = b"\r\n\r\n"


class KnownHeads:
    """Those of one server, of requests to the hot routes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._settings = service.settings
        self._heads: dict[bytes, tuple[Head, int]] = {}  # with the size of the body

    def find(self, data: bytes) -> Exchange | None:
        """The request, if `data` is one with a known head, whole, and nothing more."""
        start = data.find(_END) + 4
        found = self._heads.get(data[:start])
        if found is None:
            return None
        head, size = found
        service = self._service
        if (
            len(data) != start + size
            or service.settings is not self._settings
            or service.held.bytes + size > self._settings.max_buffered_bytes
        ):
            return None
        exchange = Exchange(head)
        if size:
            exchange.chunks.append(data[start:])
            exchange.size = size
        return exchange

    def learn(self, data: bytes, head: Head) -> None:
        """Remember the head of a request that was read in the strict way, if that is of use."""
        start = data.find(_END) + 4
        length = head.known.get(b"content-length", b"")
        if (
            head.route in (None, NOT_LOOKED_FOR)
            or not head.keep_alive
            or b"expect" in head.known
            or start > _LARGEST
            or not length.isdigit()
            or len(data) != start + int(length)
        ):
            return
        if self._service.settings is not self._settings or len(self._heads) >= _MOST:
            self._heads.clear()  # limits may be others now
            self._settings = self._service.settings
        self._heads[data[:start]] = head, int(length)
