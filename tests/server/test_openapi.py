"""The OpenAPI document and the routes are one and the same."""

import re

import httpx2
import msgspec
import pytest

from penstock.server.field_notes import NOTES, REQUESTS
from penstock.server.openapi import document
from penstock.server.rest.all_endpoints import ENDPOINTS
from penstock.server.rest.endpoint import Endpoint
from tests.server.running import RunningServer

# Pages, and the document itself.
BESIDE = {"/", "/openapi.json", "/docs", "/docs/docs.js", "/docs/docs.css"}


def routes_of(server: RunningServer) -> set[tuple[str, str]]:
    """What the app of a running server answers, of the native interface."""
    return {
        (route.method, route.path)
        for route in server.server.service.routes.routes
        if re.match("/(api/v1|livez|readyz|metrics|debug)", route.path)
    }


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


# -- notes and examples ----------------------------------------------------------------------------


def test_every_field_of_a_request_or_answer_is_explained() -> None:
    missing = [
        f"{struct}.{field}"
        for struct, schema in document(ENDPOINTS)["components"]["schemas"].items()
        for field, inner in schema.get("properties", {}).items()
        if "description" not in inner and struct != "QueueSettingsBody"  # docs/settings.md
    ]
    assert missing == []


def test_every_note_is_of_a_field_that_is_there() -> None:
    components = document(ENDPOINTS)["components"]["schemas"]
    fields = {
        name
        for struct, schema in components.items()
        for field in schema.get("properties", {})
        for name in (field, f"{struct}.{field}")
    }
    assert set(NOTES) - fields == set()


@pytest.mark.parametrize(
    "endpoint",
    [one for one in ENDPOINTS if one.body not in (None, bytes)],
    ids=lambda one: one.handler.__name__,
)
def test_the_example_of_a_request_is_one_that_is_read(endpoint: Endpoint) -> None:
    body = msgspec.json.encode(REQUESTS[endpoint.handler.__name__])
    assert msgspec.json.decode(body, type=endpoint.body)


@pytest.mark.parametrize(
    "endpoint",
    [one for one in ENDPOINTS if one.answer not in (None, bytes, str)],
    ids=lambda one: one.handler.__name__,
)
def test_the_example_of_an_answer_has_the_fields_of_its_struct(endpoint: Endpoint) -> None:
    operation = document(ENDPOINTS)["paths"][endpoint.path][endpoint.method.lower()]
    example = operation["responses"][str(endpoint.status)]["content"]["application/json"]["example"]
    kind = endpoint.answer[0] if isinstance(endpoint.answer, tuple) else endpoint.answer
    assert msgspec.json.decode(msgspec.json.encode(example), type=kind) is not None
