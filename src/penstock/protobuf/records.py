"""Records of the model (named tuples) as messages, both ways, by the names of their fields."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.json_format import MessageToDict

from penstock.model import NewMessage
from penstock.protobuf.descriptors import Proto
from penstock.protobuf.messages import new_message_of, set_new_message

R = TypeVar("R")


def fill(out: Proto, record: Any) -> None:
    """Set the fields of a message to those of a record. None is not set."""
    for name, value in zip(record._fields, record, strict=True):
        set_field(out, name, value)


def set_field(out: Proto, name: str, value: Any) -> None:
    """Set a field to a plain value, a record, a sequence or a mapping of these."""
    if value is None:
        return
    if isinstance(value, NewMessage):
        set_new_message(getattr(out, name), value)
    elif isinstance(value, Mapping):
        target = getattr(out, name)
        for key, item in value.items():
            if hasattr(item, "_fields"):
                fill(target[key], item)
            else:
                target[key] = _plain(item)
    elif hasattr(value, "_fields"):
        target = getattr(out, name)
        target.SetInParent()
        fill(target, value)
    elif isinstance(value, list | tuple):
        target = getattr(out, name)
        for item in value:
            if hasattr(item, "_fields"):
                fill(target.add(), item)
            else:
                target.append(item)
    else:
        setattr(out, name, value)


def _plain(value: Any) -> Any:
    """Return a value that a Struct can hold: a tuple becomes a list."""
    return list(value) if isinstance(value, tuple) else value


def record_of(kind: type[R], message: Proto) -> R:
    """Return the record that a message stands for."""
    hints = _hints(kind)  # type: ignore[arg-type]
    return kind(*[read_field(message, name, hint) for name, hint in hints])


def read_field(message: Proto, name: str, hint: Any) -> Any:
    """Return a field as the type that a record has for it."""
    value = getattr(message, name)
    parts = get_args(hint)
    if hasattr(hint, "_fields"):
        return record_of(hint, value)
    if hint is NewMessage:
        return new_message_of(value)
    if get_origin(hint) in (Sequence, list) or hint in (Sequence, list):
        kind = parts[0] if parts else Any
        return [record_of(kind, one) if hasattr(kind, "_fields") else one for one in value]
    if get_origin(hint) is Mapping or hint is Mapping:
        if hasattr(parts[1], "_fields"):
            return {key: record_of(parts[1], one) for key, one in value.items()}
        return as_dict(value) if hasattr(value, "fields") else dict(value)
    if type(None) in parts and not message.HasField(name):
        return None
    return value


@cache
def _hints(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((name, hints[name]) for name in kind._fields)


def as_dict(struct: Proto) -> dict[str, Any]:
    """Return a Struct as a dict. Its numbers are floats; whole ones become integers."""
    found: dict[str, Any] = _whole(MessageToDict(struct))
    return found


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value
