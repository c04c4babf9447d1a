"""Payloads as typed columns: what is decoded, what is bad, and why."""

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    _parse_datatype_json_string,
)

import penstock
from penstock.errors import InvalidInput
from penstock.spark import AvroSchema, MalformedPayload, ProtobufSchema, SchemaDirectory, read
from penstock.spark.payloads.columns import PayloadDecoder, PayloadOptions, mode_of
from penstock.spark.payloads.ddl import check_ddl
from penstock.spark.payloads.frames import payload_schema
from tests.spark.in_process import rows, source


def struct(**types: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in types.items()])


ORDER = struct(id=LongType(), name=StringType())


def decoded(type_: StructType, *payloads: bytes, **options: Any) -> list[tuple[Any, str | None]]:
    found = PayloadDecoder(type_, PayloadOptions(**options)).decode(
        pa.array(payloads, pa.binary()), None
    )
    return list(zip(found.data.to_pylist(), found.reasons, strict=True))


def value_of(type_: DataType, text: str) -> Any:
    ((found, reason),) = decoded(struct(x=type_), f'{{"x": {text}}}'.encode())
    return reason if reason is not None else found["x"]


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "text", "wanted"),
    [
        (LongType(), "9223372036854775807", 9223372036854775807),
        (IntegerType(), "-2147483648", -2147483648),
        (DoubleType(), "1", 1.0),
        (DoubleType(), '"Infinity"', float("inf")),
        (DecimalType(10, 2), "1.005", Decimal("1.01")),
        (DecimalType(38, 18), "0.123456789012345678", Decimal("0.123456789012345678")),
        (StringType(), '"ä"', "ä"),
        (StringType(), '{"a": [1, true, null]}', '{"a":[1,true,null]}'),
        (StringType(), "1.50", "1.5"),
        (BinaryType(), '"aGk="', b"hi"),
        (DateType(), '"2026-01-31"', date(2026, 1, 31)),
        (TimestampType(), '"2026-01-31T12:00:00+02:00"', datetime(2026, 1, 31, 10, tzinfo=UTC)),
        (TimestampType(), '"2026-01-31T12:00:00"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (TimestampNTZType(), '"2026-01-31T12:00:00"', datetime(2026, 1, 31, 12)),
        (ArrayType(LongType()), "[1, null]", [1, None]),
        (MapType(StringType(), LongType()), '{"a": 1, "a": 2}', [("a", 2)]),
        (MapType(IntegerType(), LongType()), '{"7": 1}', [(7, 1)]),
        (MapType(LongType(), LongType()), '{"0": 1, "-10": 2}', [(0, 1), (-10, 2)]),
        (struct(y=struct(z=LongType())), '{"y": {"z": 3, "more": 4}}', {"y": {"z": 3}}),
        (LongType(), "null", None),
    ],
)
def test_values_of_each_type(type_: DataType, text: str, wanted: object) -> None:
    assert value_of(type_, text) == wanted


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        (LongType(), '"secret"', "$.x: it is a string, not bigint"),
        (LongType(), "1.0", "$.x: it is a number, not bigint"),
        (LongType(), "true", "$.x: it is a boolean, not bigint"),
        (LongType(), "9223372036854775808", "$.x: it is out of the range of bigint"),
        (LongType(), "1" * 5000, "the payload has a number with too many digits"),
        (DoubleType(), '"1.5"', "$.x: it is a string, not a number"),
        (DecimalType(4, 2), "100", "$.x: it is out of the range of decimal(4,2)"),
        (DecimalType(4, 2), "1e999999", "$.x: it is out of the range of decimal(4,2)"),
        (DecimalType(4, 2), "NaN", "the payload is not JSON (NaN is no value of it)"),
        (DoubleType(), "NaN", "the payload is not JSON (NaN is no value of it)"),
        (DoubleType(), "1e400", "a number is out of the range of double"),
        (FloatType(), "1e39", "$.x: it is out of the range of float"),
        (TimestampType(), '"0001-01-01T00:00:00+14:00"', "$.x: it is not in the years 1 to"),
        (BinaryType(), '"no base64!"', "$.x: it is not base64"),
        (DateType(), '"31.1.2026"', "$.x: it is not a date such as 2026-01-31"),
        (TimestampType(), "1700000000", "$.x: it is a whole number, not timestamp"),
        (TimestampNTZType(), '"2026-01-31T12:00:00Z"', "$.x: it has a time zone, which"),
        (ArrayType(LongType()), "[1, {}]", "$.x[1]: it is an object, not bigint"),
        (ArrayType(LongType(), False), "[null]", "$.x[0]: it is null, and the schema"),
        (MapType(StringType(), LongType()), "[]", "$.x: it is an array, not an object"),
        (MapType(IntegerType(), LongType()), '{"a": 1}', "$.x: a key is not a whole number"),
        (struct(y=LongType()), '{"y": []}', "$.x.y: it is an array, not bigint"),
        (StringType(), '"\\ud800"', "a value cannot be stored (UnicodeEncodeError)"),
    ],
)
def test_bad_values_have_a_reason_without_the_value(
    type_: DataType, text: str, reason: str
) -> None:
    found = value_of(type_, text)
    assert found.startswith(reason) and "secret" not in found


