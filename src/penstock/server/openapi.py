"""The OpenAPI document, generated from the endpoints and their structs.

It is written for generators of clients, which differ in what they make of a document. A test
generates a client in TypeScript and one in Python from it.
"""

import re
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

import penstock
from penstock.names import PATTERN
from penstock.server.call import Call
from penstock.server.field_notes import REQUESTS, example_of, explain
from penstock.server.problem_schemas import ProblemBody, add_schemas, name_of, responses
from penstock.server.replies import JSON, Reply
from penstock.server.rest.catalogue import QueueSettings, QueueStats
from penstock.server.rest.endpoint import Endpoint
from penstock.server.rest.structs import NewMessageBody
from penstock.server.routes import Route

PATH = "/openapi.json"
_BYTES = "application/octet-stream"
_BINARY = {"type": "string", "format": "binary"}
_NAME = {"type": "string", "pattern": f"^{PATTERN}$"}
_ANY_ROUTE = (400, 401, 403, 413, 414, 415, 429, 431, 500, 503, 507)
# The tag of a path: the first that it matches. Generators make a module or class of each.
_TAGS = (
    ("webhooks", r"/webhooks\b"),
    ("dead letters", r"/(dead|dead_reasons|redrives?|discard)\b"),
    ("groups", r"/(groups|seek)\b"),
    ("schedules", r"/schedules\b"),
    ("files", r"/(segments|staging|adopt|archived)\b"),
    ("messages", r"/(messages|lease|settle)\b"),
    ("queues", r"/queues\b"),
    ("namespaces", r"/namespaces\b"),
    ("keys", r"/keys\b"),
    ("server", ""),
)
_SUMMARIES = {
    "id": "The id of a message.",
    "namespace": "A namespace.",
    "queue": "A queue of the namespace.",
    "group": "A consumer group of the queue.",
    "reader": "The name of a reader, such as a Spark query.",
    "schedule": "A schedule of the queue.",
    "log": "messages, events or snapshots.",
    "base": "The first seq of a segment; the event seq of a snapshot.",
    "folder": "A folder of the staging area: nanoseconds, a minus, 16 hexadecimal digits.",
    "name": "A staged segment: a number and .log.",
}


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
    kinds: list[Any] = [ProblemBody, NewMessageBody, QueueSettings, QueueStats]
    for endpoint in endpoints:
        kinds += [kind for kind in (endpoint.body, endpoint.answer) if kind is not None]
        kinds += [parameter.schema for parameter in endpoint.query]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    explain(components)
    statuses = sorted({status for one in endpoints for status in _problems(one)})
    add_schemas(components, statuses)
    for schema in components.values():
        _adapt(schema)
    of_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, of_kind, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": penstock.__version__,
            "description": "A durable message and task queue. Durations are seconds; times are "
            "RFC 3339 in answers, RFC 3339 or milliseconds since 1970 in requests.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "tags": [{"name": name} for name, _ in _TAGS],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": responses(statuses),
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
        "tags": [_tag(endpoint.path)],
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
            content[_BYTES] = {"schema": _BINARY}  # the body is the payload
            operation["description"] += (
                " An array of messages is taken as well, and answered as by `publish_batch`."
            )
        operation["requestBody"] = {"required": not endpoint.body_optional, "content": content}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    names = ("namespace", "queue", "group", "reader", "schedule")
    schema = _NAME if name in names else {"type": "string"}
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
    good = None if endpoint.answer is None else _schema(endpoint.answer, of_kind)
    for status in (one for one in (endpoint.status, *endpoint.also) if one < 300):
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if good is not None:
            media_type = endpoint.media_type or _media_type(endpoint.answer)
            form: dict[str, Any] = {"schema": good}
            if endpoint.answer not in (str, bytes):
                form["example"] = example_of(good, components)
            answer["content"] = {media_type: form}
        found[str(status)] = answer
    for status in _problems(endpoint):
        found[str(status)] = {"$ref": f"#/components/responses/{name_of(status)}"}
    if endpoint.path == "/readyz":
        found["503"] = {"description": HTTPStatus(503).phrase, "content": {JSON: {"schema": good}}}
    return dict(sorted(found.items()))


def _problems(endpoint: Endpoint) -> list[int]:
    """Return the statuses of errors."""
    return sorted(status for status in {*endpoint.also, *_ANY_ROUTE} if status >= 300)


def _tag(path: str) -> str:
    return next(name for name, pattern in _TAGS if re.search(pattern, path))


def _adapt(schema: dict[str, Any]) -> None:
    """Change the schema of a struct where generators understand it otherwise than it is meant.

    A default is told in the description, because `openapi-typescript` takes a field with a default
    as one that is always there. An object of any fields says so, because to it a plain "object" is
    one without fields.
    """
    for inner in schema.get("properties", {}).values():
        if "$ref" in inner:
            inner.pop("type", None)
        usual = inner.pop("default", None)
        if usual not in (None, "", [], {}):
            told = msgspec.json.encode(usual).decode()
            inner["description"] = f"{inner.get('description', '')} Default: {told}.".strip()
        for one in (inner, *inner.get("anyOf", ())):
            if one.get("type") == "object" and "additionalProperties" not in one:
                one["additionalProperties"] = True


def _schema(kind: Any, of_kind: dict[int, Any]) -> Any:
    return _BINARY if kind is bytes else of_kind[id(kind)]  # bytes travel as they are


def _media_type(kind: Any) -> str:
    return {str: "text/plain", bytes: _BYTES}.get(kind, JSON)
