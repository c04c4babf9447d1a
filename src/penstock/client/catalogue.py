"""Calls about namespaces and queues."""

from collections.abc import Mapping
from typing import Any

from penstock.client.address import queue_path
from penstock.client.call import Call, Story, nothing, post
from penstock.client.pages import Page, every_row, first_page
from penstock.client.reading import details_of
from penstock.client.remote import NamespaceDetails, QueueDetails
from penstock.model import NS
from penstock.names import QueueName, check_name
from penstock.operations.answers import time_ns

_NAMESPACES = "/api/v1/namespaces"


def namespaces() -> Call[Page[NamespaceDetails]]:
    return first_page(_NAMESPACES, "namespaces", _namespace_of, {})


def create_namespace(
    name: str, defaults: Mapping[str, Any], max_queues: int, max_bytes: int
) -> Call[NamespaceDetails]:
    body = {
        "name": check_name("namespace", name),
        "defaults": dict(defaults),
        "max_queues": max_queues,
        "max_bytes": max_bytes,
    }
    return post(_NAMESPACES, lambda reply: _namespace_of(reply.data), body)


def delete_namespace(name: str, *, force: bool) -> Call[None]:
    query = {"force": "true"} if force else None
    return post(namespace_path(name), nothing, method="DELETE", query=query)


def queues(namespace: str) -> Call[Page[QueueName]]:
    return first_page(
        f"{namespace_path(namespace)}/queues",
        "queues",
        lambda item: QueueName(item["namespace"], item["name"]),
        {},
    )


def queue_names(namespace: str | None) -> Story[list[str]]:
    """Of a namespace, or of all."""
    if namespace is not None:
        spaces = [namespace]
    else:
        found = yield from every_row(namespaces())
        spaces = [space.name for space in found]
    names: list[str] = []
    for space in spaces:
        rows = yield from every_row(queues(space))
        names += [str(queue) for queue in rows]
    return names


def create_queue(queue: QueueName, settings: Mapping[str, Any]) -> Call[QueueDetails]:
    return post(
        queue_path(queue),
        lambda reply: details_of(reply.data),
        dict(settings),
        method="PUT",
        repeatable=True,  # one that is there with these settings is left as it is
    )


def change_queue(queue: QueueName, settings: Mapping[str, Any]) -> Call[QueueDetails]:
    return post(
        queue_path(queue),
        lambda reply: details_of(reply.data),
        dict(settings),
        method="PATCH",
        repeatable=True,
    )


def delete_queue(queue: QueueName) -> Call[None]:
    return post(queue_path(queue), nothing, method="DELETE")


def namespace_path(name: str) -> str:
    return f"{_NAMESPACES}/{check_name('namespace', name)}"


def _namespace_of(data: Mapping[str, Any]) -> NamespaceDetails:
    return NamespaceDetails(
        name=data["name"],
        created_at=time_ns(data["created_at"]) / NS,
        defaults=data["defaults"],
        max_queues=data["max_queues"],
        max_bytes=data["max_bytes"],
    )
