"""Calls and answers between brokers as bytes: MessagePack, with the names of our own classes.

A value of a known class is a list: the class's name, then the fields in their order. Other lists
begin with a number that says what they are. Only the classes below are read: bytes of a stranger
cannot make anything else.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec

from penstock import errors, model, operations
from penstock.broker.postgres.membership import OwnedElsewhere
from penstock.broker.store import Outcome, QueueInfo, Settlement
from penstock.names import QueueName
from penstock.queue import segments, settings

_LIST, _TUPLE, _MAPPING, _ERROR, _AS_IT_IS = range(5)
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
_NAMES = {one: name for name, one in KNOWN.items()}
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
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def encode(values: list[Any]) -> bytes:
    """Return values that were packed as bytes."""
    return _encode(values)


def decode(data: bytes | memoryview) -> list[Any]:
    """Return the values that were packed and encoded. Raise ValueError if they are none."""
    try:
        return [unpacked(value) for value in _decode(data)]
    except (msgspec.DecodeError, KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"another broker sent what cannot be read: {error!r}") from None


def packed(value: Any) -> Any:
    """Return a value as lists of plain values. Raise TypeError if a part of it cannot travel."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return _packed_all(_LIST, value)
    if kind is model.Ticket:
        return ["Ticket", *value[:-1]]  # the settler stays where it is
    name = _NAMES.get(kind)
    if name is not None:
        names = _FIELDS.get(kind)
        return _packed_all(name, value if names is None else [getattr(value, n) for n in names])
    if kind is tuple:
        return _packed_all(_TUPLE, value)
    if isinstance(value, Mapping):
        return _packed_all(_MAPPING, [part for item in value.items() for part in item])
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, BaseException):
        return _packed_error(value)
    if isinstance(value, Enum):
        return packed(value.value)
    if isinstance(value, list | tuple):
        return _packed_all(_LIST, value)
    raise TypeError(f"{kind.__name__} cannot be sent to another broker")


def packed_as_it_is(*parts: Any) -> list[Any]:
    """Return a list whose parts are plain values, and lists of plain values, as packed.

    Nothing looks at its parts: this is for many small values.
    """
    return [_AS_IT_IS, *parts]


def _packed_all(head: int | str, items: Iterable[Any]) -> list[Any]:
    # Most parts are plain: to look first is three times as fast as a call for each.
    return [head, *[item if type(item) in _PLAIN else packed(item) for item in items]]


def _packed_error(error: BaseException) -> list[Any]:
    name = type(error).__name__
    if _ERRORS.get(name) is not type(error):
        return [_ERROR, "Unavailable", [_TUPLE, f"another broker failed: {error!r}"], [_MAPPING]]
    return [_ERROR, name, packed(tuple(error.args)), packed(vars(error))]


def unpacked(value: Any) -> Any:
    """Return the value that was packed."""
    if type(value) is not list:
        return value
    kind = value[0]
    if kind == _AS_IT_IS:
        return value[1:]
    if kind == _ERROR:
        return _unpacked_error(value)
    parts = [unpacked(part) if type(part) is list else part for part in value[1:]]
    if type(kind) is str:
        return _MAKERS[kind](parts)
    if kind == _LIST:
        return parts
    if kind == _TUPLE:
        return tuple(parts)
    if kind != _MAPPING:
        raise ValueError(f"there is no kind {kind}")
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _unpacked_error(value: list[Any]) -> Exception:
    _, name, args, attributes = value
    made = _ERRORS[name]
    error = made.__new__(made)
    error.args = unpacked(args)
    vars(error).update(unpacked(attributes))
    return error


def _maker(kind: type) -> Callable[[list[Any]], Any]:
    names = _FIELDS.get(kind)
    if kind is model.Ticket:
        return lambda items: model.Ticket._make([*items, _SETTLER])
    if names is None:
        return kind._make  # type: ignore[attr-defined,no-any-return]

    def make(items: list[Any]) -> Any:
        made: Any = object.__new__(kind)  # its values were checked where it was made
        for name, item in zip(names, items, strict=True):
            object.__setattr__(made, name, item)
        return made

    return make


_MAKERS = {name: _maker(kind) for name, kind in KNOWN.items()}
