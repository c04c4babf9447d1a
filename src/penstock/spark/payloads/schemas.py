"""Schemas of payloads by id: a directory of them, or any function; and decoders of their formats.

    schemas/7.avsc               an Avro schema
    schemas/8.binpb              a Protobuf descriptor set whose last file has one message
    schemas/9.shop.Order.binpb   a descriptor set, and the name of the message

A schema never changes: another one gets another id.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from math import isinf
from pathlib import Path
from typing import Any

from penstock.checking import check_local
from penstock.errors import InvalidInput, PenstockError
from penstock.spark.payloads.avro_limits import avro_check
from penstock.spark.payloads.values import BadPayload

MAX_SCHEMA_BYTES = 4 << 20
MAX_SCHEMAS = 10_000  # in a directory
_DECODERS_KEPT = 1000
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_AVRO, _PROTOBUF = ".avsc", ".binpb"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_S = 253402300799  # of the year 9999

Decode = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """An Avro schema, as JSON text."""

    definition: str


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """A descriptor set (`protoc --descriptor_set_out --include_imports`) and one of its messages.

    `message` may be empty if the last file of the set has only one.
    """

    descriptor_set: bytes
    message: str = ""


Schema = AvroSchema | ProtobufSchema
# Returns a schema by its id, None if there is none. Called in tasks: it must be picklable.
Registry = Callable[[str], Schema | None]


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


class SchemaDirectory:
    """A registry: a directory that the driver and all executors see."""

    def __init__(self, path: str) -> None:
        self._root = Path(check_local(path))
        if not self._root.is_dir():
            raise InvalidInput(f"{path} is not a directory of schemas (on this machine)")

    def __call__(self, schema_id: str) -> Schema | None:
        if not is_id(schema_id):
            return None
        return _load(str(self._root), schema_id)

    def check(self) -> None:
        """Raise InvalidInput for a file that is no schema, before a job meets it."""
        names = sorted(path.name for path in self._root.iterdir() if path.suffix in _SUFFIXES)
        if len(names) > MAX_SCHEMAS:
            raise InvalidInput(
                f"{self._root} has {len(names)} schemas; the maximum is {MAX_SCHEMAS}"
            )
        for schema_id in {name.partition(".")[0] for name in names}:
            schema = self(schema_id)
            if schema is None:
                raise InvalidInput(
                    f"{self._root} has a schema with the id {schema_id!r}; an id has 1 to 64 "
                    f"letters, digits, _ and -"
                )
            with _naming(f"schema {schema_id} in {self._root}"):
                decoder_of(schema)


_SUFFIXES = (_AVRO, _PROTOBUF)


def _load(root: str, schema_id: str) -> Schema | None:
    found = [
        path
        for path in (
            *Path(root).glob(f"{schema_id}{_AVRO}"),
            *Path(root).glob(f"{schema_id}{_PROTOBUF}"),
            *Path(root).glob(f"{schema_id}.*{_PROTOBUF}"),
        )
        if path.is_file()
    ]
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(sorted(path.name for path in found))
        raise InvalidInput(f"{root} has several schemas with the id {schema_id}: {names}")
    (path,) = found
    size = path.stat().st_size
    if size > MAX_SCHEMA_BYTES:
        raise InvalidInput(f"{path} has {size} bytes; a schema has at most {MAX_SCHEMA_BYTES}")
    data = path.read_bytes()
    if path.suffix == _PROTOBUF:
        return ProtobufSchema(data, path.name[len(schema_id) : -len(_PROTOBUF)].lstrip("."))
    with _naming(str(path)):
        try:
            return AvroSchema(data.decode())
        except UnicodeDecodeError as error:
            raise InvalidInput(f"it is not UTF-8: {error}") from None


@contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from None


# -- decoders --------------------------------------------------------------------------------------


def _double(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise BadPayload("a number is out of the range of double")
    return number


def _refuse_constant(text: str) -> None:
    raise BadPayload(f"the payload is not JSON ({text} is no value of it)")


def json_decoder(*, decimals: bool) -> Decode:
    """Return a decoder of JSON. With `decimals`, numbers are not rounded."""
    decoder = json.JSONDecoder(
        parse_float=Decimal if decimals else _double, parse_constant=_refuse_constant
    )

    def decode(payload: bytes) -> Any:
        if not payload:
            raise BadPayload("the payload is empty")
        try:
            return decoder.decode(payload.decode())
        except UnicodeDecodeError as error:
            raise BadPayload(f"the payload is not UTF-8 (byte {error.start})") from None
        except json.JSONDecodeError as error:
            raise BadPayload(f"the payload is not JSON ({error})") from None
        except RecursionError:
            raise BadPayload("the payload is nested too deeply") from None
        except ValueError:
            raise BadPayload("the payload has a number with too many digits") from None

    return decode


@lru_cache(maxsize=_DECODERS_KEPT)
def decoder_of(schema: Schema) -> Decode:
    """Return the decoder of a schema. Raise InvalidInput if the schema is wrong."""
    if isinstance(schema, AvroSchema):
        return _avro_decoder(schema.definition)
    if isinstance(schema, ProtobufSchema):
        return _protobuf_decoder(schema)
    raise InvalidInput(
        f"a registry returns AvroSchema, ProtobufSchema or None, not {type(schema).__name__}"
    )


def _missing(package: str) -> PenstockError:
    return PenstockError(
        f"this schema needs the package {package!r}, which is not installed; "
        f"install Penstock with the extra schemas (pip install '.[schemas]' in its checkout)"
    )


def _avro_decoder(definition: str) -> Decode:
    try:
        import fastavro
    except ModuleNotFoundError:
        raise _missing("fastavro") from None
    try:
        parsed = fastavro.parse_schema(json.loads(definition))
    except (
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        fastavro.schema.SchemaParseException,
    ) as error:
        raise InvalidInput(f"it is not an Avro schema: {error}") from None
    check = avro_check(parsed)

    def decode(payload: bytes) -> Any:
        if check is not None:
            check(payload)
        data = BytesIO(payload)
        try:
            found = fastavro.schemaless_reader(data, parsed, None)
        except Exception as error:  # fastavro raises many kinds for wrong bytes
            raise BadPayload(
                f"the payload is not Avro of its schema ({type(error).__name__})"
            ) from None
        if data.tell() != len(payload):
            raise BadPayload("the payload is longer than its Avro schema says")
        return found

    return decode


def _protobuf_decoder(schema: ProtobufSchema) -> Decode:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    except ModuleNotFoundError:
        raise _missing("protobuf") from None
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(schema.descriptor_set).file
        if not files:
            raise InvalidInput("it is a descriptor set without files")
        pool = descriptor_pool.DescriptorPool()
        for one in files:
            pool.Add(one)
        name = schema.message
        if not name:
            last = files[-1]
            if len(last.message_type) != 1:
                names = ", ".join(one.name for one in last.message_type) or "none"
                raise InvalidInput(
                    f"it does not say which message is meant; there are {names}: name the file "
                    f"<id>.<package.Message>{_PROTOBUF}"
                )
            name = f"{last.package}.{last.message_type[0].name}".lstrip(".")
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (DecodeError, KeyError, TypeError) as error:
        raise InvalidInput(f"it is not a Protobuf descriptor set: {error}") from None

    def decode(payload: bytes) -> Any:
        try:
            return _message_value(kind.FromString(payload))
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadPayload(
                f"the payload is not a Protobuf {name} ({type(error).__name__})"
            ) from None

    return decode


def _message_value(message: Any) -> Any:
    """Return a message as a dict, by field name; well-known types as what they mean."""
    descriptor = message.DESCRIPTOR
    match descriptor.full_name:
        case "google.protobuf.Timestamp":
            if not -62135596800 <= message.seconds <= _LAST_S:
                raise BadPayload("a Timestamp is out of range")
            return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
        case name if name.startswith("google.protobuf.") and name.endswith("Value"):
            if [one.name for one in descriptor.fields] == ["value"]:  # Int64Value, StringValue …
                return message.value
    return {one.name: _field_value(message, one) for one in descriptor.fields}


def _field_value(message: Any, field: Any) -> Any:
    if not field.is_repeated:
        if field.has_presence and not message.HasField(field.name):
            return None
        return _single_value(getattr(message, field.name), field)
    found = getattr(message, field.name)
    if isinstance(found, Mapping):
        value = field.message_type.fields_by_name["value"]
        return {key: _single_value(found[key], value) for key in found}
    items: Sequence[Any] = found
    return [_single_value(one, field) for one in items]


def _single_value(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return _message_value(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return value
