"""The ASGI app: the native interface and the dialects, behind one edge."""

from collections.abc import Sequence

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from penstock.server import ws
from penstock.server.dialects import epochqueue, rivetq
from penstock.server.dialects.own_errors import as_said_at
from penstock.server.docs_pages import DOCS_ROUTES
from penstock.server.edge import Edge
from penstock.server.openapi import openapi_route
from penstock.server.problems import PROBLEM_JSON, Problem, problem_of
from penstock.server.refusals import NoSuchRoute
from penstock.server.rest.all_endpoints import ENDPOINTS
from penstock.server.rest.endpoint import Call, Endpoint, Reply
from penstock.server.rest.message_out import encode
from penstock.server.root_page import ROOT_ROUTE
from penstock.server.service import Service, service_of


class _Part(Convertor[str]):
    """A part of a path, whatever is in it, nothing as well: whether it is a name is checked, so
    that the answer says what is wrong with it."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("part", _Part())


def build_app(service: Service) -> ASGIApp:
    """The app of one server."""
    routes = [
        *_native_routes(ENDPOINTS),
        openapi_route(ENDPOINTS),
        ROOT_ROUTE,
        *DOCS_ROUTES,
        *rivetq.ROUTES,
        *epochqueue.ROUTES,
        *ws.ROUTES,
    ]
    return Edge(Router(routes, redirect_slashes=False, default=_not_found), service)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a path that no route has. A WebSocket is refused in its handshake."""
    error = NoSuchRoute("there is nothing at this path: see /docs")
    if scope["type"] != "websocket":
        raise error
    problem = as_said_at(scope["raw_path"], problem_of(error))
    await WebSocket(scope, receive, send).send_denial_response(
        Response(problem.body(), problem.status, dict(problem.headers), problem.content_type)
    )


def _native_routes(endpoints: Sequence[Endpoint]) -> list[Route]:
    """A route for each path, so that a wrong method is answered with all that are right."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [
        Route(path.replace("}", ":part}"), _answering(path, methods), methods=list(methods))
        for path, methods in by_path.items()
    ]


def _answering(path: str, methods: dict[str, Endpoint]):  # type: ignore[no-untyped-def]
    async def answer(request: Request) -> Response:
        request.state.route = path
        endpoint = methods["GET" if request.method == "HEAD" else request.method]
        call = Call(service_of(request), request, endpoint)
        await call.admit()
        if endpoint.is_large:
            async with call.service.large_answers:
                call.service.held.check_room()  # of what is there once it is its turn
                made = await endpoint.handler(call)
                if isinstance(made, Reply):  # sent without a pause, and counted by the connection
                    call.service.held.check_room_for(len(made.body))
        else:
            made = await endpoint.handler(call)
        if made is None:
            return Response(status_code=204)
        if isinstance(made, Problem):
            return Response(
                made.body(request.state.request_id), made.status, made.headers, PROBLEM_JSON
            )
        if isinstance(made, Reply):
            return Response(made.body, made.status, dict(made.headers), made.content_type)
        return Response(
            encode(made),
            200 if 200 in endpoint.also else endpoint.status,
            media_type="application/json",
        )

    return answer
