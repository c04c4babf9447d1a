"""Check Avro payloads that a few bytes can make too deep or too large, before fastavro reads them.

fastavro recurses in C without a limit, so a deep value of a recursive schema ends the process. The
payload's size does not limit items without bytes, such as nulls: six bytes can declare an array of
2**40 of them. Payloads of such schemas are walked in Python first. Other schemas need no check:
their depth is that of the schema, and every item takes a byte of the payload.
"""

from collections.abc import Callable
from typing import Any

from penstock.spark.payloads.values import BadPayload

MAX_DEPTH = 100  # records within records; protobuf has the same limit for messages
MAX_EMPTY_ITEMS = 10_000  # in arrays of a payload, whose items have no bytes
_RECORDS = ("record", "error")
_BYTES = {"boolean": 1, "float": 4, "double": 8}
_MAX_VARINT_BITS = 64

Check = Callable[[bytes], None]
_Skip = Callable[["_Payload"], None]


def avro_check(schema: Any) -> Check | None:
    """Return a check of payloads, which raises BadPayload; None if the schema needs none.

    `schema` is a schema as fastavro has parsed it: names are full names, and defined before use.
    """
    compiler = _Compiler()
    skip = compiler.skip_of(schema)
    if not compiler.is_recursive and not compiler.has_empty_items:
        return None

    def check(payload: bytes) -> None:
        try:
            skip(_Payload(payload))
        except RecursionError:
            raise _too_deep() from None

    return check


class _Payload:
    """A payload, the position in it, and what was counted up to there."""

    __slots__ = ("_at", "_data", "_empty_items", "depth")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._empty_items = 0
        self.depth = 0

    def skip(self, size_bytes: int) -> None:
        if not 0 <= size_bytes <= len(self._data) - self._at:
            raise _not_avro("EOFError")
        self._at += size_bytes

    def long(self) -> int:
        """Return a number with a variable length and zigzag sign."""
        found = shift = 0
        while True:
            if self._at >= len(self._data):
                raise _not_avro("EOFError")
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= _MAX_VARINT_BITS:
                raise _not_avro("OverflowError")
        if found >> _MAX_VARINT_BITS:
            raise _not_avro("OverflowError")
        return found >> 1 ^ -(found & 1)

    def count_empty(self, items: int) -> None:
        self._empty_items += items
        if self._empty_items > MAX_EMPTY_ITEMS:
            raise BadPayload(
                f"the payload has too many items (more than {MAX_EMPTY_ITEMS} items of Avro that "
                f"have no bytes)"
            )


def _not_avro(kind: str) -> BadPayload:
    return BadPayload(f"the payload is not Avro of its schema ({kind})")


def _too_deep() -> BadPayload:
    return BadPayload(f"the payload is nested too deeply (more than {MAX_DEPTH} records of Avro)")


class _Compiler:
    """Makes functions that skip a value of a schema, and notes what the schema has."""

    def __init__(self) -> None:
        self.is_recursive = False
        self.has_empty_items = False
        self._types: dict[str, Any] = {}  # definitions by name
        self._skips: dict[str, _Skip] = {}  # of complete definitions

    def skip_of(self, schema: Any) -> _Skip:
        if isinstance(schema, list):
            return _union([self.skip_of(one) for one in schema])
        if isinstance(schema, str):
            return self._named(schema) if schema in self._types else _plain(schema)
        match schema["type"]:
            case "record" | "error":
                return self._record(schema)
            case "array":
                return self._array(schema["items"])
            case "map":
                return _blocks(_entry(self.skip_of(schema["values"])))
            case "fixed":
                self._types[schema["name"]] = schema
                skip = self._skips[schema["name"]] = _fixed(schema["size"])
                return skip
            case "enum":
                self._types[schema["name"]] = schema
                skip = self._skips[schema["name"]] = _plain("int")
                return skip
            case type_:
                return self.skip_of(type_)

    def _named(self, name: str) -> _Skip:
        if name in self._skips:
            return self._skips[name]
        self.is_recursive = True  # its definition is not complete: this is within it
        return lambda payload: self._skips[name](payload)

    def _record(self, schema: Any) -> _Skip:
        name = schema["name"]
        self._types[name] = schema
        fields = [self.skip_of(one["type"]) for one in schema["fields"]]

        def record(payload: _Payload) -> None:
            payload.depth += 1
            if payload.depth > MAX_DEPTH:
                raise _too_deep()
            for skip in fields:
                skip(payload)
            payload.depth -= 1

        self._skips[name] = record
        return record

    def _array(self, items: Any) -> _Skip:
        skip = self.skip_of(items)
        if not self._may_be_empty(items, ()):
            return _blocks(skip)
        self.has_empty_items = True
        return _blocks(skip, count_items=True)

    def _may_be_empty(self, schema: Any, within: tuple[str, ...]) -> bool:
        """Return whether a value can have no bytes."""
        if isinstance(schema, list):
            return False  # a union has the number of its branch
        if isinstance(schema, str):
            if schema not in self._types:
                return schema == "null"
            return schema in within or self._may_be_empty(self._types[schema], within)
        type_ = schema["type"]
        if type_ in _RECORDS:
            inner = (*within, schema["name"])
            return all(self._may_be_empty(one["type"], inner) for one in schema["fields"])
        if type_ == "fixed":
            return not schema["size"]
        return type_ not in ("array", "map", "enum") and self._may_be_empty(type_, within)


def _plain(type_: str) -> _Skip:
    if type_ == "null":
        return lambda _: None
    if type_ in _BYTES:
        return _fixed(_BYTES[type_])
    if type_ in ("bytes", "string"):
        return lambda payload: payload.skip(payload.long())
    return _number


def _number(payload: _Payload) -> None:
    payload.long()


def _fixed(size_bytes: int) -> _Skip:
    return lambda payload: payload.skip(size_bytes)


def _entry(value: _Skip) -> _Skip:
    def entry(payload: _Payload) -> None:
        payload.skip(payload.long())
        value(payload)

    return entry


def _union(branches: list[_Skip]) -> _Skip:
    def union(payload: _Payload) -> None:
        number = payload.long()
        if not 0 <= number < len(branches):
            raise _not_avro("IndexError")
        branches[number](payload)

    return union


def _blocks(item: _Skip, *, count_items: bool = False) -> _Skip:
    def blocks(payload: _Payload) -> None:
        while count := payload.long():
            if count < 0:  # then the size of the block follows, which fastavro does not use either
                count = -count
                payload.long()
            if count_items:
                payload.count_empty(count)
            for _ in range(count):
                item(payload)

    return blocks