@pytest.mark.parametrize(
    "key", ["1_0", "+10", " 1", "1 ", "01", "-0", "-01", "", "-", "\u0661", "1\\n", "1.0"]
)
def test_keys_of_a_map_are_whole_numbers_only_in_their_usual_form(key: str) -> None:
    found = value_of(MapType(LongType(), LongType()), f'{{"10": 1, "{key}": 2}}')
    assert found == "$.x: a key is not a whole number such as 7 or -7"


def test_bad_payloads_have_a_reason_and_do_not_disturb_others() -> None:
    payloads = (
        *(b'{"id": 1, "name": "a", "more": 1}', b"", b"{", b"[1]", b"null", b"\xff"),
        *(b"[" * 100_000, b"{}", b'{"id": 2}x', b"\xef\xbb\xbf{}", b'{"name": "\\ud800"}'),
    )
    found = decoded(ORDER, *payloads)
    assert [data for data, _ in found] == [
        {"id": 1, "name": "a"},
        *[None] * 6,
        {"id": None, "name": None},
        *[None] * 3,
    ]
    reasons = [reason for _, reason in found]
    assert reasons[0] is None and reasons[7] is None
    assert reasons[1] == "the payload is empty"
    assert reasons[2] is not None and reasons[2].startswith("the payload is not JSON")
    assert reasons[3] == "it is an array, not an object"
    assert reasons[4] == "the payload is null, not an object"
    assert reasons[5] == "the payload is not UTF-8 (byte 0)"
    assert reasons[6] == "the payload is nested too deeply"
    assert all(reasons[8:])


def test_a_field_that_must_not_be_null_makes_a_bad_record() -> None:
    type_ = StructType([StructField("id", LongType(), nullable=False)])
    found = decoded(type_, b'{"id": 1}', b"{}", b'{"id": null}')
    assert [data for data, _ in found] == [{"id": 1}, None, None]
    assert found[1][1] == "$.id: it is null or missing, and the schema says NOT NULL"


def test_a_schema_and_a_mode_that_are_not_text_are_refused() -> None:
    for wrong in (None, 7, LongType()):
        with pytest.raises(InvalidInput, match="the schema of payloads is .*StructType"):
            payload_schema(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="the mode is .* one of PERMISSIVE"):
            mode_of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (StructType([]), "at least one field"),
        (LongType(), "must be a struct"),
        (struct(x=NullType()), "has no void"),
        (struct(x=MapType(DoubleType(), LongType())), "no map with keys of double"),
        (StructType([*ORDER.fields, *ORDER.fields]), "'id' twice"),
    ],
)
def test_schemas_that_payloads_cannot_have_are_refused(type_: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PayloadDecoder(type_, PayloadOptions())


# -- Avro and Protobuf, by id ----------------------------------------------------------------------

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {
                "name": "total",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            },
            {"name": "tags", "type": {"type": "map", "values": "int"}},
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
            {"name": "raw", "type": "bytes"},
        ],
    }
)
AT = datetime(2026, 1, 31, 12, 0, 0, 250, tzinfo=UTC)
WIDE = StructType(
    [
        *ORDER.fields,
        StructField("at", TimestampType()),
        StructField("total", DecimalType(6, 2)),
        StructField("tags", MapType(StringType(), IntegerType())),
        StructField("kind", StringType()),
        StructField("raw", BinaryType()),
    ]
)
VALUES = {
    "id": 7,
    "name": "ann",
    "at": AT,
    "total": Decimal("9.50"),
    "tags": {"a": 1},
    "kind": "B",
    "raw": b"\x00\xff",
}


