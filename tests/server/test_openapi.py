"""The OpenAPI document and the routes are one and the same."""

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import openapi_spec_validator
import pytest
from openapi_schema_validator import OAS31Validator

from penstock.server.field_notes import NOTES, REQUESTS, SETTINGS
from penstock.server.openapi import document
from penstock.server.problem_schemas import CODES
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


# -- what generators need --------------------------------------------------------------------------


def test_the_document_is_valid() -> None:
    openapi_spec_validator.validate(document(ENDPOINTS))


def test_a_field_that_may_be_missing_has_no_default() -> None:
    """openapi-typescript takes a field with a default as one that is always there."""
    schemas = document(ENDPOINTS)["components"]["schemas"]
    assert "'default'" not in str(schemas)
    assert "duplicate" not in schemas["PublishedMessage"]["required"]
    assert schemas["LeaseBody"]["properties"]["max"]["description"].endswith("Default: 1.")


def test_no_object_is_taken_as_one_without_fields() -> None:
    schemas = document(ENDPOINTS)["components"]["schemas"]
    vague = [
        f"{struct}.{field}"
        for struct, schema in schemas.items()
        for field, inner in schema.get("properties", {}).items()
        if inner.get("type") == "object" and "additionalProperties" not in inner
    ]
    assert vague == []


def test_each_status_has_its_own_codes() -> None:
    described = document(ENDPOINTS)
    schemas = described["components"]["schemas"]
    for name in described["components"]["responses"]:
        status = int(name.removeprefix("Problem"))
        properties = schemas[name]["properties"]
        assert properties["status"]["const"] == status
        assert properties["code"]["$ref"] == f"#/components/schemas/Code{status}"
        assert schemas[f"Code{status}"]["enum"] == list(CODES[status])
        assert ("retry_after_s" in schemas[name]["required"]) == (status in (429, 503, 507))
    for methods in described["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                reference = f"#/components/responses/Problem{status}"
                assert "content" in answer or status == "204" or answer == {"$ref": reference}


def test_each_operation_has_one_tag_that_is_declared() -> None:
    described = document(ENDPOINTS)
    declared = {tag["name"] for tag in described["tags"]}
    used = {
        tuple(operation["tags"])
        for methods in described["paths"].values()
        for operation in methods.values()
    }
    assert used == {(name,) for name in declared}


def forms_in(part: Any) -> Iterator[dict[str, Any]]:
    """Every media type with an example: of requests, answers and errors."""
    if isinstance(part, dict):
        if "example" in part:
            yield part
        for inner in part.values():
            yield from forms_in(inner)


def test_every_example_is_valid_for_its_schema() -> None:
    described = document(ENDPOINTS)
    forms = list(forms_in(described))
    assert len(forms) > 90
    for form in forms:
        root = {**form["schema"], "components": described["components"]}
        OAS31Validator(root).validate(form["example"])


# -- notes and examples ----------------------------------------------------------------------------


def test_every_field_of_a_request_or_answer_is_explained() -> None:
    missing = [
        f"{struct}.{field}"
        for struct, schema in document(ENDPOINTS)["components"]["schemas"].items()
        for field, inner in schema.get("properties", {}).items()
        if "description" not in inner and struct not in SETTINGS
    ]
    assert missing == []


def test_every_note_is_of_a_field_that_is_there() -> None:
    components = document(ENDPOINTS)["components"]["schemas"]
    fields = {
        name
        for struct, schema in components.items()
        for field in schema.get("properties", {})
        for name in (field, f"{re.sub('Problem.*', 'ProblemBody', struct)}.{field}")
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
    (form,) = operation["responses"][str(endpoint.status)]["content"].values()
    example = form["example"]
    assert msgspec.json.decode(msgspec.json.encode(example), type=endpoint.answer) is not None
