"""Namespaces."""

from typing import Any

from msgspec import UNSET

from penstock.broker import NamespaceInfo, Verb
from penstock.operations.answers import rfc3339
from penstock.server.rest.answers import NamespaceAnswer, NamespaceList
from penstock.server.rest.endpoint import API, Answer, Call, Endpoint, Parameter
from penstock.server.rest.paging import PAGING, page_by_name
from penstock.server.rest.structs import NamespaceBody, NamespaceChanges

_PATH = f"{API}/namespaces"


async def list_namespaces(call: Call) -> Answer:
    """List the namespaces that the key may read."""
    found, cursor = page_by_name(call, call.broker.namespaces(call.caller), lambda one: one.name)
    return NamespaceList([_answer(one) for one in found], cursor)


async def create_namespace(call: Call) -> Answer:
    """Make a namespace."""
    asked = await call.read(NamespaceBody)
    return _answer(
        await call.broker.create_namespace(
            call.caller,
            asked.name,
            defaults=asked.defaults,
            max_queues=asked.max_queues,
            max_bytes=asked.max_bytes,
        )
    )


async def get_namespace(call: Call) -> Answer:
    """Show a namespace."""
    return _answer(call.broker.namespace(call.caller, call.namespace))


async def change_namespace(call: Call) -> Answer:
    """Change a namespace's defaults or quotas."""
    asked = await call.read(NamespaceChanges)
    changes: dict[str, Any] = {
        name: value
        for name in ("defaults", "max_queues", "max_bytes")
        if (value := getattr(asked, name)) is not UNSET
    }
    return _answer(await call.broker.change_namespace(call.caller, call.namespace, changes))


async def delete_namespace(call: Call) -> Answer:
    """Delete a namespace; with its queues only if forced."""
    await call.broker.delete_namespace(call.caller, call.namespace, force=call.query.flag("force"))
    return None


def _answer(info: NamespaceInfo) -> NamespaceAnswer:
    return NamespaceAnswer(
        info.name, rfc3339(info.created_at_ns), info.defaults, info.max_queues, info.max_bytes
    )


_ONE = f"{_PATH}/{{namespace}}"
_FORCE = Parameter("force", "Delete its queues as well.", bool)

ENDPOINTS = (
    Endpoint("GET", _PATH, list_namespaces, Verb.READ, NamespaceList, query=PAGING),
    Endpoint(
        "POST",
        _PATH,
        create_namespace,
        Verb.MANAGE,
        NamespaceAnswer,
        status=201,
        body=NamespaceBody,
        also=(409,),
    ),
    Endpoint("GET", _ONE, get_namespace, Verb.READ, NamespaceAnswer, also=(404,)),
    Endpoint(
        "PATCH",
        _ONE,
        change_namespace,
        Verb.MANAGE,
        NamespaceAnswer,
        body=NamespaceChanges,
        also=(404,),
    ),
    Endpoint(
        "DELETE", _ONE, delete_namespace, Verb.MANAGE, status=204, query=(_FORCE,), also=(404, 409)
    ),
)
