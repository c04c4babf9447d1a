"""Typed payloads and bad records in a Spark session."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

import penstock
from penstock.errors import InvalidInput
from penstock.spark import (
    AvroSchema,
    bad_records,
    dead_letter,
    decode_payloads,
    good_records,
    read,
)
from tests.spark.test_typed_payloads import AVRO, avro

ORDER = (
    "id BIGINT NOT NULL, name STRING, tags ARRAY<STRING>, place STRUCT<zip: STRING, at: TIMESTAMP>"
)
GOOD = (
    b'{"id": 1, "name": "a", "tags": ["x", null], "place": {"zip": "1", "at": "2026-01-31T12:00Z"}}'
)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "shop" / "orders"
    path.parent.mkdir(parents=True)
    with penstock.open(path) as queue:
        queue.enqueue(GOOD, headers={"h": "1"}, key="k", priority=7)
        queue.enqueue(b"", headers={"h": "2"}, key="k2", priority=3)
        queue.enqueue(b'{"name": "no id"}')
        queue.enqueue(b'{"id": 2}')
    return tmp_path / "data"


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row["seq"] for row in frame.select("seq").collect())


def test_payloads_are_columns_of_a_frame_that_is_used_again(
    spark: SparkSession, orders: Path
) -> None:
    frame = read(spark, orders, queue="shop/orders", payload_schema=ORDER)
    first = frame.where("data.id = 1").select("data.*", "payload_error").collect()
    assert [row.asDict(recursive=True) for row in first] == [
        {
            "id": 1,
            "name": "a",
            "tags": ["x", None],
            "place": {"zip": "1", "at": first[0]["place"]["at"]},
            "payload_error": None,
        }
    ]
    both = frame.where("payload_error is not null").unionByName(frame)
    found = both.selectExpr("count(data.id)", "count(*)").first()
    assert found == (2, 6), "the same frame again, with and without a filter"
    rows = {row["seq"]: row["payload_error"] for row in frame.collect()}
    assert rows[2] == "the payload is empty"
    assert rows[3] == "$.id: it is null or missing, and the schema says NOT NULL"


def test_wrong_schemas_fail_before_the_job_and_a_bad_payload_fails_a_strict_one(
    spark: SparkSession, orders: Path
) -> None:
    def options(**more: str) -> dict[str, str]:
        return {"path": str(orders), "queue": "shop/orders", **more}

    for text, message in (
        ("id BIGNT", "did you mean BIGINT"),
        ("id", "the field id has no type"),
        (",", "expected the name of a field"),
        ("1 INT", "the name 1 needs backquotes"),
        ("é INT", "the name é needs backquotes"),
        ("s STRING COLLATE NOPE", "there is no collation NOPE"),
    ):
        with pytest.raises(PySparkException, match=message):
            spark.read.format("penstock").options(**options(payloadSchema=text)).load()
        with pytest.raises(InvalidInput, match="cannot be read"):
            decode_payloads(spark.range(1), text)
        with pytest.raises(InvalidInput, match=message):
            read(spark, orders, queue="shop/orders", payload_schema=text)
    unknown = "s STRING COLLATE xyz"  # as a language is named
    with pytest.raises(InvalidInput, match="COLLATION_INVALID_NAME"):
        decode_payloads(spark.range(1), unknown)
    with pytest.raises(InvalidInput, match="COLLATION_INVALID_NAME"):
        read(spark, orders, queue="shop/orders", payload_schema=unknown)
    with pytest.raises(PySparkException, match="has no type VOID"):
        spark.read.format("penstock").options(**options(payloadSchema="x VOID")).load().count()
    strict = spark.read.format("penstock").options(
        **options(payloadSchema=ORDER, payloadMode="FAILFAST")
    )
    with pytest.raises(PySparkException, match="seq 2: the payload is empty"):
        strict.load().collect()
    own = spark.read.format("penstock").options(**options(payloadMode="DROPMALFORMED"))
    found = own.schema("data STRUCT<id: BIGINT>, seq BIGINT").load()
    assert seqs(found) == [1, 3, 4], "a schema of one's own says what payloads are"


def test_any_frame_is_decoded_with_a_registry_that_is_a_function(
    spark: SparkSession, tmp_path: Path
) -> None:
    def registry(schema_id: str) -> AvroSchema | None:
        return AvroSchema(AVRO) if schema_id == "7" else None

    made = spark.createDataFrame(
        [
            (1, bytearray(avro()), {"schema-id": "7"}),
            (2, bytearray(b'{"id": 8}'), {}),
            (3, bytearray(avro()), {"schema-id": "x"}),
            (4, None, None),
        ],
        "seq BIGINT, payload BINARY, headers MAP<STRING, STRING>",
    )
    frame = decode_payloads(made, "id BIGINT, at TIMESTAMP, total DECIMAL(6, 2)", schemas=registry)
    rows = {row["seq"]: row for row in frame.collect()}
    assert [rows[n]["data"] and rows[n]["data"]["id"] for n in (1, 2, 3, 4)] == [7, 8, None, None]
    assert str(rows[1]["data"]["total"]) == "9.50"
    assert rows[3]["payload_error"].startswith("there is no schema with the id x")
    assert rows[4]["payload_error"] == "the payload is null"
    dropped = decode_payloads(made, "id BIGINT", schemas=registry, mode="DROPMALFORMED")
    assert seqs(dropped) == [1, 2] and dropped.columns[-1] == "data"
    assert frame.where("payload_error is null").count() == frame.where("data.id > 0").count() == 2
    named = decode_payloads(made.where("seq = 3"), "id BIGINT").collect()
    assert named[0]["payload_error"].startswith("the header 'schema-id' names the schema x, and no")
    text = spark.createDataFrame([('{"id": 3}',)], "payload STRING")
    (row,) = decode_payloads(text, StructType([StructField("id", LongType())])).collect()
    assert row["data"]["id"] == 3
    for other, message in (
        (spark.range(1), "needs a column 'payload'"),
        (frame, "has a column 'data' already"),
    ):
        with pytest.raises(InvalidInput, match=message):
            decode_payloads(other, "id BIGINT")
    with pytest.raises(InvalidInput, match="needs the column 'headers'"):
        decode_payloads(text, "id BIGINT", schemas=registry)


def messages(path: Path) -> list[tuple[bytes, dict[str, str]]]:
    with penstock.open(path) as queue:
        found = sorted(queue.peek(100), key=lambda one: one.seq)
        return [(one.payload, dict(one.headers)) for one in found]


def test_bad_records_of_a_stream_are_written_once_with_their_reason(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    with penstock.open(bad):
        pass
    stream = (
        spark.readStream.format("penstock")
        .option("path", str(orders))
        .option("queue", "shop/orders")
        .option("startingOffsets", "earliest")
        .option("columns", "namespace,queue,seq,id,key,priority,headers,payload,data,payload_error")
        .option("payloadSchema", ORDER)
        .load()
    )
    good: list[int] = []

    def process(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):  # as if the query had died before its checkpoint was written
            left = dead_letter(batch, bad, app="orders", version=batch_id)
        good.extend(seqs(left))
        assert "payload_error" not in left.columns

    query = (
        stream.writeStream.foreachBatch(process)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(100)
    assert good == [1, 4]
    (empty, no_id) = messages(bad)
    assert empty[0] == b"" and no_id[0] == b'{"name": "no id"}'
    assert {name: value for name, value in empty[1].items() if name != "penstock-bad-id"} == {
        "h": "2",
        "penstock-bad-reason": "the payload is empty",
        "penstock-bad-queue": "shop/orders",
        "penstock-bad-seq": "2",
    }
    assert len(empty[1]["penstock-bad-id"]) == 26
    with pytest.raises(InvalidInput, match="takes a batch"):
        dead_letter(stream, bad, app="x", version=1)


def test_bad_records_of_a_batch_keep_what_fits(
    spark: SparkSession, orders: Path, tmp_path: Path
) -> None:
    many = {f"h{number}": "x" for number in range(250)}
    large = {"h": "x" * 65_000}
    again = {"penstock-bad-reason": "an older one", "a": "b"}
    with penstock.open(orders / "shop" / "orders") as queue:
        for headers in (many, large, again):
            queue.enqueue(b"bad", headers=headers)
    frame = read(
        spark,
        orders,
        queue="shop/orders",
        first_seq=4,
        payload_schema=ORDER,
        columns=["seq", "payload", "headers", "data", "payload_error"],
    )
    assert seqs(good_records(frame)) == [4]
    made = bad_records(frame, queue="shop/orders")
    assert made.columns == ["payload", "headers"]
    found: list[Any] = [row["headers"] for row in made.collect()]
    assert len(found[0]) == 253 and found[0]["h1"] == "x"
    assert found[1]["penstock-bad-headers-dropped"] == "1" and "h" not in found[1]
    assert found[2]["a"] == "b" and found[2]["penstock-bad-reason"] != "an older one"
    assert {one["penstock-bad-queue"] for one in found} == {"shop/orders"}
    made.write.format("penstock").mode("append").save(str(tmp_path / "bad"))
    assert len(messages(tmp_path / "bad")) == 3
    with pytest.raises(InvalidInput, match="no column 'payload_error'"):
        good_records(frame.drop("payload_error"))
    with pytest.raises(InvalidInput, match="keep their payload"):
        bad_records(frame.drop("payload"))
    assert isinstance(frame.schema["payload_error"].dataType, StringType)
