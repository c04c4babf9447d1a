"""The dialects page lists every route, and no other."""

from penstock.server import ws
from penstock.server.dialects import epochqueue, rivetq
from tests.docs.pages import rows_with, unquoted


def test_every_route_is_on_the_page() -> None:
    named = {unquoted(row["call"]) for row in rows_with("dialects.md", "call", "body and answer")}
    routes = {
        f"{method} {route.path}"
        for route in (*rivetq.ROUTES, *epochqueue.ROUTES)
        for method in (route.methods or set()) - {"HEAD"}
    }
    streams = {f"WS {route.path}" for route in ws.epochqueue.ROUTES}
    assert named == routes | streams
