"""The OpenAPI document and the routes are one and the same."""

import re
from typing import Any

import httpx2
import pytest
from starlette.routing import Route

from penstock.server.app import build_app
from penstock.server.openapi import document
from penstock.server.rest.all_endpoints import ENDPOINTS
from tests.server.running import RunningServer

# Pages, and the document itself.
BESIDE = {"/", "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css"}


def routes_of(server: RunningServer) -> set[tuple[str, str]]:
    """What the app of a running server answers, of the native interface."""
    app: Any = build_app(server.server.service)
    found = set()
    for route in app.router.routes:
        if isinstance(route, Route) and re.match(
            "/(api/v1|livez|readyz|metrics|debug)", route.path
        ):
            path = route.path.replace(":part}", "}")
            found |= {(method, path) for method in route.methods or () if method != "HEAD"}
    return found


def test_every_route_is_in_the_document_and_every_operation_is_a_route(
    server: RunningServer, http: httpx2.Client
) -> None:
    described = http.get("/openapi.json").json()
    operations = {
        (method.upper(), path) for path, methods in described["paths"].items() for method in methods
    }
    assert operations - {("GET", path) for path in BESIDE} == routes_of(server)


def test_operations_are_described() -> None:
    described = document(ENDPOINTS)
    ids = []
    for path, methods in described["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            assert operation["summary"].endswith((".", "?")), path
            named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
    assert len(set(ids)) == len(ids)


def test_every_reference_leads_somewhere() -> None:
    described = document(ENDPOINTS)
    names = set(described["components"]["schemas"])
    assert set(re.findall(r"'#/components/schemas/(\w+)'", str(described))) <= names
    assert "GroupName" not in names


@pytest.mark.parametrize("name", ["LeaseBody", "SettleBody", "NewMessageBody", "QueueSettingsBody"])
def test_bodies_say_that_nothing_else_is_taken(name: str) -> None:
    assert document(ENDPOINTS)["components"]["schemas"][name]["additionalProperties"] is False
