"""Calls that operate a queue."""

from collections.abc import Iterable
from typing import Any

from penstock.checking import Time
from penstock.client.call import Call, get, nothing, post
from penstock.client.looking import message_path
from penstock.client.publishing import time_text
from penstock.errors import InvalidInput
from penstock.ledger.compaction import CompactionResult
from penstock.names import check_name


def seek(path: str, group: str, place: "str | dict[str, Any]") -> Call[int]:
    return post(
        f"{path}/seek",
        lambda reply: int(reply.data["next_seq"]),
        {"group": group, "to": place},
        repeatable=True,  # to the same place
    )


def place_of(
    to: str | None, seq: int | None, id: str | None, time: Time | None, *, default: str = ""
) -> "str | dict[str, Any]":
    """One of the four, as it travels."""
    given = {"to": to, "seq": seq, "id": id, "time": time_text("time", time)}
    named = {name: value for name, value in given.items() if value is not None}
    if not named and default:
        return default
    if len(named) != 1:
        raise InvalidInput("give one place: to, seq, id or time")
    return to if to is not None else named


def cancel(id: str) -> Call[bool]:
    return post(
        message_path(id),
        # Sent twice, the second time finds it done, by the first.
        lambda reply: bool(reply.data["cancelled"]) or reply.resent,
        method="DELETE",
        repeatable=True,
    )


def purge(path: str, group: str | None) -> Call[int]:
    return post(f"{path}/purge", lambda reply: int(reply.data["purged"]), {"group": group})


def pause(path: str) -> Call[None]:
    return post(f"{path}/pause", nothing, repeatable=True)


def resume(path: str) -> Call[None]:
    return post(f"{path}/resume", nothing, repeatable=True)


def compact(path: str) -> Call[CompactionResult]:
    return post(
        f"{path}/compact",
        lambda reply: CompactionResult(bytes_freed=reply.data["freed_bytes"]),
        repeatable=True,
    )


def sync(path: str) -> Call[None]:
    return post(f"{path}/sync", nothing, repeatable=True)


def which_dead(
    ids: str | Iterable[str] | None,
    reason: str | None,
    since: Time | None,
    until: Time | None,
    limit: int | None,
    group: str,
) -> dict[str, Any]:
    """Those named, those that match, or all, as it travels."""
    return {
        "ids": [ids] if isinstance(ids, str) else None if ids is None else list(ids),
        "reason": reason,
        "since": time_text("since", since),
        "until": time_text("until", until),
        "limit": limit,
        "group": group,
    }


def redrive(path: str, which: dict[str, Any]) -> Call[int]:
    return post(f"{path}/redrive", lambda reply: int(reply.data["redriven"]), which)


def discard(path: str, which: dict[str, Any]) -> Call[int]:
    return post(f"{path}/discard", lambda reply: int(reply.data["discarded"]), which)


def groups(path: str) -> Call[list[str]]:
    return get(f"{path}/groups", lambda reply: list(reply.data["groups"]))


def create_group(path: str, name: str, place: "str | dict[str, Any]") -> Call[None]:
    return post(_group(path, name), nothing, {"at": place}, method="PUT", repeatable=True)


def delete_group(path: str, name: str) -> Call[None]:
    return post(_group(path, name), nothing, method="DELETE")


def _group(path: str, name: str) -> str:
    return f"{path}/groups/{check_name('group', name)}"
