"""Post to an endpoint and return its answer, or why there is none. Network errors never raise."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple, Protocol

import httpcore2
from httpcore2 import NetworkError, ProtocolError, TimeoutException

from penstock.broker.webhooks.addresses import GuardedNetwork, Resolve, Resolver, parse_url
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.model import NS

MAX_ANSWER_BYTES = 64 * 1024
SHOWN_BYTES = 1000  # of an answer, in the delivery log
_IDLE_CONNECTIONS = 100
_IDLE_S = 4.0  # shorter than most servers: a connection they are about to close is not used


class Answer(NamedTuple):
    """The result of one POST: a status, or status 0 and an error."""

    status: int
    error: str = ""
    retry_after_s: float | None = None
    text: str = ""  # the beginning of the answer, for people

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300 and not self.error


class Sender(Protocol):
    """Posts deliveries."""

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float
    ) -> Answer: ...

    async def close(self) -> None: ...


class HttpSender:
    """Posts over HTTP/1.1 and keeps idle connections for a few seconds."""

    def __init__(
        self,
        clock: Clock,
        *,
        allow_private: Callable[[], bool],
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._resolver = Resolver()
        # No limit here: each subscription limits its deliveries, and a slow endpoint must not use
        # up the connections of others.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=None,
            max_keepalive_connections=_IDLE_CONNECTIONS,
            keepalive_expiry=_IDLE_S,
            network_backend=GuardedNetwork(allow_private, resolve=resolve or self._resolver),
        )

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float
    ) -> Answer:
        """Post once. `timeout_s` includes name lookup, connection, request and answer."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._post(url, headers, body)
        except (TimeoutError, TimeoutException):
            return Answer(0, f"no answer within {timeout_s:g} s")
        except (NetworkError, ProtocolError, OSError, PenstockError) as error:
            return Answer(0, str(error) or type(error).__name__)

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        endpoint = parse_url(url)
        request = httpcore2.Request(
            "POST",
            httpcore2.URL(
                scheme=endpoint.scheme,
                host=endpoint.host,
                port=endpoint.port,
                target=endpoint.target,
            ),
            headers=[
                ("Host", endpoint.host_header),
                ("Content-Length", str(len(body))),
                ("Accept", "*/*"),
                *headers.items(),
            ],
            content=body,
        )
        response = await self._pool.handle_async_request(request)
        try:
            size, start = 0, b""
            async for part in response.aiter_stream():
                size += len(part)
                if len(start) < SHOWN_BYTES:
                    start += part[: SHOWN_BYTES - len(start)]
                if size > MAX_ANSWER_BYTES:
                    error = f"the answer is over {MAX_ANSWER_BYTES} bytes"
                    return Answer(response.status, error, text=_shown(start))
        finally:
            await response.aclose()
        retry_after_s = self._retry_after_s(response.headers)
        return Answer(response.status, retry_after_s=retry_after_s, text=_shown(start))

    async def close(self) -> None:
        await self._pool.aclose()
        self._resolver.close()

    def _retry_after_s(self, headers: list[tuple[bytes, bytes]]) -> float | None:
        """Return the delay of a Retry-After header, seconds or a date; None if there is none."""
        for name, value in headers:
            if name.lower() == b"retry-after":
                return _seconds(value.decode("latin-1").strip(), self._clock.now_ns() / NS)
        return None


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _seconds(text: str, now_s: float) -> float | None:
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(date.timestamp() - now_s, 0.0)
