"""Pages of other sites: which may call, and what a browser is told.

A browser sends simple requests without asking first, so a page of any site could publish to a
broker on the machine of whoever looks at it. A change that a foreign page asks for is refused.
"""

from collections.abc import Mapping

from penstock.server.problems import OriginRefused
from penstock.server.settings import ServerSettings

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_REMEMBERED_S = "600"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

Headers = list[tuple[str, str]]


def grant(settings: ServerSettings, headers: Mapping[bytes, bytes]) -> Headers:
    """The headers that let the page of an allowed origin read the answer."""
    origin = headers.get(b"origin")
    if origin is None or not _is_allowed(settings, origin):
        return []
    return [
        ("access-control-allow-origin", origin.decode("latin-1")),
        ("access-control-expose-headers", "retry-after, x-request-id"),
        ("vary", "origin"),
    ]


def preflight(
    settings: ServerSettings, method: str, headers: Mapping[bytes, bytes]
) -> Headers | None:
    """The answer to a browser that asks first; None if this is not that. OriginRefused if its page
    is of no allowed origin: a browser does not show the text, but whoever looks closer sees it."""
    if method != "OPTIONS" or b"access-control-request-method" not in headers:
        return None
    granted = grant(settings, headers)
    if not granted:
        raise refusal("call", headers)
    wanted = headers.get(b"access-control-request-headers", b"").decode("latin-1")
    return [
        *granted,
        ("access-control-allow-methods", _METHODS),
        ("access-control-allow-headers", wanted or "content-type"),
        ("access-control-max-age", _REMEMBERED_S),
    ]


def refuse_foreign_change(
    settings: ServerSettings, method: str, headers: Mapping[bytes, bytes]
) -> None:
    """OriginRefused for a change by a page of neither this server nor an allowed origin."""
    origin = headers.get(b"origin")
    if method in _SAFE or origin is None or _is_allowed(settings, origin):
        return
    if not is_same_origin(headers):
        raise refusal("change anything", headers)


def refusal(what: str, headers: Mapping[bytes, bytes]) -> OriginRefused:
    """Say that a page may not do something, and which setting allows it."""
    origin = headers.get(b"origin", b"a page without origin").decode("latin-1")
    return OriginRefused(
        f"pages of {origin} may not {what} here: the setting cors_origins in [server] "
        f"(PENSTOCK_SERVER_CORS_ORIGINS) names the origins that may"
    )


def is_same_origin(headers: Mapping[bytes, bytes]) -> bool:
    """Did a page of this very server send it? A proxy may have taken off the encryption."""
    host = headers.get(b"host", b"")
    origin = headers.get(b"origin")
    return origin in (b"http://" + host, b"https://" + host) and bool(host)


def _is_allowed(settings: ServerSettings, origin: bytes) -> bool:
    allowed = settings.cors_origins
    return "*" in allowed or origin.decode("latin-1") in allowed
