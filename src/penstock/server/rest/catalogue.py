"""Namespaces, queues and their settings."""

import asyncio
from asyncio import Future
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.broker import SETTING_TYPES, NamespaceInfo, QueueInfo, QueueName, Verb
from penstock.model import GroupStats, Stats, StorageStats
from penstock.operations import GetStats
from penstock.operations.answers import rfc3339
from penstock.server.call import Answer, Call, encode
from penstock.server.creating import create_or_match
from penstock.server.off_loop import size_of_many
from penstock.server.replies import Reply
from penstock.server.rest.endpoint import API, PAGING, QUEUE, Endpoint, Parameter, page_by_name
from penstock.server.rest.structs import (
    NamespaceAnswer,
    NamespaceBody,
    NamespaceChanges,
    NamespaceList,
    QueueAnswer,
    QueueItem,
    QueueList,
    RateLimit,
    RateLimitBody,
)

_NAMESPACES = f"{API}/namespaces"
_GET_STATS = GetStats()
_MOST_DESCRIBED = 4096


async def list_namespaces(call: Call) -> Answer:
    """List the namespaces that the key may read."""
    found, cursor = page_by_name(
        call, call.broker.namespaces.list(call.caller), lambda one: one.name
    )
    return NamespaceList([_namespace_answer(one) for one in found], cursor)


async def create_namespace(call: Call) -> Answer:
    """Create a namespace."""
    asked = await call.read(NamespaceBody)
    return _namespace_answer(
        await call.broker.namespaces.create(
            call.caller,
            asked.name,
            defaults=asked.defaults,
            max_queues=asked.max_queues,
            max_bytes=asked.max_bytes,
        )
    )


async def get_namespace(call: Call) -> Answer:
    """Show a namespace."""
    return _namespace_answer(call.broker.namespaces.get(call.caller, call.namespace))


async def change_namespace(call: Call) -> Answer:
    """Change a namespace's defaults or quotas."""
    asked = await call.read(NamespaceChanges)
    changes: dict[str, Any] = {
        name: value
        for name in ("defaults", "max_queues", "max_bytes")
        if (value := getattr(asked, name)) is not UNSET
    }
    return _namespace_answer(
        await call.broker.namespaces.change(call.caller, call.namespace, changes)
    )


async def delete_namespace(call: Call) -> Answer:
    """Delete a namespace; with its queues only if forced."""
    await call.broker.namespaces.delete(call.caller, call.namespace, force=call.query.flag("force"))
    return None


def _namespace_answer(info: NamespaceInfo) -> NamespaceAnswer:
    return NamespaceAnswer(
        info.name, rfc3339(info.created_at_ns), info.defaults, info.max_queues, info.max_bytes
    )


_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_FORCE = Parameter("force", "Delete its queues as well.", bool)


# -- queues ----------------------------------------------------------------------------------------

# Generated from the queue's settings, so that a new one appears here and in the OpenAPI document.
QueueSettingsBody: Any = msgspec.defstruct(
    "QueueSettingsBody",
    [(name, kind | UnsetType, UNSET) for name, kind in SETTING_TYPES.items()],
    forbid_unknown_fields=True,
)
QueueSettingsBody.__doc__ = (
    "Settings of a queue; those that are left out stay, or are the usual. See docs/settings.md."
)

# How `SettingsAnswer` and `StatsAnswer` look, for the OpenAPI document.


def _struct_of(name: str, record: Any, **kinds: Any) -> type[msgspec.Struct]:
    hints = record.__annotations__ | kinds
    return msgspec.defstruct(name, list(hints.items()), namespace={"__doc__": record.__doc__})


QueueSettings = msgspec.defstruct(
    "QueueSettings",
    list(SETTING_TYPES.items()),
    namespace={"__doc__": "All settings of a queue: see docs/settings.md."},
)
QueueStats = _struct_of(
    "QueueStats",
    Stats,
    storage=_struct_of("StorageStats", StorageStats),
    groups=Mapping[str, _struct_of("GroupStats", GroupStats)],  # type: ignore[misc]
)


