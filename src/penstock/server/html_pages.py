"""`GET /`: the dashboard for browsers, the places to go for programs. `/docs` shows every call.

The page of `/docs` sends requests. It loads nothing from other servers.
"""

from collections.abc import Coroutine
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

import penstock
from penstock.server import dashboard
from penstock.server.call import Answer, Call
from penstock.server.dashboard.visit import HOME
from penstock.server.replies import JSON, Reply
from penstock.server.routes import Route

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    ("content-security-policy", _POLICY),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
)
_PAGES = {
    "/docs": ("docs.html", "text/html"),
    "/docs/docs.js": ("docs.js", "text/javascript"),
    "/docs/docs.css": ("docs.css", "text/css"),
}


@cache
def _content(name: str) -> bytes:
    return (files("penstock.server") / "pages" / name).read_bytes()


def _page(call: Call) -> Reply:
    name, media_type = _PAGES[call.target.route.path]
    return Reply(_content(name), content_type=f"{media_type}; charset=utf-8", headers=_HEADERS)


# -- the root --------------------------------------------------------------------------------------

_ABOUT = "a durable message and task queue"
_LINKS = {
    HOME: "queues, messages, dead letters, webhooks and keys, in a browser",
    "/docs": "every call, with its fields and examples, to be tried from a browser",
    "/openapi.json": "the same for programs (OpenAPI 3.1)",
    "/api/v1/namespaces": "the namespaces; their queues are at /api/v1/namespaces/default/queues",
    "/metrics": "counts and times, for Prometheus",
    "/readyz": "whether calls are taken; /livez: whether the process answers",
}
_FIRST_CALL = """\
curl -H 'Content-Type: application/json' -d '{{"payload": "hello"}}' \\
    {base}/api/v1/namespaces/default/queues/orders/messages"""


def _links(call: Call) -> dict[str, str]:
    if call.service.settings.dashboard:
        return _LINKS
    return {path: meaning for path, meaning in _LINKS.items() if path != HOME}


def _json(links: dict[str, str]) -> bytes:
    return msgspec.json.encode(
        {"name": "penstock", "version": penstock.__version__, "links": links}
    )


def _text(base: str, links_: dict[str, str]) -> str:
    links = "\n".join(f"  {path:<20} {meaning}" for path, meaning in links_.items())
    call = _FIRST_CALL.format(base=base)
    return f"Penstock {penstock.__version__}, {_ABOUT}\n\n{links}\n\nPublish a message:\n\n{call}\n"


def _root(call: Call) -> "Answer | Coroutine[Any, Any, Answer]":
    accept = call.headers.get(b"accept", b"")
    headers = (*_HEADERS, ("vary", "accept"))
    if call.service.settings.dashboard and (b"text/html" in accept or b"event-stream" in accept):
        return dashboard.root(call)
    if b"application/json" in accept:
        return Reply(_json(_links(call)), content_type=JSON, headers=headers)
    text = _text(_base(call), _links(call)).encode()
    return Reply(text, content_type="text/plain; charset=utf-8", headers=headers)


def _base(call: Call) -> str:
    """Return the URL of this server as the caller used it, for the example."""
    scheme = "https" if call.connection.is_tls else "http"
    return f"{scheme}://{call.headers.get(b'host', b'localhost').decode('latin-1')}"


ROUTES = (
    Route("GET", "/", _root, needs_key=False),
    *(Route("GET", path, _page, needs_key=False) for path in _PAGES),
)
