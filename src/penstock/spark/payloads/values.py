"""Turn decoded payloads (dicts, lists, text, numbers …) into values of a Spark schema, strictly.

A value of another type is a bad record: its reason has the path and both types, never the value,
because reasons are shown and logged. As in Spark's `from_json`, missing fields are null, unknown
fields are ignored, and a string may be given any JSON value, as its text.
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from math import inf, isinf
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.arrow.selection import switch_in
from penstock.errors import InvalidInput
from penstock.spark.payloads.ddl import DECIMAL_RULE, MAX_PRECISION, is_collation

Converter = Callable[[Any], Any]

_INTEGERS: dict[type[DataType], tuple[int, pa.DataType]] = {
    ByteType: (8, pa.int8()),
    ShortType: (16, pa.int16()),
    IntegerType: (32, pa.int32()),
    LongType: (64, pa.int64()),
}
_OTHERS: dict[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    TimestampNTZType: pa.timestamp("us"),
}
_MOST_FLOAT32 = 3.4028235677973366e38  # what still rounds to a number
_FLOAT_NAMES = frozenset(["NaN", "Infinity", "-Infinity"])
_WHOLE_KEY = re.compile("0|-?[1-9][0-9]{0,99}")
_MAX_PATH = 200  # characters
_DECIMALS = Context(prec=80)


class BadPayload(Exception):
    """A payload that is not what the schema says. The reason has no part of the payload."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def within(self, name: str) -> "BadPayload":
        return BadPayload(self.reason, f"{name}{self.path}")

    def __str__(self) -> str:
        where = f"$.{self.path[:_MAX_PATH].lstrip('.')}: " if self.path else ""
        return f"{where}{self.reason}"


# -- types -----------------------------------------------------------------------------------------


def arrow_type(type_: DataType) -> pa.DataType:
    """Return the Arrow type that Spark expects. Raise InvalidInput for one without payloads."""
    kind = type(type_)
    if kind in _INTEGERS:
        return _INTEGERS[kind][1]
    if isinstance(type_, DecimalType):
        if not 1 <= type_.precision <= MAX_PRECISION or not 0 <= type_.scale <= type_.precision:
            raise InvalidInput(f"a payload has no {type_.simpleString()}: {DECIMAL_RULE}")
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, StringType):
        return pa.string()
    if kind in _OTHERS:
        return _OTHERS[kind]
    if isinstance(type_, ArrayType):
        return pa.list_(pa.field("element", arrow_type(type_.elementType), type_.containsNull))
    if isinstance(type_, MapType):
        key = pa.field("key", arrow_type(type_.keyType), nullable=False)
        value = pa.field("value", arrow_type(type_.valueType), type_.valueContainsNull)
        return pa.map_(key, value)
    if isinstance(type_, StructType):
        return pa.struct(
            [pa.field(one.name, arrow_type(one.dataType), one.nullable) for one in type_.fields]
        )
    raise InvalidInput(
        f"a payload has no {type_.simpleString()}: use boolean, whole numbers, float, double, "
        f"decimal, string, binary, date, timestamp, array, map or struct"
    )


def check_payload_type(type_: DataType) -> StructType:
    """Return the schema of payloads, checked. Raise InvalidInput."""
    if not isinstance(type_, StructType) or not type_.fields:
        raise InvalidInput(
            f"the schema of payloads is {type_.simpleString()}; it must be a struct with at least "
            f"one field"
        )
    _check_fields(type_, "")
    arrow_type(type_)
    converter_of(type_)
    return type_


def _check_fields(type_: DataType, field: str) -> None:
    """Raise InvalidInput for what types have and Spark refuses late. `field` has the type."""
    match type_:
        case StructType():
            names = type_.fieldNames()
            for one in type_.fields:
                if names.count(one.name) > 1:
                    raise InvalidInput(f"the schema of payloads has the field {one.name!r} twice")
                switch_in(f"nullable of the field {one.name!r}", one.nullable)
                _check_fields(one.dataType, one.name)
        case ArrayType():
            switch_in(f"containsNull of the field {field!r}", type_.containsNull)
            _check_fields(type_.elementType, field)
        case MapType():
            switch_in(f"valueContainsNull of the field {field!r}", type_.valueContainsNull)
            _check_fields(type_.valueType, field)
        case StringType() if not is_collation(type_.collation):
            raise InvalidInput(
                f"there is no collation {type_.collation}, as the field {field!r} has: use one "
                f"such as UNICODE"
            )


def has_decimals(type_: DataType) -> bool:
    """Return whether numbers must be decoded without rounding."""
    match type_:
        case DecimalType():
            return True
        case StructType():
            return any(has_decimals(one.dataType) for one in type_.fields)
        case ArrayType():
            return has_decimals(type_.elementType)
        case MapType():
            return has_decimals(type_.valueType)
    return False


# -- values ----------------------------------------------------------------------------------------


def converter_of(type_: DataType) -> Converter:
    """Return a function that turns a decoded value, not None, into one for Arrow."""
    kind = type(type_)
    if kind in _INTEGERS:
        return _whole(_INTEGERS[kind][0], type_.simpleString())
    if isinstance(type_, DecimalType):
        return _decimal(type_)
    if isinstance(type_, StringType):
        return _text
    if isinstance(type_, StructType):
        return _struct(type_)
    if isinstance(type_, ArrayType):
        return _array(type_)
    if isinstance(type_, MapType):
        return _map(type_)
    return _PLAIN[kind]