def avro(**values: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO)), {**VALUES, **values})
    return out.getvalue()


def descriptor_set() -> bytes:
    """A set of two files, as protoc writes it with --include_imports."""
    fields = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=fields.TYPE_STRING, label=fields.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=fields.TYPE_INT32, label=fields.LABEL_OPTIONAL)
    for number, (name, type_, type_name) in enumerate(
        (
            ("id", fields.TYPE_INT64, ""),
            ("name", fields.TYPE_STRING, ""),
            ("at", fields.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
            ("kind", fields.TYPE_ENUM, ".shop.Kind"),
            ("raw", fields.TYPE_BYTES, ""),
        ),
        start=1,
    ):
        order.field.add(
            name=name,
            number=number,
            type=type_,
            type_name=type_name or None,
            label=fields.LABEL_OPTIONAL,
        )
    order.field.add(
        name="tags",
        number=9,
        type=fields.TYPE_MESSAGE,
        type_name=".shop.Order.TagsEntry",
        label=fields.LABEL_REPEATED,
    )
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[stamp, file]).SerializeToString())


def protobuf(**values: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    message = kind(id=7, name="ann", kind=1, raw=b"\x00\xff", tags={"a": 1})
    message.at.FromDatetime(AT)
    for name, value in values.items():
        setattr(message, name, value)
    return bytes(message.SerializeToString())


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "7.avsc").write_text(AVRO)
    (folder / "8.shop.Order.binpb").write_bytes(descriptor_set())
    (folder / "9.binpb").write_bytes(descriptor_set())
    (folder / "README.md").write_text("not a schema")
    return folder


def by_header(
    registry: Callable[[str], Any], *messages: tuple[bytes, dict[str, str] | None], **options: Any
) -> list[tuple[Any, str | None]]:
    decoder = PayloadDecoder(WIDE, PayloadOptions(registry=registry, **options))
    headers = [None if pairs is None else list(pairs.items()) for _, pairs in messages]
    found = decoder.decode(
        pa.array([payload for payload, _ in messages], pa.binary()),
        pa.array(headers, pa.map_(pa.string(), pa.string())),
    )
    return list(zip(found.data.to_pylist(), found.reasons, strict=True))


def test_a_header_chooses_avro_protobuf_or_json(schemas: Path) -> None:
    found = by_header(
        SchemaDirectory(str(schemas)),
        (avro(), {"schema-id": "7"}),
        (protobuf(), {"schema-id": "8"}),
        (protobuf(), {"schema-id": "9"}),
        (b'{"id": 7}', {"other": "7"}),
        (b'{"id": 7}', None),
    )
    assert [reason for _, reason in found] == [None] * 5
    wanted = {**VALUES, "tags": [("a", 1)]}
    assert found[0][0] == wanted
    assert found[1][0] == found[2][0] == {**wanted, "total": None}
    assert found[3][0] == found[4][0] == {**dict.fromkeys(VALUES), "id": 7}


