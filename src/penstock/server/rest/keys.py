"""API keys: list, create and revoke them. A key must be for all namespaces to manage keys."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.broker import Key, Verb
from penstock.operations.answers import rfc3339
from penstock.server.call import Answer, Call
from penstock.server.rest.endpoint import API, Endpoint
from penstock.server.rest.structs import Name

_LIST = f"{API}/keys"


class KeyBody(Struct, forbid_unknown_fields=True):
    """A new key. Without `namespaces`, it is for all. With `sqs`, SQS clients may sign with it."""

    verbs: Annotated[list[Literal["publish", "consume", "manage", "read"]], Meta(min_length=1)]
    label: Annotated[str, Meta(max_length=100)] = ""
    namespaces: Annotated[list[Name], Meta(min_length=1, max_length=1000)] | None = None
    sqs: bool = False


class KeyAnswer(Struct, omit_defaults=True, kw_only=True):
    """A key. Its token is shown once: when it is made."""

    id: str
    label: str
    verbs: list[Verb]
    namespaces: list[str] | UnsetType = UNSET
    created_at: str
    revoked_at: str | UnsetType = UNSET
    sqs: bool = False
    token: str | UnsetType = UNSET


class KeyList(Struct):
    """All keys, revoked ones included."""

    keys: list[KeyAnswer]


async def list_api_keys(call: Call) -> Answer:
    """List the API keys, without their secrets."""
    return KeyList([_answer(key) for key in await call.broker.keys.list(call.caller)])


async def create_api_key(call: Call) -> Answer:
    """Create an API key. Its token is in the answer, and nowhere else."""
    asked = await call.read(KeyBody)
    key, token = await call.broker.keys.create(
        call.caller, asked.label, asked.verbs, asked.namespaces, signs=asked.sqs
    )
    await call.service.keys.refresh()  # it is accepted here as soon as it is answered
    return _answer(key, token)


async def revoke_api_key(call: Call) -> Answer:
    """Revoke an API key. It is refused within two seconds, and stays listed."""
    key = await call.broker.keys.revoke(call.caller, call.path("id"))
    await call.service.keys.refresh()
    return _answer(key)


def _answer(key: Key, token: str | UnsetType = UNSET) -> KeyAnswer:
    return KeyAnswer(
        id=key.id,
        label=key.label,
        verbs=sorted(key.verbs),
        namespaces=UNSET if key.namespaces is None else sorted(key.namespaces),
        created_at=rfc3339(key.created_at_ns),
        revoked_at=rfc3339(key.revoked_at_ns) if key.revoked_at_ns else UNSET,
        sqs=bool(key.signing_digest),
        token=token,
    )


ENDPOINTS = (
    Endpoint("GET", _LIST, list_api_keys, Verb.MANAGE, KeyList),
    Endpoint("POST", _LIST, create_api_key, Verb.MANAGE, KeyAnswer, status=201, body=KeyBody),
    Endpoint("DELETE", f"{_LIST}/{{id}}", revoke_api_key, Verb.MANAGE, KeyAnswer),
)
