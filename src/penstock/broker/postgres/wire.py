"""Calls and answers between brokers as bytes: MessagePack, with the names of our own classes.

A value of a known class is a list: the class's name, then the fields in their order. Other lists
begin with a number that says what they are. Only the classes below are read: bytes of a stranger
cannot make anything else.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec

from penstock import errors, model, operations
from penstock.broker.postgres.membership import OwnedElsewhere
from penstock.broker.store import Outcome, QueueInfo, Settlement
from penstock.names import QueueName
from penstock.queue import segments, settings

_LIST, _TUPLE, _MAPPING, _ERROR = range(4)
_PLAIN = frozenset({bytes, str, int, float, bool, type(None)})


def _classes(module: Any) -> dict[str, type]:
    return {
        name: one
        for name, one in vars(module).items()
        if inspect.isclass(one) and (is_dataclass(one) or hasattr(one, "_fields"))
    }


KNOWN: dict[str, type] = {
    **_classes(model),
    **_classes(operations),
    **_classes(segments),
    **_classes(settings),
    **{one.__name__: one for one in (Outcome, QueueInfo, Settlement, QueueName)},
}
_FIELDS: dict[type, tuple[str, ...]] = {
    one: tuple(field.name for field in fields(one)) for one in KNOWN.values() if is_dataclass(one)
}
_ERRORS: dict[str, type[Exception]] = {
    OwnedElsewhere.__name__: OwnedElsewhere,
    **{
        name: one
        for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, errors.PenstockError)
    },
}


class _Elsewhere:
    """Refuses to settle a leased message itself: a broker settles by receipt."""

    def ack(self, leased: model.LeasedMessage, /) -> None:
        raise TypeError("settle it with Broker.settle and its receipt")

    def nack(self, leased: model.LeasedMessage, /, reason: str = "") -> None:
        raise TypeError("settle it with Broker.settle and its receipt")


_SETTLER = _Elsewhere()


def encode(value: Any) -> bytes:
    """Return a value as bytes. Raise TypeError if it has a part that cannot travel."""
    return msgspec.msgpack.encode(_packed(value))


def decode(data: bytes | memoryview) -> Any:
    """Return the value that was encoded. Raise ValueError if it is not one."""
    try:
        return _unpacked(msgspec.msgpack.decode(data))
    except (msgspec.DecodeError, KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"another broker sent what cannot be read: {error!r}") from None


def _packed(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_LIST, *map(_packed, value)]
    if kind is model.Ticket:
        return ["Ticket", *value[:-1]]  # the settler stays where it is
    if kind.__name__ in KNOWN and KNOWN[kind.__name__] is kind:
        names = _FIELDS.get(kind)
        items = value if names is None else [getattr(value, name) for name in names]
        return [kind.__name__, *map(_packed, items)]
    if kind is tuple:
        return [_TUPLE, *map(_packed, value)]
    if isinstance(value, Mapping):
        return [_MAPPING, *(_packed(part) for item in value.items() for part in item)]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, BaseException):
        return _packed_error(value)
    if isinstance(value, Enum):
        return _packed(value.value)
    if isinstance(value, list | tuple):
        return [_LIST, *map(_packed, value)]
    raise TypeError(f"{kind.__name__} cannot be sent to another broker")


def _packed_error(error: BaseException) -> list[Any]:
    name = type(error).__name__
    if _ERRORS.get(name) is not type(error):
        return [_ERROR, "Unavailable", [_TUPLE, f"another broker failed: {error!r}"], [_MAPPING]]
    return [_ERROR, name, _packed(tuple(error.args)), _packed(vars(error))]


def _unpacked(value: Any) -> Any:
    if type(value) is not list:
        return value
    kind = value[0]
    if type(kind) is str:
        return _MAKERS[kind](list(map(_unpacked, value[1:])))
    if kind == _LIST:
        return list(map(_unpacked, value[1:]))
    if kind == _TUPLE:
        return tuple(map(_unpacked, value[1:]))
    if kind == _MAPPING:
        parts = list(map(_unpacked, value[1:]))
        return dict(zip(parts[::2], parts[1::2], strict=True))
    _, name, args, attributes = value
    made = _ERRORS[name]
    error = made.__new__(made)
    error.args = _unpacked(args)
    vars(error).update(_unpacked(attributes))
    return error


def _maker(kind: type) -> Callable[[list[Any]], Any]:
    names = _FIELDS.get(kind)
    if kind is model.Ticket:
        return lambda items: model.Ticket._make([*items, _SETTLER])
    if names is None:
        return lambda items: kind(*items)

    def make(items: list[Any]) -> Any:
        made: Any = object.__new__(kind)  # its values were checked where it was made
        for name, item in zip(names, items, strict=True):
            object.__setattr__(made, name, item)
        return made

    return make


_MAKERS = {name: _maker(kind) for name, kind in KNOWN.items()}
