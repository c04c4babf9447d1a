"""The methods of a queue that a broker carries out for another one, and which may be sent twice."""

import asyncio
from asyncio import Future
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.broker.embedded.open_queue import OpenQueue
from penstock.broker.store import Outcome
from penstock.errors import Unavailable
from penstock.model import LeasedMessage, NewMessage

_T = TypeVar("_T")


def done(result: _T) -> "Future[_T]":
    """Return a future that has a result."""
    answer: Future[_T] = asyncio.get_running_loop().create_future()
    answer.set_result(result)
    return answer


def _lease(
    queue: OpenQueue,
    n: int,
    lease_s: float | None,
    group: str,
    holder: str,
    dead: bool,
    max_bytes: Callable[[], int],
) -> Future[list[LeasedMessage]]:
    return queue.lease(
        n, lease_s=lease_s, group=group, holder=holder, dead=dead, max_bytes=max_bytes
    )


METHODS: dict[str, Callable[..., "Future[Any]"]] = {
    "publish": OpenQueue.publish,
    "lease": _lease,
    "settle": OpenQueue.settle,
    "run": OpenQueue.run,
    "info": lambda queue: done(queue.info),
    "find": lambda queue: done(None),
    "segments": lambda queue, *args: queue.files.segments(*args),
    "read_segment": lambda queue, *args: queue.files.read_segment(*args),
    "read_index": lambda queue, *args: queue.files.read_index(*args),
    "note_archived": lambda queue, *args: queue.files.note_archived(*args),
    "staging": lambda queue, *args: queue.files.staging(*args),
    "stage": lambda queue, *args: queue.files.stage(*args),
    "unstage": lambda queue, *args: queue.files.unstage(*args),
    "adopt": lambda queue, *args: queue.files.adopt(*args),
}
ADDING = frozenset({"publish", "stage", "adopt"})  # what a quota of bytes limits


def is_repeatable(method: str, arguments: Any) -> bool:
    """Return whether a call may be sent again if it may have been carried out.

    A publish is, if each message has a dedup id. An operation says it itself.
    """
    if method == "publish":
        return all(isinstance(one, NewMessage) and one.dedup_id is not None for one in arguments[0])
    if method == "run":
        return bool(arguments[0].idempotent)
    return method not in ("adopt", "delete", "change")


def refuse_gone(outcomes: list[Outcome]) -> None:
    """Raise Unavailable if a settlement that was sent twice has failed: the first was not answered.

    To the caller, who sent it once, "gone" would say that it was not carried out.
    """
    for one in outcomes:
        if one.status == "gone":
            raise Unavailable(
                "the connection to another broker broke: the settlement may have been carried out, "
                "look at the message's history, or send it again"
            )
