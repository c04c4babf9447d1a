"""The form that publishes a message: by hand, or an old one again with edits."""

import base64
import json
from typing import Any

import msgspec

from penstock.broker import QueueName
from penstock.errors import InvalidInput
from penstock.model import Message
from penstock.server.dashboard.formatting import as_text, pretty_json
from penstock.server.dashboard.rest_call import RestCall, given, queue_path
from penstock.server.dashboard.serving import Action, Done
from penstock.server.dashboard.visit import Visit
from penstock.server.rest.publish import read_messages

KINDS = ("json", "text", "base64")
_MOST_HEADERS = 100


def message_body(message: Message) -> dict[str, Any]:
    """Return the fields of the form for an old message."""
    kind, text = "json", pretty_json(message.payload)
    if text is None or message.content_type != "application/json":
        kind, text = "text", as_text(message.payload)
    if text is None:
        kind, text = "base64", base64.b64encode(message.payload).decode()
    return {
        "kind": kind,
        "payload": text,
        "priority": message.priority,
        "key": message.key or "",
        "headers": "\n".join(f"{name}: {value}" for name, value in message.headers.items()),
        "content_type": message.content_type or "" if kind != "json" else "",
        "max_attempts": message.max_attempts or "",
    }


def publish_call(queue: QueueName, body: dict[str, Any]) -> RestCall:
    return RestCall("POST", queue_path(queue, "messages"), body)


def _body(visit: Visit) -> dict[str, Any]:
    """Return the body of the request that the form means."""
    kind, text = visit.text("kind") or "json", visit.text("payload") or ""
    content_type = visit.text("content_type")
    body: dict[str, Any] = {}
    if kind == "json":
        try:
            body["payload"] = json.loads(text or "null")
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"the payload is not JSON: {error}; or choose text") from None
    elif kind == "text":
        body["payload_b64"] = base64.b64encode(text.encode()).decode()
        content_type = content_type or "text/plain; charset=utf-8"
    elif kind == "base64":
        body["payload_b64"] = "".join(text.split())
    else:
        raise InvalidInput(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    return body | given(
        priority=visit.whole("priority", 0, 9),
        key=visit.text("key"),
        headers=_headers(visit.text("headers")),
        delay_s=visit.number("delay_s"),
        ttl_s=visit.number("ttl_s"),
        dedup_id=visit.text("dedup_id"),
        max_attempts=visit.whole("max_attempts", 1, 65535),
        content_type=content_type,
    )


def _headers(text: str | None) -> dict[str, str] | None:
    """Return the headers, one `name: value` a line."""
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip() or len(found) >= _MOST_HEADERS:
            raise InvalidInput(f"{line[:80]!r} is not a header: write one name: value a line")
        found[name.strip()] = value.strip()
    return found or None


async def publish_action(visit: Visit, queue: QueueName) -> Action:
    """Return the action of the form. It publishes what the REST call would."""
    body = _body(visit)
    messages, _ = read_messages(msgspec.json.encode(body))

    async def run() -> Done:
        (published,) = await visit.broker.publish(visit.caller, queue, messages)
        text = (
            "A message with this dedup id is there already:"
            if published.duplicate
            else ("Published as")
        )
        return Done(
            f"{text} {published.id}.",
            shown={"link": visit.link("messages", published.id)},
            template="published.html",
        )

    return Action(publish_call(queue, body), run)
