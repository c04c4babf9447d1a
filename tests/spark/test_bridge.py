"""Topics of Kafka copied to queues and back, with a stand-in for Spark's Kafka connector.

The connector is for the JVM and cannot be fetched by pip. The stand-in is a Python data source that
has the columns of the connector and records the options it gets.
"""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import InvalidInput
from penstock.spark.jobs import bridge, from_kafka, to_kafka
from penstock.spark.jobs.bridge import kafka_package
from tests.cli.command_line import CommandLine

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

# As the guide of Spark's Kafka connector lists them.
SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)
STAND_IN = "kafka_stand_in"
HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def stand_in(directory: Path) -> type:
    """Return a data source whose topic is `topic.json` in a directory; it writes `written.jsonl`.

    Made in a function, so that it is sent to workers as it is.
    """
    from datetime import UTC, datetime

    from pyspark.sql.datasource import (
        DataSource,
        DataSourceStreamWriter,
        SimpleDataSourceStreamReader,
        WriterCommitMessage,
    )

    schemas, name_of_it = (SCHEMA, f"{SCHEMA}, {HEADERS}"), STAND_IN

    class Rows(WriterCommitMessage):
        def __init__(self, rows: list[Any]) -> None:
            self.rows = rows

    class Reader(SimpleDataSourceStreamReader):
        def __init__(self, with_headers: bool) -> None:
            self.with_headers = with_headers

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            return {"next": 0}

        def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
            end = {"next": len(json.loads((directory / "topic.json").read_text()))}
            return self.readBetweenOffsets(start, end), end

        def readBetweenOffsets(  # noqa: N802
            self, start: dict[str, Any], end: dict[str, Any]
        ) -> Iterator[Any]:
            records = json.loads((directory / "topic.json").read_text())
            rows = []
            for offset in range(start["next"], end["next"]):
                key, value, headers = records[offset]
                row = [
                    None if key is None else bytes.fromhex(key),
                    None if value is None else value.encode(),
                    *("orders", 3, 1000 + offset, datetime.now(UTC), 0),
                ]
                if self.with_headers:
                    pairs = None if headers is None else [(k, v.encode()) for k, v in headers]
                    row.append(pairs)
                rows.append(tuple(row))
            return iter(rows)

    class Writer(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return Rows(
                [
                    {
                        "key": row.key,
                        "value": bytes(row.value).decode(),
                        "headers": {one.key: bytes(one.value).decode() for one in row.headers},
                    }
                    for row in iterator
                ]
            )

        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
            with (directory / "written.jsonl").open("a") as file:
                for message in messages:
                    file.writelines(json.dumps(row) + "\n" for row in message.rows)

    class Kafka(DataSource):
        @classmethod
        def name(cls) -> str:
            return name_of_it

        def schema(self) -> str:
            return schemas[self.options.get("includeheaders") == "true"]

        def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
            self.record("read")
            return Reader("headers" in schema.fieldNames())

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            self.record("written")
            return Writer()

        def record(self, way: str) -> None:
            given = {name: value for name, value in self.options.items() if name != "path"}
            (directory / f"{way}-options.json").write_text(json.dumps(given))

    return Kafka


@pytest.fixture
def kafka(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session with the stand-in, which the jobs use instead of the connector."""
    monkeypatch.setattr(bridge, "FORMAT", STAND_IN)
    spark.dataSource.register(stand_in(tmp_path))
    return spark


def topic(directory: Path, *records: tuple[str | None, str | None, object]) -> None:
    (directory / "topic.json").write_text(json.dumps(records))


def messages(path: Path) -> list[tuple[str, str | None, dict[str, str]]]:
    with penstock.open(str(path)) as queue:
        return [(one.payload.decode(), one.key, dict(one.headers)) for one in queue.browse()]


def origin(offset: int, **more: str) -> dict[str, str]:
    place = {"kafka.topic": "orders", "kafka.partition": "3", "kafka.offset": str(1000 + offset)}
    return {**place, **{f"kafka.{name}": value for name, value in more.items()}}


def test_records_are_copied_once_with_keys_headers_and_origin(
    kafka: SparkSession, tmp_path: Path
) -> None:
    records: list[tuple[str | None, str | None, object]] = [
        (b"ada".hex(), "one", [["tenant", "acme"]]),
        (None, "two", None),
        (b"ada".hex(), None, []),  # a tombstone
    ]
    place = {"checkpoint": str(tmp_path / "checkpoint"), "once": True}
    for count in (2, 3, 3):  # the third run finds nothing new
        topic(tmp_path, *records[:count])
        from_kafka(
            kafka,
            "k1:9092,k2:9092",
            "orders",
            str(tmp_path / "queue"),
            options={"kafka.security.protocol": "SSL", "maxOffsetsPerTrigger": "500"},
            **place,  # type: ignore[arg-type]
        ).awaitTermination()
    assert messages(tmp_path / "queue") == [
        ("one", "ada", {"tenant": "acme", **origin(0)}),
        ("two", None, origin(1)),
        ("", "ada", origin(2, tombstone="true")),
    ]
    assert json.loads((tmp_path / "read-options.json").read_text()) == {
        "kafka.bootstrap.servers": "k1:9092,k2:9092",
        "subscribe": "orders",
        "startingoffsets": "earliest",
        "includeheaders": "true",
        "kafka.security.protocol": "SSL",
        "maxoffsetspertrigger": "500",
    }


def test_the_snippet_of_the_page_copies_a_topic(
    kafka: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic(tmp_path, (None, "one", None))
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "kafka-bridge.md").read_text()
    snippet = page[page.index("    from penstock.spark.jobs") : page.index("## What is guar")]
    exec(textwrap.dedent(snippet), {"spark": kafka})
    assert messages(tmp_path / "orders") == [("one", None, origin(0))]


def test_keys_that_are_no_text_are_copied_as_base64(kafka: SparkSession, tmp_path: Path) -> None:
    topic(tmp_path, ("ff00", "one", [["bin", "x"]]))
    for keys, wanted in (("base64", "/wA="), ("none", None)):
        from_kafka(
            kafka,
            "k1:9092",
            "orders",
            str(tmp_path / keys),
            checkpoint=str(tmp_path / f"checkpoint {keys}"),
            keys=keys,
            headers=False,
            once=True,
        ).awaitTermination()
        assert messages(tmp_path / keys) == [("one", wanted, origin(0))]


def test_a_queue_is_copied_to_a_topic(kafka: SparkSession, tmp_path: Path) -> None:
    with penstock.open(str(tmp_path / "queue")) as queue:
        first = queue.enqueue(b"one", key="ada", headers={"tenant": "acme"})
        second = queue.enqueue(b"two")
    to_kafka(
        kafka,
        str(tmp_path / "queue"),
        "k1:9092",
        "orders",
        checkpoint=str(tmp_path / "checkpoint"),
        once=True,
        options={"kafka.acks": "all"},
    ).awaitTermination()
    written = [json.loads(line) for line in (tmp_path / "written.jsonl").read_text().splitlines()]

    def own(id: object, seq: int) -> dict[str, str]:
        return {"penstock.id": str(id), "penstock.seq": str(seq)}

    assert written == [
        {"key": "ada", "value": "one", "headers": {"tenant": "acme", **own(first, 1)}},
        {"key": None, "value": "two", "headers": own(second, 2)},
    ]
    options = json.loads((tmp_path / "written-options.json").read_text())
    wanted = {"kafka.bootstrap.servers": "k1:9092", "topic": "orders", "kafka.acks": "all"}
    assert {name: options.get(name) for name in wanted} == wanted


def test_without_the_connector_the_error_names_the_package(
    spark: SparkSession, tmp_path: Path
) -> None:
    penstock.open(str(tmp_path / "queue")).close()
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert kafka_package() == package
    checkpoint = str(tmp_path / "checkpoint")
    with pytest.raises(InvalidInput, match="no Kafka connector.*--packages") as caught:
        from_kafka(spark, "k:1", "orders", str(tmp_path / "new"), checkpoint=checkpoint)
    assert package in str(caught.value)
    with pytest.raises(InvalidInput, match="no Kafka connector"):
        to_kafka(spark, str(tmp_path / "queue"), "k:1", "orders", checkpoint=checkpoint)
    assert not (tmp_path / "new").exists()


BAD: list[tuple[list[str], str]] = [
    (["from-kafka", "k1", "orders", "q"], "servers is 'k1'"),
    (["from-kafka", "http://k1:9092", "orders", "q"], "servers is 'http://k1:9092'"),
    (["from-kafka", "k1:9092", "or ders", "q"], "topic is 'or ders'"),
    (["from-kafka", "k1:9092", "orders", "s3://b/q"], "is a URL, not a directory"),
    (["from-kafka", "k1:9092", "orders", "q", "--keys", "hex"], "text, base64, none"),
    (["from-kafka", "k1:9092", "orders", "q", "--option", "acks"], "must be NAME=VALUE"),
    (["from-kafka", "k1:9092", "orders", "q", "--option", "subscribe=x"], "argument 'topic'"),
    (["to-kafka", "./nope", "k1:9092", "orders"], "does not exist"),
    (["to-kafka", "queue", "k1:9092", ""], "topic is ''"),
]


@pytest.mark.parametrize(("line", "said"), BAD, ids=lambda part: "-".join(part)[:40])
def test_bad_input_is_refused_before_spark_starts(
    line: list[str],
    said: str,
    capfdbinary: pytest.CaptureFixture[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a JVM was started")

    command = CommandLine(capfdbinary, monkeypatch)
    monkeypatch.setattr("penstock.spark.session", started)
    monkeypatch.chdir(tmp_path)
    penstock.open("queue").close()
    before = sorted(tmp_path.rglob("*"))
    given = command("spark", *line, "--checkpoint", "checkpoint")
    assert given.code == 2, given
    assert said in given.err
    assert sorted(tmp_path.rglob("*")) == before
