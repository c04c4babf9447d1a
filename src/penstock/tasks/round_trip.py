"""Check that a value comes back from JSON as it was: there, NaN becomes null, and bytes text.

An annotation may convert: a tuple for a `list[int]`, or the text of a date for a `date`. Where it
says nothing (`object`, `Any`, the items of a bare `list`), an equal value must come back.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, get_type_hints

import msgspec

_BYTES = (bytes, bytearray, memoryview)


def is_as_given(given: Any, read: Any, kind: Any) -> bool:
    """Return whether what was read is the given value, as the annotation `kind` takes it."""
    try:
        # `convert` keeps NaN, and makes no bytes of text.
        return _is_same(given, read) or _is_same(
            msgspec.convert(given, kind, builtin_types=_BYTES), read
        )
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return False


def is_as_returned(returned: Any, read: Any) -> bool:
    """Return whether what was read is the JSON of the returned value, with bytes where it has them.

    Without an annotation a date comes back as text, and a dataclass as a dict.
    """
    try:
        return _is_same(returned, read) or _is_same(
            msgspec.to_builtins(returned, builtin_types=_BYTES, str_keys=True),
            msgspec.to_builtins(read, builtin_types=_BYTES, str_keys=True),
            any_sequence=True,
        )
    except RecursionError:
        return False


def _is_same(one: Any, other: Any, *, any_sequence: bool = False) -> bool:
    """Compare like `==`, but NaN equals NaN, and objects without `__eq__` are compared by fields.

    With `any_sequence`, a tuple equals a list.
    """
    try:
        if one is other or one == other:
            return True
        if isinstance(one, float | Decimal) and isinstance(other, float | Decimal):
            return one != one and other != other  # NaN
    except Exception:  # of an `__eq__`, or of a signalling NaN
        return str(one) == str(other) if isinstance(one, Decimal) else False
    if isinstance(one, datetime) and isinstance(other, datetime) and one.tzinfo and other.tzinfo:
        # In the hour that a clock repeats, `==` is never true between two time zones.
        return one.astimezone(UTC) == other.astimezone(UTC)
    if any_sequence and isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return _are_same(one, other, any_sequence)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and _are_same(
            list(one.values()), [other[key] for key in one], any_sequence
        )
    kind: Any = type(one)
    if hints := _hints_of(kind):
        return all(
            is_as_given(getattr(one, name, None), getattr(other, name, None), hint)
            for name, hint in hints.items()
        )
    return isinstance(one, list | tuple) and _are_same(one, other, any_sequence)


def _are_same(some: Sequence[Any], others: Sequence[Any], any_sequence: bool) -> bool:
    return len(some) == len(others) and all(
        _is_same(one, other, any_sequence=any_sequence)
        for one, other in zip(some, others, strict=True)
    )


@cache
def _hints_of(kind: type) -> dict[str, Any]:
    """Return the annotated fields of a dataclass, Struct or other class; empty if it has none."""
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):
        return {}
