"""HTTP over the HTTP library: for TLS and for proxies."""

import os
import ssl
from types import ModuleType
from typing import Any

from penstock.client.callers import Callers
from penstock.client.http_wire import ALL_IN_USE, KEEP_ALIVE_S, NoAnswer
from penstock.client.options import ClientOptions
from penstock.client.request import CONTEXT_HEADERS, Request
from penstock.extras import requires_extra

_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)  # of a TLS stream


class LibraryTransport:
    """Connections to one broker, which the HTTP library keeps."""

    def __init__(self, base: str, options: ClientOptions, callers: Callers) -> None:
        self._base = base
        self._options = options
        self._callers = callers
        self._connect()

    def _connect(self) -> None:
        make = _httpx().AsyncClient if self._callers.suspend else _httpx().Client
        self._http = make(**_client_settings(self._base, self._options))
        self._pid = os.getpid()

    async def send(self, request: Request[Any]) -> Any:
        """Send a request and return the answer; raise NoAnswer if there is none."""
        self._callers.check()
        if self._pid != os.getpid():
            self._connect()  # after a fork the sockets are shared with the parent
        settings = _request_settings(request, self._options)
        try:
            return await self._callers.call(self._http.request, **settings)
        except _httpx().TransportError as error:
            raise _failure_of(error, self._base) from error

    async def close(self) -> None:
        if self._callers.leave() and self._pid == os.getpid():
            close = self._http.aclose if self._callers.suspend else self._http.close
            await self._callers.call(close)


def _httpx() -> ModuleType:
    """Return the HTTP library; raise PenstockError if it is not installed."""
    with requires_extra("client", "a queue at a URL"):
        import httpx2
    return httpx2


def _client_settings(base: str, options: ClientOptions) -> dict[str, Any]:
    """Return the arguments of an httpx2 client."""
    limits = _httpx().Limits(
        max_connections=options.max_connections,
        max_keepalive_connections=options.max_connections,
        keepalive_expiry=KEEP_ALIVE_S,
    )
    settings = {"base_url": base, "headers": options.headers(), "follow_redirects": False}
    # Reading certificates takes most of the time to connect; plain HTTP needs none.
    verify = options.verify if base.startswith("https:") else False
    return {**settings, "verify": verify, "limits": limits}


def _request_settings(request: Request[Any], options: ClientOptions) -> dict[str, Any]:
    """Return the arguments of a request."""
    timeout_s = options.timeout_s
    return {
        "method": request.method,
        "url": request.path,
        "params": request.query or None,
        "headers": {**request.headers, **CONTEXT_HEADERS.get()} or None,
        "content": request.body or None,
        "timeout": _httpx().Timeout(timeout_s, read=timeout_s + request.wait_s),
    }


def _failure_of(error: Exception, base: str) -> NoAnswer:
    """Return what an error of httpx2 means for the request."""
    library = _httpx()
    text = str(error) or type(error).__name__
    if isinstance(error, library.ConnectError) and (refusal := _tls_refusal(error)) is not None:
        hint = ": it speaks no TLS, write http://" if "WRONG_VERSION" in str(refusal.reason) else ""
        return NoAnswer(f"no TLS connection to {base}: {text}{hint}", sent=False, hopeless=True)
    if isinstance(error, library.ConnectError | library.ConnectTimeout):
        return NoAnswer(f"no connection to {base}: {text}", sent=False)
    if isinstance(error, library.PoolTimeout):
        return NoAnswer(ALL_IN_USE, sent=False)
    if isinstance(error, library.UnsupportedProtocol | library.LocalProtocolError):
        return NoAnswer(f"the request cannot be sent: {text}", sent=False, hopeless=True)
    if isinstance(error, library.TimeoutException):
        return NoAnswer(f"{base} did not answer in time", sent=True)
    return NoAnswer(f"the connection to {base} broke: {text}", sent=True)


def _tls_refusal(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error below an error, if the next handshake fails in the same way.

    An end of the stream is no such error: a broker that restarts behind a proxy causes it.
    """
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, _ENDS):
            return error
        error = error.__cause__ or error.__context__
    return None
