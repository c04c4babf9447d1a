"""Messages, leases and settlements as protocol buffers, both ways: the calls that must be fast."""

from collections.abc import Sequence
from typing import Any

from penstock.checking import unix_ns
from penstock.errors import InvalidInput
from penstock.model import (
    NO_HEADERS,
    NS,
    LeasedMessage,
    Message,
    NewMessage,
    Receipt,
    Settler,
    Ticket,
)
from penstock.protobuf.descriptors import Proto, message_class

_LeaseResponse = message_class("LeaseResponse")

# The options of a new message that are the same in both; delay and ttl have their unit added.
_OPTIONS = (
    ("priority", "priority"),
    ("delay_s", "delay"),
    ("ttl_s", "ttl"),
    ("key", "key"),
    ("dedup_id", "dedup_id"),
    ("dedup_window_s", "dedup_window_s"),
    ("max_attempts", "max_attempts"),
    ("content_type", "content_type"),
    ("compression", "compression"),
    ("after_failed", "after_failed"),
    ("tenant", "tenant"),
)
_OF_FIELD = dict(_OPTIONS)


# -- publishing ------------------------------------------------------------------------------------


def new_messages(messages: Sequence[Proto]) -> list[NewMessage | bytes]:
    """Return messages to publish. One without options is its payload alone, which is faster."""
    found: list[NewMessage | bytes] = []
    for message in messages:
        fields = message.ListFields()
        if len(fields) == 1 and fields[0][0].number == 1:
            found.append(fields[0][1])
        elif not fields:
            found.append(b"")
        else:
            found.append(_new_message(fields))
    return found


def _new_message(fields: Sequence[tuple[Any, Any]]) -> NewMessage:
    values: dict[str, Any] = {"payload": b""}
    for field, value in fields:
        name = field.name
        if name == "headers":
            values["headers"] = dict(value)
        elif name == "deliver_at_ns":
            values["deliver_at"] = value / NS
        elif name in ("after", "after_items"):
            values["after"] = [*values.get("after", ()), *value]
        else:
            values[_OF_FIELD.get(name, name)] = value
    return NewMessage(**values)


def new_message_of(message: Proto) -> NewMessage:
    """Return one message, with its options."""
    return _new_message(message.ListFields())


def set_new_message(out: Proto, message: NewMessage) -> None:
    """Set a field that is a new message. Raise InvalidInput if it cannot be sent."""
    payload = message.payload
    values = _options_of(message)
    try:
        out.SetInParent()
        out.payload = payload.encode() if isinstance(payload, str) else bytes(payload)  # type: ignore[arg-type]
        out.headers.update(values.pop("headers", {}))
        for name, value in values.items():
            setattr(out, name, value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"this message cannot be sent: {error}") from None


def add_new_message(target: Proto, message: NewMessage, payload: bytes) -> Proto:
    """Add a message to a field of new messages. Raise InvalidInput if it cannot be sent."""
    values = _options_of(message)
    try:
        return target.add(payload=payload, **values)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"this message cannot be sent: {error}") from None


def _options_of(message: NewMessage) -> dict[str, Any]:
    values: dict[str, Any] = {
        field: value for field, name in _OPTIONS if (value := getattr(message, name)) is not None
    }
    if message.deliver_at is not None:
        values["deliver_at_ns"] = unix_ns(_seconds(message.deliver_at))
    if message.after:
        values["after"] = [one for one in message.after if isinstance(one, str)]
        values["after_items"] = [one for one in message.after if isinstance(one, int)]
    if message.headers:
        values["headers"] = dict(message.headers)
    return values


def _seconds(time: Any) -> float:
    return float(time.timestamp()) if hasattr(time, "timestamp") else float(time)


# -- delivering ------------------------------------------------------------------------------------


def lease_response(leased: Sequence[LeasedMessage]) -> Proto:
    """Return the response of a lease. Setting fields one by one is the fastest way to make it."""
    response = _LeaseResponse()
    add = response.messages.add
    for one in leased:
        message, ticket = one
        (id_, seq, payload, priority, published, due, expires, key, headers, kind, most) = message
        made = add(receipt=one.receipt, attempt=ticket.attempt, deadline_ns=ticket.deadline_ns)
        out = made.message
        out.id = id_
        out.seq = seq
        out.payload = payload
        out.priority = priority
        out.published_ns = published
        if due:
            out.deliver_at_ns = due
        if expires:
            out.expires_at_ns = expires
        if key is not None:
            out.key = key
        if headers:
            out.headers.update(headers)
        if kind is not None:
            out.content_type = kind
        if most:
            out.max_attempts = most
    return response


def leased_of(found: Proto, group: str, settler: Settler) -> LeasedMessage:
    """Return a leased message. `settler` settles it."""
    receipt = Receipt.unpack(found.receipt)
    ticket = Ticket(
        identity=receipt.identity,
        group=receipt.group,
        group_name=group,
        attempt=found.attempt,
        nonce=receipt.nonce,
        deadline_ns=found.deadline_ns,
        settler=settler,
    )
    return LeasedMessage(message_of(found.message), ticket)


def message_of(found: Proto) -> Message:
    """Return a message as the model has it."""
    return Message(
        id=found.id,
        seq=found.seq,
        payload=found.payload,
        priority=found.priority,
        published_ns=found.published_ns,
        deliver_at_ns=found.deliver_at_ns,
        expires_at_ns=found.expires_at_ns,
        key=found.key if found.HasField("key") else None,
        headers=dict(found.headers) or NO_HEADERS,
        content_type=found.content_type if found.HasField("content_type") else None,
        max_attempts=found.max_attempts,
    )
