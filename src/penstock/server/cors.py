"""Cross-origin requests: which pages may call, and the headers that tell a browser.

A browser sends simple requests without a preflight, so a page of any site could publish to a broker
on its user's machine. Changes requested by pages of other origins are refused.
"""

from collections.abc import Mapping
from ipaddress import ip_address

from penstock.server.problems import OriginRefused
from penstock.server.settings import ServerSettings

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_REMEMBERED_S = "600"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

Headers = list[tuple[str, str]]


def grant(settings: ServerSettings, headers: Mapping[bytes, bytes]) -> Headers:
    """Return the headers that let a page of an allowed origin read the answer."""
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
    """Return the headers that answer a preflight request; None if this is not one.

    Raise OriginRefused if the origin is not allowed; developer tools show the text.
    """
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
    settings: ServerSettings, method: str, headers: Mapping[bytes, bytes], *, needs_key: bool
) -> None:
    """Raise OriginRefused for a change by a page that is neither of this server nor allowed."""
    origin = headers.get(b"origin")
    if method in _SAFE or origin is None or _is_allowed(settings, origin):
        return
    if not is_same_origin(headers, needs_key=needs_key):
        raise refusal("change anything", headers)


def refusal(what: str, headers: Mapping[bytes, bytes]) -> OriginRefused:
    """Return the error for a page that is not allowed to do something."""
    origin = headers.get(b"origin", b"a page without origin").decode("latin-1")
    return OriginRefused(
        f"pages of {origin} may not {what} here: the setting cors_origins in [server] "
        f"(PENSTOCK_SERVER_CORS_ORIGINS) names the origins that may"
    )


def is_same_origin(headers: Mapping[bytes, bytes], *, needs_key: bool) -> bool:
    """Return whether a page of this server sent the request. A proxy may have terminated TLS.

    Without keys, only `localhost` and addresses count as this server's names. Any site can let its
    own name lead to this machine (DNS rebinding), and its pages are then of the same origin.
    """
    host = headers.get(b"host", b"")
    origin = headers.get(b"origin")
    is_same = origin in (b"http://" + host, b"https://" + host) and bool(host)
    return is_same and (needs_key or _is_local_name(host.decode("latin-1")))


def _is_local_name(host: str) -> bool:
    """Return whether no name server was asked for this host."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() == "localhost" or name.lower().endswith(".localhost")
    return True


def _is_allowed(settings: ServerSettings, origin: bytes) -> bool:
    allowed = settings.cors_origins
    return "*" in allowed or origin.decode("latin-1") in allowed