def test_bad_payloads_and_unknown_schemas_have_a_reason(schemas: Path) -> None:
    asked: list[str] = []
    directory = SchemaDirectory(str(schemas))

    def registry(schema_id: str) -> Any:
        asked.append(schema_id)
        return directory(schema_id)

    found = by_header(
        registry,
        (avro()[:-1], {"schema-id": "7"}),
        (avro() + b"x", {"schema-id": "7"}),
        (b"", {"schema-id": "7"}),
        (b"\xff\xff", {"schema-id": "8"}),
        (b"", {"schema-id": "8"}),
        (avro(), {"schema-id": "nope"}),
        (avro(), {"schema-id": "nope"}),
        (avro(), {"schema-id": "../schemas/7"}),
        (avro(), None),
    )
    reasons = [reason for _, reason in found]
    assert reasons[0] == reasons[2] == "the payload is not Avro of its schema (EOFError)"
    assert reasons[1] == "the payload is longer than its Avro schema says"
    assert reasons[3] == "the payload is not a Protobuf shop.Order (DecodeError)"
    assert reasons[4] is None and found[4][0]["id"] == 0, "Protobuf's defaults"
    assert reasons[5] == reasons[6] == "there is no schema with the id nope (header 'schema-id')"
    assert reasons[7] is not None and "of 12 characters" in reasons[7]
    assert reasons[8] is not None and reasons[8].startswith("the payload is not")
    assert asked == ["7", "8", "nope", "../schemas/7"], "each is asked for once"


def test_without_schemas_the_reason_names_the_schema_that_the_header_names() -> None:
    decoder = PayloadDecoder(ORDER, PayloadOptions())
    pairs = ({"schema-id": "7"}, {"schema-id": "a b"}, {"schema-id": ""}, {"other": "7"}, None)
    headers = [None if one is None else list(one.items()) for one in (*pairs, *[pairs[0]] * 2)]
    found = decoder.decode(
        pa.array([b"\x02\x04n1"] * 5 + [b'{"id": 1}', b'{"name": "\\ud800"}'], pa.binary()),
        pa.array(headers, pa.map_(pa.string(), pa.string())),
    )
    plain = "the payload is not JSON (Expecting value: line 1 column 1 (char 0))"
    assert found.reasons[0] == (
        "the header 'schema-id' names the schema 7, and no schemas are given: give their directory "
        f"as payload_schemas (option payloadSchemas). Read as JSON: {plain}"
    )
    assert found.reasons[1] is not None
    assert found.reasons[1].startswith("the header 'schema-id' names the schema of 3 characters, ")
    assert found.reasons[2:5] == [plain] * 3
    assert found.reasons[5] is None, "JSON is decoded, whatever the header says"
    assert found.reasons[6] is not None
    assert found.reasons[6].endswith("JSON: a value cannot be stored (UnicodeEncodeError)")