def given_settings(body: Any) -> dict[str, Any]:
    """Return the settings that the body contains."""
    return {
        name: value
        for name in body.__struct_fields__
        if (value := getattr(body, name)) is not UNSET
    }


_AT_ONCE = 50  # queues read before other calls get their turn
_LIST = f"{API}/namespaces/{{namespace}}/queues"


async def list_queues(call: Call) -> Answer:
    """List the queues of a namespace."""
    found = call.broker.queues(call.caller, call.namespace)
    page, cursor = page_by_name(call, found, lambda one: one.name)
    items = [QueueItem(one.namespace, one.name) for one in page]
    if call.query.flag("stats"):
        for number, (item, queue) in enumerate(zip(items, page, strict=True), start=1):
            stats = Raw(stats_json(await call.broker.run(call.caller, _GET_STATS, queue)))
            item.stats = cast(Mapping[str, Any], stats)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
    made = partial(encode, QueueList(items, cursor))
    return Reply(await call.service.off_loop.answer(size_of_many(len(items)), made))


async def put_queue(call: Call) -> Answer:
    """Create a queue. One that exists with these settings is not changed."""
    queue = call.queue
    settings = given_settings(await call.read(QueueSettingsBody, QueueSettingsBody()))
    info, is_new = await create_or_match(call.broker, call.caller, queue, settings)
    return Reply(encode(_queue_answer(info)), 201) if is_new else _queue_answer(info)


def get_queue(call: Call) -> "Answer | Coroutine[Any, Any, bytes]":
    """Show a queue, its settings and its counts."""
    broker, queue = call.service.broker, call.queue
    info = broker.queue_info(call.caller, queue)
    if info.done():  # the usual case: no task is needed
        described = _described(info.result())
        stats = broker.run(call.caller, _GET_STATS, queue)
        if stats.done():
            return described + stats_json(stats.result()) + b"}"
        return _with_stats(described, stats)
    return _get_queue_later(call, info)


async def _get_queue_later(call: Call, info: "Future[QueueInfo]") -> bytes:
    described = _described(await info)
    return await _with_stats(described, call.broker.run(call.caller, _GET_STATS, call.queue))


async def _with_stats(described: bytes, stats: "Future[Stats]") -> bytes:
    return described + stats_json(await stats) + b"}"


async def change_queue(call: Call) -> Answer:
    """Change some settings of a queue; the others stay."""
    settings = given_settings(await call.read(QueueSettingsBody))
    return _queue_answer(await call.broker.change_queue(call.caller, call.queue, settings))


async def delete_queue(call: Call) -> Answer:
    """Delete a queue and its messages."""
    await call.broker.delete_queue(call.caller, call.queue)
    return None


async def get_rate_limit(call: Call) -> Answer:
    """Show the rate limit of publishing."""
    return _rate_limit(await call.broker.queue_info(call.caller, call.queue))


async def put_rate_limit(call: Call) -> Answer:
    """Set the rate limit of publishing."""
    asked = await call.read(RateLimitBody)
    changes = {"rate_per_s": float(asked.refill_per_s), "rate_burst": float(asked.capacity)}
    return _rate_limit(await call.broker.change_queue(call.caller, call.queue, changes))


_described_queues: dict[QueueName, tuple[QueueInfo, bytes]] = {}  # settings seldom change


def _described(info: QueueInfo) -> bytes:
    """Return the answer of `get_queue` up to the counts."""
    before, described = _described_queues.get(info.queue, (None, b""))
    if (
        before is not None
        and before.settings is info.settings
        and before.created_at_ns == info.created_at_ns
    ):
        return described
    if len(_described_queues) >= _MOST_DESCRIBED:
        _described_queues.clear()
    described = encode(_queue_answer(info))[:-1] + b',"stats":'
    _described_queues[info.queue] = info, described
    return described


