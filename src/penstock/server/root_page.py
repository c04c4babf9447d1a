"""`GET /`: what this is, and where to go. HTML for browsers, JSON or text for programs."""

from functools import cache
from html import escape
from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.server.docs_pages import PAGE_HEADERS

_ABOUT = "a durable message and task queue"
_LINKS = {
    "/docs": "every call, with its fields and examples, to be tried from a browser",
    "/openapi.json": "the same for programs (OpenAPI 3.1)",
    "/api/v1/namespaces": "the namespaces; their queues are at /api/v1/namespaces/default/queues",
    "/metrics": "counts and times, for Prometheus",
    "/readyz": "whether calls are taken; /livez: whether the process answers",
}
_FIRST_CALL = """\
curl -H 'Content-Type: application/json' -d '{{"payload": "hello"}}' \\
    {base}/api/v1/namespaces/default/queues/orders/messages"""


@cache
def _json() -> bytes:
    return msgspec.json.encode(
        {"name": "penstock", "version": version("penstock"), "links": _LINKS}
    )


def _text(base: str) -> str:
    links = "\n".join(f"  {path:<20} {meaning}" for path, meaning in _LINKS.items())
    call = _FIRST_CALL.format(base=base)
    return f"Penstock {version('penstock')}, {_ABOUT}\n\n{links}\n\nPublish a message:\n\n{call}\n"


def _html(base: str) -> str:
    links = "".join(
        f'<dt><a href="{path}">{path}</a></dt><dd>{meaning}</dd>'
        for path, meaning in _LINKS.items()
    )
    call = escape(_FIRST_CALL.format(base=base))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>Penstock</title><link rel="stylesheet" href="/docs/docs.css"></head>'
        f"<body><h1>Penstock</h1><p>{_ABOUT.capitalize()}, version {version('penstock')}.</p>"
        f"<dl>{links}</dl><p>Publish a message:</p><pre>{call}</pre></body></html>\n"
    )


async def _root(request: Request) -> Response:
    request.state.route = "/"
    accept = request.headers.get("accept", "")
    headers = {**PAGE_HEADERS, "vary": "accept"}
    if "text/html" in accept:
        return Response(_html(_base(request)), headers=headers, media_type="text/html")
    if "application/json" in accept:
        return Response(_json(), headers=headers, media_type="application/json")
    return Response(_text(_base(request)), headers=headers, media_type="text/plain")


def _base(request: Request) -> str:
    """The address by which the caller came, for the example."""
    return f"{request.scope['scheme']}://{request.headers.get('host', 'localhost')}"


ROOT_ROUTE = Route("/", _root, methods=["GET"])