def test_a_schema_for_messages_without_the_header_and_a_header_of_another_name() -> None:
    def registry(schema_id: str) -> Any:
        return {"7": AvroSchema(AVRO), "8": ProtobufSchema(descriptor_set())}.get(schema_id)

    found = by_header(
        registry,
        (avro(), None),
        (protobuf(), {"kind": "8", "schema-id": "7"}),
        header="kind",
        schema_id="7",
    )
    assert [reason for _, reason in found] == [None, None]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("1.avsc", b"{", "schema 1 in .*: it is not an Avro schema"),
        ("1.avsc", b'{"type": "nonsense"}', "it is not an Avro schema"),
        ("1.avsc", b"\xff", "it is not UTF-8"),
        ("1.binpb", b"\xff", "it is not a Protobuf descriptor set"),
        ("1.binpb", b"", "without files"),
        ("1.shop.None.binpb", descriptor_set(), "it is not a Protobuf descriptor set"),
        ("7.binpb", descriptor_set(), "several schemas with the id 7"),
        ("a b.avsc", AVRO.encode(), "letters, digits"),
    ],
)
def test_wrong_schema_files_are_found_before_a_job(
    schemas: Path, name: str, content: bytes, message: str
) -> None:
    SchemaDirectory(str(schemas)).check()
    (schemas / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        PayloadOptions(registry=SchemaDirectory(str(schemas))).check()


def test_options_of_decoding_are_checked(schemas: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a directory"):
        SchemaDirectory(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidInput, match="needs the schemas"):
        PayloadOptions(schema_id="7")
    with pytest.raises(InvalidInput, match="no schema with the id"):
        PayloadOptions(registry=SchemaDirectory(str(schemas)), schema_id="99").check()
    with pytest.raises(InvalidInput, match="AvroSchema, ProtobufSchema or None, not str"):
        PayloadOptions(registry=lambda _: "text", schema_id="7").check()  # type: ignore[arg-type, return-value]


# -- hostile Avro and Protobuf ---------------------------------------------------------------------

LINKED = """{"type": "record", "name": "shop.Node", "fields": [
    {"name": "id", "type": "long"}, {"name": "next", "type": ["null", "Node"]}]}"""
TREE = """{"type": "record", "name": "Tree", "fields": [
    {"name": "id", "type": "long"},
    {"name": "children", "type": {"type": "array", "items": "Tree"}},
    {"name": "by_name", "type": {"type": "map", "values": "Tree"}}]}"""
ENDLESS = """{"type": "record", "name": "Self", "fields": [{"name": "id", "type": "Self"}]}"""
EMPTY_ITEMS = """{"type": "record", "name": "A", "fields": [
    {"name": "id", "type": {"type": "array", "items": %s}}]}"""
EMPTY_RECORD = '{"type": "record", "name": "E", "fields": [{"name": "x", "type": "null"}]}'
NO_BYTES = '{"type": "fixed", "name": "F", "size": 0}'
ANYTHING = struct(id=StringType())


def varint(number: int) -> bytes:
    """A long of Avro."""
    rest, out = number << 1 ^ number >> 63, bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def of_avro(definition: str, *payloads: bytes, type_: StructType = ANYTHING) -> list[Any]:
    def registry(_: str) -> AvroSchema:
        return AvroSchema(definition)

    return decoded(type_, *payloads, registry=registry, schema_id="1")


def linked(levels: int) -> bytes:
    return (varint(1) + varint(1)) * (levels - 1) + varint(1) + varint(0)


def test_avro_of_a_recursive_schema_is_decoded_up_to_a_depth() -> None:
    found = of_avro(LINKED, linked(1), linked(100), linked(101), linked(20_000))
    assert [data for data, _ in found] == [{"id": "1"}, {"id": "1"}, None, None]
    assert [reason for _, reason in found[2:]] == [
        "the payload is nested too deeply (more than 100 records of Avro)"
    ] * 2
    tree = {"id": 1, "children": [{"id": 2, "children": [], "by_name": {}}] * 3, "by_name": {}}
    tree["by_name"] = {"a": {**tree}, "b": {**tree}}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(TREE)), tree)
    deep = (varint(1) + varint(1)) * 5000
    ((data, _), (_, reason)) = of_avro(TREE, out.getvalue(), deep, type_=struct(id=LongType()))
    assert data == {"id": 1} and reason is not None and "nested too deeply" in reason


def test_an_avro_record_that_contains_itself_has_no_end_and_is_bad() -> None:
    ((_, reason),) = of_avro(ENDLESS, b"")
    assert reason is not None and "nested too deeply" in reason


@pytest.mark.parametrize("items", ['"null"', EMPTY_RECORD, NO_BYTES])
@pytest.mark.parametrize("count", [2**40, -(2**40), -(2**63), 10_001])
def test_avro_arrays_of_items_without_bytes_are_limited(items: str, count: int) -> None:
    block = varint(count) + (varint(0) if count < 0 else b"")
    payloads = (varint(3) + varint(0), block + varint(0))
    found = of_avro(EMPTY_ITEMS % items, *payloads, type_=struct(other=LongType()))
    assert found[0] == ({"other": None}, None)
    assert found[1][1] == (
        "the payload has too many items (more than 10000 items of Avro that have no bytes)"
    )


@pytest.mark.parametrize("definition", [LINKED, TREE, EMPTY_ITEMS % '"null"'])
@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"\x02", b"\x02\x08", b"\x02\x01", b"\x80" * 11, b"\xff" * 9 + b"\x7f"),
        *(b"\x02\x02\x02", varint(1) + varint(2**62), varint(1) + varint(-(2**63))),
    ],
)
def test_wrong_avro_of_such_schemas_is_bad(definition: str, payload: bytes) -> None:
    ((data, reason),) = of_avro(definition, payload)
    assert data is None and reason is not None and reason.startswith("the payload ")