def _template(kind: type[Stats] | type[GroupStats] | type[StorageStats]) -> bytes:
    """Return a format of a named tuple as JSON. A field that is not a number is bytes of JSON.

    For 50 numbers it is five times as fast as making a dict of each tuple and encoding them.
    """
    marks = {int: "%d", float: "%a"}
    fields = [f'"{name}":{marks.get(one, "%b")}' for name, one in kind.__annotations__.items()]
    return f"{{{','.join(fields)}}}".encode()


_COUNTS, _GROUP_COUNTS, _STORAGE_COUNTS = (
    _template(Stats),
    _template(GroupStats),
    _template(StorageStats),
)
_AT_PAUSED = Stats._fields.index("paused")


def stats_json(stats: Stats) -> bytes:
    """Return the counts as JSON, including those of the groups."""
    groups = [
        b"%b:%b" % (encode(name), _GROUP_COUNTS % group) for name, group in stats.groups.items()
    ]
    return _COUNTS % (
        *stats[:_AT_PAUSED],
        b"true" if stats.paused else b"false",
        *stats[_AT_PAUSED + 1 : -2],
        _STORAGE_COUNTS % stats.storage,
        b"{%b}" % b",".join(groups),
    )


def _rate_limit(info: QueueInfo) -> RateLimit:
    settings = info.settings
    return RateLimit(settings.rate_burst, settings.rate_per_s)


def _queue_answer(info: QueueInfo) -> QueueAnswer:
    return QueueAnswer(
        info.queue.namespace,
        info.queue.name,
        rfc3339(info.created_at_ns),
        info.settings.as_dict(),
    )


_STATS = Parameter("stats", "With the counts of each.", bool)

ENDPOINTS = (
    Endpoint("GET", _NAMESPACES, list_namespaces, Verb.READ, NamespaceList, query=PAGING),
    Endpoint(
        "POST",
        _NAMESPACES,
        create_namespace,
        Verb.MANAGE,
        NamespaceAnswer,
        status=201,
        body=NamespaceBody,
        also=(409,),
    ),
    Endpoint("GET", _NAMESPACE, get_namespace, Verb.READ, NamespaceAnswer, also=(404,)),
    Endpoint(
        "PATCH",
        _NAMESPACE,
        change_namespace,
        Verb.MANAGE,
        NamespaceAnswer,
        body=NamespaceChanges,
        also=(404,),
    ),
    Endpoint(
        "DELETE",
        _NAMESPACE,
        delete_namespace,
        Verb.MANAGE,
        status=204,
        query=(_FORCE,),
        also=(404, 409),
    ),
    Endpoint("GET", _LIST, list_queues, Verb.READ, QueueList, query=(_STATS, *PAGING), also=(404,)),
    Endpoint(
        "PUT",
        QUEUE,
        put_queue,
        Verb.MANAGE,
        QueueAnswer,
        status=201,
        body=QueueSettingsBody,
        body_optional=True,
        also=(200, 409),
    ),
    Endpoint("GET", QUEUE, get_queue, Verb.READ, QueueAnswer, also=(404,)),
    Endpoint(
        "PATCH",
        QUEUE,
        change_queue,
        Verb.MANAGE,
        QueueAnswer,
        body=QueueSettingsBody,
        also=(404,),
    ),
    Endpoint("DELETE", QUEUE, delete_queue, Verb.MANAGE, status=204, also=(404,)),
    Endpoint("GET", f"{QUEUE}/rate_limit", get_rate_limit, Verb.READ, RateLimit, also=(404,)),
    Endpoint(
        "PUT",
        f"{QUEUE}/rate_limit",
        put_rate_limit,
        Verb.MANAGE,
        RateLimit,
        body=RateLimitBody,
        also=(404,),
    ),
)
