"""Every field of an object and of all objects below it, as plain values to compare."""

from array import array
from collections import deque
from typing import Any

_ATOMS = (int, float, str, bytes, bytearray, type(None), array)


# What is found ahead follows from the other fields, and may be found sooner or later.
_CACHES = {"upcoming", "_changed"}


def whole(value: Any, _seen: dict[int, int] | None = None) -> Any:
    """Return all fields, in order. An object that occurs again is given by its number.

    >>> whole([1, (2, {"a": [3]})])
    ('list', [1, ('tuple', [2, ('dict', [('a', ('list', [3]))])])])
    """
    seen = {} if _seen is None else _seen
    if isinstance(value, _ATOMS):
        return value
    if id(value) in seen:
        return ("again", seen[id(value)])
    if not isinstance(value, tuple):
        seen[id(value)] = len(seen)
    kind = type(value).__name__
    if isinstance(value, dict):
        return (kind, [(key, whole(item, seen)) for key, item in value.items()])
    if isinstance(value, set):
        return (kind, sorted(value))
    if isinstance(value, list | tuple | deque):
        return (kind, [whole(item, seen) for item in value])
    names = getattr(type(value), "__slots__", None) or vars(value)
    return (kind, [(n, whole(getattr(value, n), seen)) for n in names if n not in _CACHES])