def test_a_protobuf_message_that_is_nested_too_deeply_is_bad() -> None:
    fields = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", syntax="proto3")
    node = file.message_type.add(name="Node")
    node.field.add(name="id", number=1, type=fields.TYPE_INT64, label=fields.LABEL_OPTIONAL)
    node.field.add(
        name="next",
        number=2,
        type=fields.TYPE_MESSAGE,
        type_name=".Node",
        label=fields.LABEL_OPTIONAL,
    )
    schema = ProtobufSchema(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())

    def nested(levels: int) -> bytes:
        payload = b"\x08\x07"
        for _ in range(levels):
            size, head = len(payload), b""
            while size > 127:
                head, size = head + bytes([size & 127 | 128]), size >> 7
            payload = b"\x08\x07\x12" + head + bytes([size]) + payload
        return payload

    messages = (nested(50), nested(5000))
    found = decoded(ANYTHING, *messages, registry=lambda _: schema, schema_id="1")
    assert found[0] == ({"id": "7"}, None)
    assert found[1] == (None, "the payload is not a Protobuf Node (DecodeError)")


# -- the source ------------------------------------------------------------------------------------


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "orders", compression="gzip", compression_min_bytes=1) as queue:
        queue.enqueue(b'{"id": 1, "name": "a"}' + b" " * 500)
        queue.enqueue(b"bad")
        queue.enqueue(b'{"id": 2}', headers={"h": "1"})
    return tmp_path / "orders"


def test_the_source_decodes_payloads_also_compressed_ones(orders: Path) -> None:
    schema = ORDER.json()
    found = rows(orders, payloadSchema=schema)
    assert list(found[0]) == [
        *("seq", "timestamp", "priority", "key", "payload", "data", "payload_error")
    ]
    assert [row["data"] for row in found] == [
        {"id": 1, "name": "a"},
        None,
        {"id": 2, "name": None},
    ]
    assert [row["payload_error"] is None for row in found] == [True, False, True]
    found = rows(orders, payloadSchema=schema, columns="data,seq")
    assert [list(row) for row in found] == [["data", "seq"]] * 3
    assert list(rows(orders, payloadSchema=schema, columns="data")[0]) == ["data"]
    assert list(rows(orders, payloadSchema=schema, columns="*")[0])[-2:] == [
        "data",
        "payload_error",
    ]


def test_a_read_without_schemas_says_that_a_header_names_one(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "orders") as queue:
        queue.enqueue(b"\x02\x04n1", headers={"schema-id": "7"})
        queue.enqueue(b"bad")
    first, second = rows(
        tmp_path / "orders", payloadSchema=ORDER.json(), columns="payload_error,data"
    )
    assert list(first) == ["payload_error", "data"]
    assert first["payload_error"].startswith("the header 'schema-id' names the schema 7, and no")
    assert second["payload_error"].startswith("the payload is not JSON")


def test_bad_rows_are_dropped_or_fail_the_read(orders: Path) -> None:
    found = rows(orders, payloadSchema=ORDER.json(), payloadMode="dropmalformed")
    assert [row["seq"] for row in found] == [1, 3] and "payload_error" not in found[0]
    with pytest.raises(MalformedPayload, match="seq 2: the payload is not JSON"):
        rows(orders, payloadSchema=ORDER.json(), payloadMode="FAILFAST", columns="data")


