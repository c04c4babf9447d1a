"""Messages in answers.

A payload with the content type JSON is answered as JSON if it is valid; an invalid one would break
the whole answer. All other payloads are base64, and all of them with `payload=b64`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from msgspec import Raw

from penstock.model import DeadLetter, LeasedMessage, Message
from penstock.operations.answers import rfc3339
from penstock.server import strict_json
from penstock.server.off_loop import to_base64
from penstock.server.replies import JSON
from penstock.server.rest.structs import Dead, Leased, Listed, MessageFields

if TYPE_CHECKING:
    _write: Callable[[LeasedMessage, str, Any], bytes | None] | None
else:
    try:
        from penstock.server._deliveries import leased_json as _write
    except ImportError:  # there was no compiler
        _write = None

PAYLOADS = ("json", "b64")  # the choices of the parameter `payload`


def leased_json(one: LeasedMessage) -> bytes | None:
    """Return the answer with one usual leased message, like `leased`; None if it has any option."""
    return plain_leased_json(one) if _write is None else _write(one, JSON, strict_json.is_strict)


def plain_leased_json(one: LeasedMessage) -> bytes | None:
    """Do as `leased_json`, without the compiled module."""
    (id_, seq, payload, priority, published_ns, due, expires, key, headers, kind, most), ticket = (
        one
    )
    if kind != JSON or due or expires or headers or most or key is not None:
        return None
    if not strict_json.is_strict(payload):
        return None
    return (
        f'{{"messages":[{{"id":"{id_}","seq":{seq},"priority":{priority}'
        f',"published_at":"{rfc3339(published_ns)}","content_type":"{JSON}","payload":'
    ).encode() + b'%s,"receipt":"%s","attempt":%d,"deadline":"%s"}]}' % (
        payload,
        one.receipt.encode(),
        ticket.attempt,
        rfc3339(ticket.deadline_ns).encode(),
    )


def leased(one: LeasedMessage, *, b64: bool) -> Leased:
    message, ticket = one.message, one.ticket
    out = Leased(
        id=message.id,
        seq=message.seq,
        priority=message.priority,
        published_at=rfc3339(message.published_ns),
        receipt=one.receipt,
        attempt=ticket.attempt,
        deadline=rfc3339(ticket.deadline_ns),
    )
    _fill(out, message, b64)
    return out


def listed(message: Message, state: str, attempts: int, *, b64: bool) -> Listed:
    out = Listed(
        id=message.id,
        seq=message.seq,
        priority=message.priority,
        published_at=rfc3339(message.published_ns),
        state=state,
        attempts=attempts,
    )
    _fill(out, message, b64)
    return out


def dead(letter: DeadLetter, *, b64: bool) -> Dead:
    message = letter.message
    out = Dead(
        id=message.id,
        seq=message.seq,
        priority=message.priority,
        published_at=rfc3339(message.published_ns),
        attempts=letter.attempts,
        reason=letter.reason,
        cause=letter.cause,
        first_failure_at=rfc3339(letter.first_failure_ns),
        last_failure_at=rfc3339(letter.last_failure_ns),
    )
    _fill(out, message, b64)
    return out


def _fill(out: MessageFields, message: Message, b64: bool) -> None:
    """Set the payload and the fields that few messages have."""
    _, _, payload, _, _, deliver_at_ns, expires_at_ns, key, headers, content_type, most = message
    if deliver_at_ns:
        out.deliver_at = rfc3339(deliver_at_ns)
    if expires_at_ns:
        out.expires_at = rfc3339(expires_at_ns)
    if key is not None:
        out.key = key
    if headers:
        out.headers = dict(headers)
    if most:
        out.max_attempts = most
    if content_type is not None:
        out.content_type = content_type
        if not b64 and content_type.startswith(JSON) and strict_json.is_strict(payload):
            out.payload = Raw(payload)
            return
    # As raw bytes: a large text would be scanned again by the encoder.
    out.payload_b64 = cast(str, Raw(to_base64(payload, quote=b'"')))
