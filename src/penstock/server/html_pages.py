"""HTML pages: `GET /` introduces the server, `/docs` shows every call and sends requests.

They load nothing from other servers. `GET /` answers programs in JSON or text.
"""

from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files

import msgspec

from penstock.server.call import Call
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


def _root(call: Call) -> Reply:
    accept = call.headers.get(b"accept", b"")
    headers = (*_HEADERS, ("vary", "accept"))
    if b"text/html" in accept:
        page = _html(_base(call)).encode()
        return Reply(page, content_type="text/html; charset=utf-8", headers=headers)
    if b"application/json" in accept:
        return Reply(_json(), content_type=JSON, headers=headers)
    text = _text(_base(call)).encode()
    return Reply(text, content_type="text/plain; charset=utf-8", headers=headers)


def _base(call: Call) -> str:
    """Return the URL of this server as the caller used it, for the example."""
    scheme = "https" if call.connection.is_tls else "http"
    return f"{scheme}://{call.headers.get(b'host', b'localhost').decode('latin-1')}"


ROUTES = (
    Route("GET", "/", _root, needs_key=False),
    *(Route("GET", path, _page, needs_key=False) for path in _PAGES),
)
