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
from penstock.spark import AvroSchema, MalformedPayload, ProtobufSchema, SchemaDirectory
from penstock.spark.payloads.columns import PayloadDecoder, PayloadOptions
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
        ({"payloadSchema": "id BIGINT>"}, "< and > do not match"),
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


def test_ddl_is_left_to_spark(orders: Path) -> None:
    made = source(
        orders, payloadSchema="id BIGINT NOT NULL, tags ARRAY<STRING>", columns="seq,data"
    )
    assert made.schema() == (
        "`seq` bigint NOT NULL, `data` STRUCT<id BIGINT NOT NULL, tags ARRAY<STRING>>"
    )
    assert _parse_datatype_json_string(ORDER.json()) == ORDER
