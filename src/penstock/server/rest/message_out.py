"""Messages in answers.

A payload with the content type JSON is answered as JSON if it is valid; an invalid one would break
the whole answer. All other payloads are base64, and all of them with `payload=b64`.
"""

from typing import Any

from msgspec import Raw

from penstock.model import DeadLetter, LeasedMessage, Message
from penstock.operations.answers import rfc3339
from penstock.server import strict_json
from penstock.server.off_loop import to_base64
from penstock.server.replies import JSON
from penstock.server.rest.structs import Dead, Leased, Listed

PAYLOADS = ("json", "b64")  # the choices of the parameter `payload`


def leased(one: LeasedMessage, *, b64: bool) -> Leased:
    ticket = one.ticket
    return Leased(
        receipt=one.receipt,
        attempt=ticket.attempt,
        deadline=rfc3339(ticket.deadline_ns),
        **_fields(one.message, b64),
    )


def listed(message: Message, state: str, attempts: int, *, b64: bool) -> Listed:
    return Listed(state=state, attempts=attempts, **_fields(message, b64))


def dead(letter: DeadLetter, *, b64: bool) -> Dead:
    return Dead(
        attempts=letter.attempts,
        reason=letter.reason,
        cause=letter.cause,
        first_failure_at=rfc3339(letter.first_failure_ns),
        last_failure_at=rfc3339(letter.last_failure_ns),
        **_fields(letter.message, b64),
    )


def _fields(message: Message, b64: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": message.id,
        "seq": message.seq,
        "priority": message.priority,
        "published_at": rfc3339(message.published_ns),
    }
    if message.deliver_at_ns:
        fields["deliver_at"] = rfc3339(message.deliver_at_ns)
    if message.expires_at_ns:
        fields["expires_at"] = rfc3339(message.expires_at_ns)
    if message.key is not None:
        fields["key"] = message.key
    if message.headers:
        fields["headers"] = dict(message.headers)
    if message.max_attempts:
        fields["max_attempts"] = message.max_attempts
    content_type = message.content_type
    if content_type is not None:
        fields["content_type"] = content_type
        if not b64 and content_type.startswith(JSON) and strict_json.is_strict(message.payload):
            fields["payload"] = Raw(message.payload)
            return fields
    # As raw bytes: a large text would be scanned again by the encoder.
    fields["payload_b64"] = Raw(to_base64(message.payload, quote=b'"'))
    return fields
