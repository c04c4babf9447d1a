"""How the answer of an operation travels as JSON, both ways: one definition for server and client.

A record (a NamedTuple of the model) is an object with the same fields. A time in nanoseconds,
`first_failure_ns`, is RFC 3339 text named `first_failure_at`; one that is 0 is left out.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, get_args

A = TypeVar("A")

_NS = 1_000_000_000
_MAX_SECONDS = 4096
_seconds: dict[int, str] = {}  # the text of recent seconds: most times of a page share one


class Answer(Generic[A]):
    """An answer as JSON: `encode` makes what a JSON encoder takes, `decode` reads it."""

    def __init__(
        self,
        kind: type[Any] | None,
        encode: Callable[[A], Any],
        decode: Callable[[Any], A],
        *,
        field: str = "",
    ) -> None:
        self.kind = kind  # the Python type; None: there is no answer (status 204)
        self.field = field  # the JSON object's one field, if it has one
        self.encode = encode
        self.decode = decode


def in_field(name: str, kind: type[A]) -> Answer[A]:
    """Return an answer that is a JSON object with one field.

    >>> in_field("purged", int).encode(3)
    {'purged': 3}
    """
    return Answer(kind, lambda value: {name: value}, lambda data: data[name], field=name)


def nothing() -> Answer[None]:
    """Return an answer without content."""
    return Answer(None, lambda value: None, lambda data: None)


def always(name: str, value: object) -> Answer[None]:
    """Return an answer that only confirms the operation, by a field that is always the same."""
    return Answer(type(value), lambda _: {name: value}, lambda data: None, field=name)


def record(kind: type[A], *, omit_empty: bool = False) -> Answer[A]:
    """Return an answer that is a NamedTuple. With `omit_empty`, empty fields are left out."""
    return Answer(
        kind,
        lambda value: encode_record(value, omit_empty=omit_empty),
        lambda data: decode_record(kind, data),
    )


def encoded_by_route(kind: type[Any]) -> Answer[Any]:
    """Return the answer type of a page. Its JSON is made by the route."""
    return _not_json(kind, f"a {kind.__name__} is encoded by its route")


def for_brokers_only(kind: type[Any]) -> Answer[Any]:
    """Return the answer type of an operation that has no JSON: only brokers run it."""
    return _not_json(kind, "this operation is not offered over HTTP")


def _not_json(kind: type[Any], reason: str) -> Answer[Any]:
    def refuse(value: Any) -> Any:
        raise TypeError(reason)

    return Answer(kind, refuse, refuse)


def encode_record(value: Any, *, omit_empty: bool = False) -> dict[str, Any]:
    """Return a NamedTuple as a JSON object."""
    found: dict[str, Any] = {}
    for name, item in zip(value._fields, value, strict=True):
        if name.endswith("_ns"):
            if item:
                found[json_name(name)] = rfc3339(item)
        elif item or not omit_empty:
            found[name] = [encode_record(one) for one in item] if _is_records(item) else item
    return found


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and hasattr(value[0], "_fields")


def record_of_items(hint: Any) -> Any:
    """Return the record that a field has a sequence of; None if it is no such field."""
    items = get_args(hint)
    return items[0] if items and hasattr(items[0], "_fields") else None


def decode_record(kind: type[A], data: Mapping[str, Any]) -> A:
    """Return the NamedTuple of a JSON object. Fields that only a newer broker has are left out."""
    hints = kind.__annotations__
    values: dict[str, Any] = {}
    for name in kind._fields:  # type: ignore[attr-defined]
        if name.endswith("_ns"):
            values[name] = time_ns(data.get(json_name(name)))
        elif name in data:
            kind_of_items = record_of_items(hints[name])
            values[name] = (
                data[name]
                if kind_of_items is None
                else [decode_record(kind_of_items, one) for one in data[name]]
            )
        else:
            values[name] = hints[name]() if isinstance(hints[name], type) else None
    return kind(**values)


def json_name(name: str) -> str:
    """Return the JSON name of a time in nanoseconds.

    >>> json_name("first_failure_ns"), json_name("at_ns"), json_name("retry_at_ns")
    ('first_failure_at', 'at', 'retry_at')
    """
    name = name.removesuffix("_ns")
    return name if name.endswith("at") else f"{name}_at"


def rfc3339(at_ns: int) -> str:
    """Return a time as RFC 3339 text in UTC, with microseconds.

    >>> rfc3339(1_700_000_000_250_000_000)
    '2023-11-14T22:13:20.250000Z'
    """
    second, micros = divmod((at_ns + 500) // 1000, 1_000_000)
    return f"{text_of_second(second)}.{micros:06d}Z"


def text_of_second(second: int) -> str:
    """Return the part of RFC 3339 text before the fraction.

    >>> text_of_second(1_700_000_000)
    '2023-11-14T22:13:20'
    """
    text = _seconds.get(second)
    if text is None:
        if len(_seconds) >= _MAX_SECONDS:
            _seconds.clear()
        text = _seconds[second] = f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"
    return text


def time_ns(text: str | None) -> int:
    """Return RFC 3339 text as nanoseconds; 0 for None.

    >>> time_ns("2023-11-14T22:13:20.250001Z")
    1700000000250001000
    """
    if text is None:
        return 0
    time = datetime.fromisoformat(text)
    return int(time.replace(microsecond=0).timestamp()) * _NS + time.microsecond * 1000
