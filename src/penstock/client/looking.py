"""Calls that look. They change nothing, and may be repeated."""

from typing import Any

from penstock.checking import check_whole
from penstock.client.call import Call, get
from penstock.client.pages import Page, first_page
from penstock.client.reading import (
    dead_letter_of,
    event_of,
    message_of,
    retry_info_of,
    stats_of,
    time_ns,
    why_of,
)
from penstock.client.remote import QueueDetails
from penstock.codec import parse_id
from penstock.model import DeadLetter, HistoryEvent, Message, RetryInfo, Stats, Why
from penstock.queue.inspecting import MAX_PEEK
from penstock.queue.settings import QueueSettings

_MOST_ROWS = 1000
_BYTES = {"payload": "b64"}  # any JSON can be said in several ways; only the bytes are the message


def peek(path: str, n: int, group: str) -> Call[list[Message]]:
    most = min(check_whole("n", n, 1, MAX_PEEK), _MOST_ROWS)
    query = {**_BYTES, "order": "delivery", "group": group, "limit": most}
    return get(
        f"{path}/messages",
        lambda reply: [message_of(item) for item in reply.data["messages"]],
        query,
    )


def browse(path: str, state: str | None, group: str) -> Call[Page[Message]]:
    query = {**_BYTES, "state": state, "group": group}
    return first_page(f"{path}/messages", "messages", message_of, query)


def dead(path: str, group: str) -> Call[Page[DeadLetter]]:
    return first_page(f"{path}/dead", "messages", dead_letter_of, {**_BYTES, "group": group})


def message(id: str) -> Call[Message]:
    return get(message_path(id), lambda reply: message_of(reply.data), _BYTES)


def state(id: str, group: str) -> Call[str]:
    return get(message_path(id), lambda reply: str(reply.data["state"]), {"group": group})


def why(id: str, group: str) -> Call[Why]:
    return get(f"{message_path(id)}/why", lambda reply: why_of(reply.data), {"group": group})


def retry_info(id: str, group: str) -> Call[RetryInfo]:
    path = f"{message_path(id)}/retry_info"
    return get(path, lambda reply: retry_info_of(reply.data), {"group": group})


def history(id: str, group: str | None) -> Call[Page[HistoryEvent]]:
    return first_page(f"{message_path(id)}/history", "events", event_of, {"group": group})


def stats(path: str) -> Call[Stats]:
    return get(path, lambda reply: stats_of(reply.data["stats"]))


def details(path: str) -> Call[QueueDetails]:
    return get(path, lambda reply: details_of(reply.data))


def details_of(data: dict[str, Any]) -> QueueDetails:
    """A queue; settings that a newer broker has beyond ours are left out."""
    return QueueDetails(
        namespace=data["namespace"],
        name=data["name"],
        created_at=time_ns(data["created_at"]) / 1e9,
        settings=QueueSettings.of_stored(data["settings"]),
    )


def message_path(id: str) -> str:
    """Where a message is; the error is that of the embedded queue where it is no id."""
    parse_id(id)
    return f"/api/v1/messages/{id}"
