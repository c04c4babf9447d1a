"""The OpenAPI document, generated from the endpoints and their structs."""

import re
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, Any

import msgspec

from penstock.names import PATTERN
from penstock.server.call import Call
from penstock.server.field_notes import REQUESTS, example_of, explain
from penstock.server.problems import CODES, PROBLEM_JSON
from penstock.server.replies import JSON, Reply
from penstock.server.rest.endpoint import Endpoint
from penstock.server.rest.structs import NewMessageBody
from penstock.server.routes import Route

PATH = "/openapi.json"
_NAME = {"type": "string", "pattern": f"^{PATTERN}$"}
_ANY_ROUTE = (400, 401, 403, 413, 414, 415, 429, 431, 500, 503, 507)
_SUMMARIES = {
    "id": "The id of a message.",
    "namespace": "A namespace.",
    "queue": "A queue of the namespace.",
    "group": "A consumer group of the queue.",
    "log": "messages, events or snapshots.",
    "base": "The first seq of a segment; the event seq of a snapshot.",
    "folder": "A folder of the staging area: nanoseconds, a minus, 16 hexadecimal digits.",
    "name": "A staged segment: a number and .log.",
}


class ProblemBody(msgspec.Struct, omit_defaults=True):
    """RFC 9457. `code` is stable; `detail` is for people."""

    type: str
    title: str
    status: int
    code: Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(CODES)})]
    detail: str
    request_id: str = ""
    retry_after_s: float | msgspec.UnsetType = msgspec.UNSET
    results: list[Any] | msgspec.UnsetType = msgspec.UNSET


def openapi_route(endpoints: Sequence[Endpoint]) -> Route:
    """GET /openapi.json."""

    @cache
    def body() -> bytes:
        return msgspec.json.encode(document(endpoints))

    def answer(_: Call) -> Reply:
        return Reply(body())

    return Route("GET", PATH, answer, needs_key=False)


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the whole document."""
    kinds: list[Any] = [ProblemBody, NewMessageBody]
    for endpoint in endpoints:
        kinds += [kind for kind in (endpoint.body, *_answers(endpoint)) if kind is not None]
        kinds += [parameter.schema for parameter in endpoint.query]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    explain(components)
    of_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, of_kind, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": version("penstock"),
            "description": "A durable message and task queue. Durations are seconds; times are "
            "RFC 3339 in answers, RFC 3339 or milliseconds since 1970 in requests.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(
    endpoint: Endpoint, of_kind: dict[int, Any], components: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "parameters": [
            *(_path_parameter(name) for name in re.findall(r"{(\w+)}", endpoint.path)),
            *(
                {
                    "name": parameter.name,
                    "in": "query",
                    "required": parameter.required,
                    "description": parameter.description,
                    "schema": of_kind[id(parameter.schema)],
                }
                for parameter in endpoint.query
            ),
        ],
        "responses": _responses(endpoint, of_kind, components),
        "security": [{"key": []}, {"bearer": []}, {}] if endpoint.verb else [],
    }
    if endpoint.verb:
        operation["description"] = f"Needs a key with the verb `{endpoint.verb}`, where keys are."
    if endpoint.body is not None:
        form: dict[str, Any] = {"schema": _schema(endpoint.body, of_kind)}
        content = {_media_type(endpoint.body): form}
        if endpoint.handler.__name__ in REQUESTS:
            form["example"] = REQUESTS[endpoint.handler.__name__]
        if endpoint.handler.__name__ == "publish_messages":
            content["application/octet-stream"] = {"schema": {}}  # the body is the payload
        operation["requestBody"] = {"required": not endpoint.body_optional, "content": content}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    schema = _NAME if name in ("namespace", "queue", "group") else {"type": "string"}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _SUMMARIES.get(name, ""),
        "schema": schema,
    }


def _responses(
    endpoint: Endpoint, of_kind: dict[int, Any], components: dict[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    schemas = [_schema(kind, of_kind) for kind in _answers(endpoint)]
    good = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    for status in sorted({endpoint.status, *endpoint.also, *_ANY_ROUTE}):
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if status < 300:
            if endpoint.answer is not None:
                form: dict[str, Any] = {"schema": good}
                if _media_type(endpoint.answer) == JSON:
                    form["example"] = example_of(good, components)
                answer["content"] = {_media_type(endpoint.answer): form}
        else:
            problem = {"$ref": "#/components/schemas/ProblemBody"}
            answer["content"] = {PROBLEM_JSON: {"schema": problem}}
            if status == 503 and endpoint.path == "/readyz":
                answer["content"] = {JSON: {"schema": good}}
        found[str(status)] = answer
    return found


def _answers(endpoint: Endpoint) -> tuple[Any, ...]:
    """Return the types of a successful answer."""
    answer = endpoint.answer
    return answer if isinstance(answer, tuple) else () if answer is None else (answer,)


def _schema(kind: Any, of_kind: dict[int, Any]) -> Any:
    return {} if kind is bytes else of_kind[id(kind)]  # bytes travel as they are, not in JSON


def _media_type(kind: Any) -> str:
    return {str: "text/plain", bytes: "application/octet-stream"}.get(kind, JSON)
