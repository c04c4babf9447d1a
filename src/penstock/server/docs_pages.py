"""/docs: a page that shows every call and lets one try it. It needs nothing but this server."""

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_PAGES = {
    "/docs": ("docs.html", "text/html"),
    "/docs/docs.js": ("docs.js", "text/javascript"),
    "/docs/docs.css": ("docs.css", "text/css"),
}


@cache
def _content(name: str) -> bytes:
    return (files("penstock.server") / "pages" / name).read_bytes()


async def _page(request: Request) -> Response:
    path = request.scope["path"]
    name, media_type = _PAGES[path]
    request.state.route = path
    return Response(_content(name), headers=PAGE_HEADERS, media_type=media_type)


DOCS_ROUTES = [Route(path, _page, methods=["GET"]) for path in _PAGES]
