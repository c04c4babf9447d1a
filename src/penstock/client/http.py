"""httpx2, as both connections use it: what is set, and what its errors mean."""

import ssl
from types import ModuleType
from typing import Any, NamedTuple

from penstock.client.call import Call
from penstock.client.options import ClientOptions
from penstock.errors import PenstockError

# Below what servers and proxies allow (60 s and more): the side that sends closes first, so that a
# request hardly ever meets a connection that is being closed.
_IDLE_S = 30.0
_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)  # of a TLS stream


def httpx() -> ModuleType:
    """The library; a sentence that says how to get it where it is not there."""
    try:
        import httpx2
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        raise PenstockError(
            "a queue at a URL needs the package 'httpx2', which is not installed; "
            "run: pip install 'penstock[client]'"
        ) from None
    return httpx2


def client_settings(base: str, options: ClientOptions) -> dict[str, Any]:
    """What an httpx2 client is made with."""
    return {
        "base_url": base,
        "headers": options.headers(),
        # Where nothing is encrypted, no certificates are read: that takes most of the time.
        "verify": options.verify if base.startswith("https:") else False,
        "limits": httpx().Limits(
            max_connections=options.max_connections,
            max_keepalive_connections=options.max_connections,
            keepalive_expiry=_IDLE_S,
        ),
        "follow_redirects": False,
    }


def request_settings(call: Call[Any], options: ClientOptions) -> dict[str, Any]:
    """What a request is made with."""
    patience_s = options.timeout_s
    return {
        "method": call.method,
        "url": call.path,
        "params": call.query or None,
        "headers": call.headers or None,
        "content": call.body or None,
        "timeout": httpx().Timeout(patience_s, read=patience_s + call.wait_s),
    }


class Failure(NamedTuple):
    """Why there was no answer."""

    sentence: str
    sent: bool  # the request may have arrived
    hopeless: bool = False  # it fails again


def failure_of(error: Exception, base: str) -> Failure:
    """What an error of httpx2 means."""
    library = httpx()
    text = str(error) or type(error).__name__
    if isinstance(error, library.ConnectError) and (refusal := _tls_refusal(error)) is not None:
        hint = ": it speaks no TLS, write http://" if "WRONG_VERSION" in str(refusal.reason) else ""
        return Failure(f"no TLS connection to {base}: {text}{hint}", sent=False, hopeless=True)
    if isinstance(error, library.ConnectError | library.ConnectTimeout):
        return Failure(f"no connection to {base}: {text}", sent=False)
    if isinstance(error, library.PoolTimeout):
        return Failure("all connections of this client are in use: raise max_connections", False)
    if isinstance(error, library.UnsupportedProtocol | library.LocalProtocolError):
        return Failure(f"the request cannot be sent: {text}", sent=False, hopeless=True)
    if isinstance(error, library.TimeoutException):
        return Failure(f"{base} did not answer in time", sent=True)
    return Failure(f"the connection to {base} broke: {text}", sent=True)


def _tls_refusal(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error below an error, if the next handshake fails in the same way.

    An end of the stream is no such error: a broker that restarts behind a proxy causes it.
    """
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, _ENDS):
            return error
        error = error.__cause__ or error.__context__
    return None
