# cython: annotation_typing=False
"""One table of all routes: a method and a path lead to a handler, and to where it is counted.

Requests are counted in plain lists, which `http_metrics` makes series of. This costs two additions
for each request; the histogram of prometheus-client costs as much as reading a small body.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

import httptools

from penstock.broker import DEFAULT_NAMESPACE, QueueName
from penstock.model import NS
from penstock.server.problems import MethodNotAllowed, NoSuchRoute, Refused

Handler = Callable[[Any], Any]  # see `call`; of a WebSocket: see `ws.stream`
_MOST_REMEMBERED = 4096
_LONGEST_REMEMBERED = 256  # bytes of a path
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
_BUCKETS_NS = tuple(round(bucket * NS) for bucket in BUCKETS_S)
_FIRST_NS = _BUCKETS_NS[0]
UNKNOWN_ROUTE = "unknown"


class Route:
    """A method of a path, and its handler."""

    __slots__ = (
        "error_reply",
        "handler",
        "is_large",
        "method",
        "needs_key",
        "parameters",
        "path",
        "status",
    )

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        needs_key: bool = True,
        parameters: frozenset[str] | None = None,
        status: int = 200,
        is_large: bool = False,
        error_reply: "Callable[[Any, BaseException], Any] | None" = None,
    ) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        self.needs_key = needs_key
        self.parameters = parameters  # of the query string; None: any
        self.status = status  # of a good answer
        self.is_large = is_large  # its answer may be large: few are made at a time
        self.error_reply = error_reply  # of a call and its error; None: as at all paths

    @property
    def methods(self) -> frozenset[str]:
        return frozenset({self.method, "HEAD"} if self.method == "GET" else {self.method})


def _no_handler(_: Any) -> None:
    raise AssertionError("there is no route")


class Times:
    """The durations of the requests that one route answered with one status."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_NS) + 1)
        self.total_ns = 0

    def add(self, took_ns: int) -> None:
        """Count a request."""
        self.counts[0 if took_ns <= _FIRST_NS else bisect_left(_BUCKETS_NS, took_ns)] += 1
        self.total_ns += took_ns


class Target:
    """The route of a path, with the values of its named parts."""

    __slots__ = ("_queue", "params", "route", "times")

    def __init__(self, route: Route, params: dict[str, str]) -> None:
        self.route = route
        self.params = params  # parts of the path, by name
        self.times: dict[int, Times] = {}  # where its requests are counted, by status
        self._queue: QueueName | None = None

    def queue(self) -> QueueName:
        """Return the queue that the path names. Raise InvalidInput if that is not a name."""
        if self._queue is None:
            self._queue = QueueName.checked(self.namespace, self.params["queue"])
        return self._queue

    @property
    def namespace(self) -> str:
        """Return the namespace that the path names, unchecked."""
        return self.params.get("namespace", DEFAULT_NAMESPACE)


NO_TARGET = Target(Route("", UNKNOWN_ROUTE, _no_handler, needs_key=False), {})


class _Path:
    """A path with named parts, and its methods."""

    def __init__(self, template: str) -> None:
        self.parts = [
            (True, part[1:-1]) if part.startswith("{") else (False, part)
            for part in template.split("/")
        ]
        self.methods: dict[str, Route] = {}

    def match(self, parts: list[str]) -> dict[str, str] | None:
        """Return the named parts; None if the path does not match. Handlers refuse empty parts."""
        params: dict[str, str] = {}
        for (is_named, name), part in zip(self.parts, parts, strict=True):
            if is_named:
                params[name] = part
            elif name != part:
                return None
        return params


class RouteTable:
    """Finds routes by path, with a cache of limited size."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._by_length: dict[int, list[_Path]] = {}
        by_template: dict[str, _Path] = {}
        for route in self.routes:
            path = by_template.get(route.path)
            if path is None:
                path = by_template[route.path] = _Path(route.path)
                self._by_length.setdefault(len(path.parts), []).append(path)
            for method in route.methods:
                path.methods[method] = route
        self._remembered: dict[tuple[str, bytes], Target] = {}

    def find(self, method: str, url: bytes) -> tuple[Target, bytes]:
        """Return the target and the query string of a URL. Raise an error if there is no route."""
        target = self._remembered.get((method, url))  # of a URL without a query
        if target is not None:
            return target, b""
        path, query = split_url(url)
        target = self._remembered.get((method, path))
        if target is None:
            target = self._search(method, path)
            if len(path) <= _LONGEST_REMEMBERED:
                if len(self._remembered) >= _MOST_REMEMBERED:
                    self._remembered.clear()
                self._remembered[method, path] = target
        return target, query

    def _search(self, method: str, path: bytes) -> Target:
        parts = decoded_path(path).split("/")
        allowed: set[str] = set()
        for one in self._by_length.get(len(parts), ()):
            params = one.match(parts)
            if params is not None:
                route = one.methods.get(method)
                if route is not None:
                    return Target(route, params)
                allowed |= one.methods.keys()
        if allowed:
            text = ", ".join(sorted(allowed))
            raise MethodNotAllowed(f"this path has only {text}", text)
        raise NoSuchRoute("there is nothing at this path: see /docs")


def split_url(url: bytes) -> tuple[bytes, bytes]:
    """Return the path and the query string of a URL."""
    if b"#" in url:
        raise Refused("the URL has a #: a fragment is not sent to a server, and # itself is %23")
    if url[:1] == b"/":
        path, _, query = url.partition(b"?")
        return path, query
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        raise Refused("the URL is not valid") from None
    return parsed.path or b"/", parsed.query or b""


def decoded_path(raw: bytes) -> str:
    """Decode a percent-encoded path, except slashes: `a%2Fb` is one part of a path, not two."""
    text = raw.decode("latin-1")
    if "%" not in text:
        return text
    return unquote(text.replace("%2F", "%252F").replace("%2f", "%252f"))
