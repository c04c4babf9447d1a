"""Errors in the OpenAPI document: a schema and a response for each status.

The schema of a status has its `status` and its codes as constants. So a generated client has a
union of them, and a test of `status` (or `code`) tells which one it is.
"""

from collections.abc import Collection
from copy import deepcopy
from http import HTTPStatus
from typing import Annotated, Any

import msgspec

from penstock.server.problems import KINDS, PROBLEM_JSON
from penstock.server.rest.structs import SettledOne

_BY_STATUS: dict[int, list[str]] = {}
for _kind in KINDS.values():
    _BY_STATUS.setdefault(_kind.status, []).append(_kind.code)
CODES = {status: tuple(dict.fromkeys(codes)) for status, codes in sorted(_BY_STATUS.items())}
RETRIED = frozenset(kind.status for kind in KINDS.values() if kind.retry)
_WITH_RESULTS = (400, 410)  # of a settle

# An error of each status, for people.
_EXAMPLES = {
    400: ("invalid_input", "priority is 12; it must be from 0 to 9"),
    401: ("key_refused", "a key is needed: X-Api-Key, or Authorization: Bearer"),
    403: ("not_allowed", "the key does not allow publish in default"),
    404: ("no_such_queue", "there is no queue default/orders"),
    409: ("already_exists", "namespace shop exists"),
    410: ("receipt_invalid", "the lease has ended"),
    413: ("payload_too_large", "the payload has 20,000,000 bytes; the limit is 16,777,216"),
    414: ("url_too_long", "the URL is longer than 8,192 bytes"),
    415: ("not_json", "the content type is text/plain; it must be application/json"),
    429: ("queue_full", "the queue has 10,000 messages: consume some, or raise max_messages"),
    431: ("headers_too_large", "the headers are larger than 16,384 bytes"),
    500: ("internal", "something went wrong inside the server"),
    501: ("not_supported", "the store of this broker has no segment files"),
    503: ("overloaded", "too many connections: nothing was done"),
    507: ("disk_full", "the disk is full: publishing is refused until space is free"),
}


class ProblemBody(msgspec.Struct, omit_defaults=True):
    """RFC 9457. `code` is stable; `detail` is for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str | msgspec.UnsetType = msgspec.UNSET
    retry_after_s: Annotated[float, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    results: list[SettledOne] | msgspec.UnsetType = msgspec.UNSET


def name_of(status: int) -> str:
    """Return the name of the schema, and of the response, of errors with a status."""
    return f"Problem{status}"


def add_schemas(components: dict[str, Any], statuses: Collection[int]) -> None:
    """Replace the schema of `ProblemBody` by one for each status. `Problem` is any of them."""
    general = components.pop(ProblemBody.__name__)
    made = {name_of(status): _schema(general, status) for status in statuses}
    components |= made
    for status in statuses:
        components[f"Code{status}"] = {"type": "string", "enum": list(CODES[status])}
    components["Problem"] = {
        "description": general["description"],
        "oneOf": [{"$ref": f"#/components/schemas/{name}"} for name in made],
    }


def _schema(general: dict[str, Any], status: int) -> dict[str, Any]:
    schema = deepcopy(general)
    schema["title"] = name_of(status)
    properties = schema["properties"]
    properties["status"] |= {"const": status}
    del properties["code"]["type"]
    properties["code"]["$ref"] = f"#/components/schemas/Code{status}"
    if status in RETRIED:
        schema["required"].append("retry_after_s")
    else:
        del properties["retry_after_s"]
    if status not in _WITH_RESULTS:
        del properties["results"]
    return schema


def responses(statuses: Collection[int]) -> dict[str, Any]:
    """Return the responses with errors, by name."""
    return {name_of(status): _response(status) for status in statuses}


def _response(status: int) -> dict[str, Any]:
    code, detail = _EXAMPLES[status]
    example: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "request_id": "6c3c9909-16e",
    }
    response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if status in RETRIED:
        example["retry_after_s"] = 1.0
        response["headers"] = {
            "Retry-After": {
                "description": "`retry_after_s`, rounded up to whole seconds.",
                "schema": {"type": "integer", "minimum": 1},
            }
        }
    schema = {"$ref": f"#/components/schemas/{name_of(status)}"}
    response["content"] = {PROBLEM_JSON: {"schema": schema, "example": example}}
    return response
