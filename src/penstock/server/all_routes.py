"""Every route of the server: the native interface, its pages, and the dialects."""

from penstock.server import dashboard, html_pages, ws
from penstock.server.dialects import epochqueue, rivetq
from penstock.server.openapi import openapi_route
from penstock.server.rest.all_endpoints import ENDPOINTS
from penstock.server.routes import Route, RouteTable


def all_routes(*more: Route) -> RouteTable:
    """Return the routes of HTTP, and those that are made for one server."""
    return RouteTable(
        [
            *(endpoint.route for endpoint in ENDPOINTS),
            openapi_route(ENDPOINTS),
            *html_pages.ROUTES,
            *dashboard.ROUTES,
            *rivetq.ROUTES,
            *epochqueue.ROUTES,
            *more,
        ]
    )


def all_streams() -> RouteTable:
    """Return the routes of WebSockets."""
    return RouteTable(ws.ROUTES)