def _wrong(value: object, wanted: str) -> BadPayload:
    return BadPayload(f"it is {_kind(value)}, not {wanted}")


def _kind(value: object) -> str:
    match value:
        case bool():
            return "a boolean"
        case int():
            return "a whole number"
        case float() | Decimal():
            return "a number"
        case str():
            return "a string"
        case bytes():
            return "bytes"
        case list() | tuple():
            return "an array"
        case Mapping():
            return "an object"
        case None:
            return "null"
    return f"a {type(value).__name__}"


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise _wrong(value, "boolean")


def _whole(bits: int, name: str) -> Converter:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def whole(value: Any) -> int:
        if type(value) is not int:
            raise _wrong(value, name)
        if low <= value <= high:
            return value
        raise BadPayload(f"it is out of the range of {name}")

    return whole


def _float(value: Any) -> float:
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is str and value in _FLOAT_NAMES:
        return float(value)
    if kind is not int and kind is not Decimal:
        raise _wrong(value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if isinf(number):
        raise BadPayload("it is out of the range of double")
    return number


def _float32(value: Any) -> float:
    number = _float(value)
    if _MOST_FLOAT32 < abs(number) < inf:
        raise BadPayload("it is out of the range of float")
    return number


def _decimal(type_: DecimalType) -> Converter:
    unit, name = Decimal(1).scaleb(-type_.scale), type_.simpleString()
    most = Decimal(10) ** (type_.precision - type_.scale)

    def decimal(value: Any) -> Decimal:
        if type(value) not in (int, Decimal, float):
            raise _wrong(value, name)
        number = Decimal(repr(value)) if type(value) is float else Decimal(value)
        try:
            number = number.quantize(unit, ROUND_HALF_UP, _DECIMALS)
        except InvalidOperation:
            raise BadPayload(f"it is out of the range of {name}") from None
        if number.is_nan() or abs(number) >= most:
            raise BadPayload(f"it is out of the range of {name}")
        return number

    return decimal


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bytes():
            raise _wrong(value, "string")
        case date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_text)
    except (TypeError, ValueError):
        raise _wrong(value, "string") from None


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return b64decode(value, validate=True)
        except ValueError:
            raise BadPayload("it is not base64") from None
    raise _wrong(value, "binary (base64)")


def _date(value: Any) -> date:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise BadPayload("it is not a date such as 2026-01-31") from None
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise _wrong(value, "date")


def _moment(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise BadPayload("it is not a time such as 2026-01-31T12:00:00Z") from None
    if isinstance(value, datetime):
        return value
    raise _wrong(value, "timestamp")


def _timestamp(value: Any) -> datetime:
    moment = _moment(value)
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise BadPayload("it is not in the years 1 to 9999 in UTC") from None


def _timestamp_ntz(value: Any) -> datetime:
    moment = _moment(value)
    if moment.tzinfo is not None:
        raise BadPayload("it has a time zone, which timestamp_ntz has not")
    return moment


_PLAIN: dict[type[DataType], Converter] = {
    BooleanType: _boolean,
    FloatType: _float32,
    DoubleType: _float,
    BinaryType: _binary,
    DateType: _date,
    TimestampType: _timestamp,
    TimestampNTZType: _timestamp_ntz,
}


def _struct(type_: StructType) -> Converter:
    fields = [(one.name, converter_of(one.dataType), one.nullable) for one in type_.fields]

    def struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong(value, "an object")
        made = {}
        for name, convert, nullable in fields:
            found = value.get(name)
            if found is not None:
                try:
                    found = convert(found)
                except BadPayload as bad:
                    raise bad.within(f".{name}") from None
            elif not nullable:
                raise BadPayload("it is null or missing, and the schema says NOT NULL", f".{name}")
            made[name] = found
        return made

    return struct


def _array(type_: ArrayType) -> Converter:
    convert, may_be_null = converter_of(type_.elementType), type_.containsNull

    def array(value: Any) -> list[Any]:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise _wrong(value, "an array")
        made = []
        for number, one in enumerate(value):
            try:
                made.append(_item(one, convert, may_be_null))
            except BadPayload as bad:
                raise bad.within(f"[{number}]") from None
        return made

    return array


def _item(value: Any, convert: Converter, may_be_null: bool) -> Any:
    if value is not None:
        return convert(value)
    if may_be_null:
        return None
    raise BadPayload("it is null, and the schema says NOT NULL")


def _map(type_: MapType) -> Converter:
    key_kind = type(type_.keyType)
    if not isinstance(type_.keyType, StringType) and key_kind not in _INTEGERS:
        raise InvalidInput(
            f"a payload has no map with keys of {type_.keyType.simpleString()}: use strings or "
            f"whole numbers"
        )
    convert_key = converter_of(type_.keyType)
    convert, may_be_null = converter_of(type_.valueType), type_.valueContainsNull

    def map_(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise _wrong(value, "an object")
        made: dict[Any, Any] = {}
        for key, one in value.items():
            if key_kind in _INTEGERS and isinstance(key, str):  # as JSON has them
                # int() takes other forms as well, such as "1_0" and "01": keys would merge.
                if _WHOLE_KEY.fullmatch(key) is None:
                    raise BadPayload("a key is not a whole number such as 7 or -7")
                key = int(key)
            try:
                made[convert_key(key)] = _item(one, convert, may_be_null)
            except BadPayload as bad:
                raise bad.within("[key]") from None
        return list(made.items())

    return map_