def test_the_table_state_has_typed_payloads_too(orders: Path) -> None:
    found = rows(orders, payloadSchema=ORDER.json(), table="state", columns="state,data")
    assert [(row["state"], row["data"] is None) for row in found] == [
        ("ready", False),
        ("ready", True),
        ("ready", False),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "data"}, "needs the option payloadSchema"),
        ({"payloadSchema": ORDER.json(), "columns": "data,data"}, "twice"),
        ({"payloadSchema": "{not json"}, "cannot be read"),
        ({"payloadSchema": '{"type": "object"}'}, "cannot be read"),
        ({"payloadSchema": '{"type":"struct","fields":[]}'}, "at least one field"),
        ({"payloadSchema": "id BIGINT>"}, "expected a comma or the end, not '>'"),
        ({"payloadSchema": ORDER.json(), "payloadMode": "LENIENT"}, "must be one of"),
        ({"payloadSchema": ORDER.json(), "table": "events"}, "no payloads"),
        ({"payloadSchema": ORDER.json(), "decompress": "false"}, "decompress is false"),
        ({"payloadSchema": ORDER.json(), "payloadSchemaId": "7"}, "need payloadSchemas"),
        ({"payloadSchema": ORDER.json(), "payloadSchemas": "/nowhere"}, "not a directory"),
        ({"payloadMode": "FAILFAST"}, "which the schema lacks"),
        (
            {"payloadSchema": ORDER.json(), "payloadMode": "FAILFAST", "columns": "payload_error"},
            "which the schema lacks",
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(
    orders: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        made = source(orders, **options)
        schema = made.schema()
        assert isinstance(schema, StructType)
        made.reader(schema)


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("id BIGNT", "the type BIGNT of id is unknown: did you mean BIGINT?"),
        ("id BIGINT, xs ARRAY<STRNG>", "the type STRNG of xs is unknown: did you mean STRING?"),
        ("id VOID", "a payload has no type VOID, as id has: use BOOLEAN, "),
        ("id VARIANT", "a payload has no type VARIANT, as id has: use"),
        ("id INTERVAL DAY", "a payload has no type INTERVAL, as id has: use"),
        ("x", "the field x has no type"),
        ("x:", "the field x has no type"),
        ("d DECIMAL(39,2)", "DECIMAL(39,2) of d: the precision is 1 to 38, the scale 0 to the pre"),
        ("d DECIMAL(2,3)", "DECIMAL(2,3) of d: the precision"),
        ("d DECIMAL(-1)", "expected a number, not '-'"),
        ("id BIGINT(3)", "BIGINT of id has no length"),
        ("id BIGINT>, other STRUCT<x: INT", "expected a comma or the end, not '>'"),
        ("id BIGINT)", "expected a comma or the end, not ')'"),
        ("xs ARRAY<INT", "expected '>', not the end"),
        ("xs ARRAY<INT, INT>", "expected '>', not ','"),
        ("xs ARRAY", "expected '<', not the end"),
        ("m MAP<STRING>", "expected ',', not '>'"),
        ("s STRUCT<a INT", "expected '>', not the end"),
        ("s STRUCT<a INT>>", "expected a comma or the end, not '>'"),
        ("id BIGINT,", "expected the name of a field, not the end"),
        (", id BIGINT", "expected the name of a field, not ','"),
        ("id BIGINT NOT", "expected 'NULL', not the end"),
        ("id BIGINT -- comment", "expected a comma or the end, not '-'"),
        ("id BIGINT /*", "expected a comma or the end, not '/'"),
        ("id BIGINT COMMENT", "expected a text in quotes, not the end"),
        ("id BIGINT COMMENT 'open", 'expected a text in quotes, not "\'"'),
        ("`id BIGINT", "expected the name of a field, not '`'"),
        ("STRUCT<id: BIGINT>", "the field STRUCT has no type"),
        ("1 INT", "the name 1 needs backquotes: `1`"),
        ("1L INT", "the name 1L needs backquotes: `1L`"),
        ("1e5 INT", "the name 1e5 needs backquotes: `1e5`"),
        ("größe INT", "the name größe needs backquotes: `größe`"),
        ("s STRUCT<é: INT>", "the name é needs backquotes: `é`"),
        ("a VARCHAR(2)", "a payload has no VARCHAR, as a has: use STRING"),
        ("a ARRAY<char(3)>", "a payload has no char, as a has: use STRING"),
        ("a STRING COLLATE NOPE", "there is no collation NOPE, as a has"),
        ("a STRING COLLATE system.builtin.`NOPE`", "there is no collation NOPE, as a has"),
        ("xs " + "ARRAY<" * 5000 + "INT" + ">" * 5000, "it is nested too deeply"),
    ],
)
def test_wrong_ddl_is_refused_with_what_is_wrong(orders: Path, ddl: str, why: str) -> None:
    for refused in (lambda: source(orders, payloadSchema=ddl).schema(), lambda: check_ddl(ddl)):
        with pytest.raises(InvalidInput) as error:
            refused()
        said = str(error.value)
        assert said.startswith("the schema of payloads, ") and why in said
        assert said.endswith(
            "write it as 'id BIGINT, name STRING', or as StructType.json() gives it"
        )


@pytest.mark.parametrize(
    "ddl",
    [
        "id: bigint, name: string",
        "id BIGINT NOT NULL COMMENT 'it''s', n STRING COMMENT \"a > b, \\\" c\" , `a ``b>` INT",
        "a TINYINT, b BYTE, c SMALLINT, d SHORT, e INT, f INTEGER, g LONG, h FLOAT, i REAL",
        "a DECIMAL, b DEC(10), c NUMERIC ( 38 , 38 ), d DATE, e TIMESTAMP, f TIMESTAMP_NTZ",
        "a TIMESTAMP_LTZ, b BOOLEAN, c BINARY, d DOUBLE",
        "f STRING COLLATE UTF8_LCASE, g STRING COLLATE system.builtin.UNICODE",
        "f STRING COLLATE de_CI_AI, g STRING COLLATE `sr_Cyrl_SRB`, h STRING COLLATE unicode_rtrim",
        "s STRUCT<a: INT NOT NULL COMMENT 'x', b MAP<STRING, ARRAY<STRUCT<c:INT>>>>, e STRUCT<>",
        " \n `größe` INT,\ttype STRING , 1st INT, 1e INT, `1` INT, _ INT, array ARRAY<INT>",
    ],
)
def test_right_ddl_is_accepted(ddl: str) -> None:
    check_ddl(ddl)


def test_read_refuses_a_wrong_schema_before_it_asks_spark(orders: Path) -> None:
    class Session:
        """Any use of it fails."""

    for wrong in ("id BIGNT", "id BIGINT>, other STRUCT<x: INT", '{"type": "object"}'):
        with pytest.raises(InvalidInput, match="the schema of payloads, .*cannot be read"):
            read(Session(), orders, payload_schema=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="has no void"):
        read(Session(), orders, payload_schema=struct(x=NullType()))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be a StructType"):
        read(Session(), orders, payload_schema=7)  # type: ignore[arg-type]


def of_json(name: str = '"a"', type_: str = '"integer"', nullable: str = "true") -> str:
    """Return the JSON of a schema with one field."""
    field = f'{{"name":{name},"type":{type_},"nullable":{nullable},"metadata":{{}}}}'
    return f'{{"type":"struct","fields":[{field}]}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (of_json(type_='"decimal(99,2)"'), r"no decimal\(99,2\): the precision is 1 to 38"),
        (of_json(type_='"decimal(5,7)"'), r"no decimal\(5,7\): .* the scale 0 to the precision"),
        (of_json(type_='"decimal(5,-2)"'), r"no decimal\(5,-2\): the precision is"),
        (of_json(type_='"varchar(2)"'), r"a payload has no varchar\(2\): use .*string"),
        (of_json(type_='"string collate NOPE"'), "there is no collation NOPE"),
        (of_json(name="5"), "cannot be read .*field name 5 should be a string"),
        (of_json(nullable='"no"'), "nullable of the field 'a' is 'no'; it must be true or false"),
        (
            of_json(type_='{"type":"array","elementType":"long","containsNull":"no"}'),
            "containsNull of the field 'a' is 'no'; it must be true or false",
        ),
        (
            of_json(
                type_='{"type":"map","keyType":"string","valueType":"long","valueContainsNull":1}'
            ),
            "valueContainsNull of the field 'a' is 1; it must be true or false",
        ),
    ],
)
def test_a_wrong_schema_in_json_is_refused_with_what_is_wrong(
    orders: Path, text: str, why: str
) -> None:
    for refused in (
        lambda: source(orders, payloadSchema=text).schema(),
        lambda: payload_schema(text),
    ):
        with pytest.raises(InvalidInput, match=why):
            refused()


def test_ddl_is_left_to_spark(orders: Path) -> None:
    made = source(
        orders, payloadSchema="id BIGINT NOT NULL, tags ARRAY<STRING>", columns="seq,data"
    )
    assert made.schema() == (
        "`seq` bigint NOT NULL, `data` STRUCT<id BIGINT NOT NULL, tags ARRAY<STRING>>"
    )
    assert _parse_datatype_json_string(ORDER.json()) == ORDER
