"""The sink writes all of a job or nothing of it, and each transaction once."""

from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType

import penstock
from penstock.errors import InvalidInput, LedgerLocked, TooLarge, Unreachable
from penstock.ledger import adoption
from penstock.ledger.files import OsFiles
from penstock.ledger.json_files import Transactions
from penstock.queue.settings import YEARS_S
from penstock.spark.options import WriteOptions
from penstock.spark.sink import BatchWriter, StagedRows
from penstock.spark.sink_rows import check_sink_schema
from tests.spark.in_process import rows

PLAIN = StructType().add("payload", "binary")
NUMBERS = MapType(StringType(), IntegerType())


def writer(path: Path, schema: StructType = PLAIN, **options: object) -> BatchWriter:
    given = {name: str(value) for name, value in {"path": path, **options}.items()}
    return BatchWriter(WriteOptions.parse(given), schema)


def task(made: BatchWriter, payloads: list[bytes], partition: int = 0) -> StagedRows:
    """What a task does."""
    batch = pa.record_batch({"payload": pa.array(payloads, pa.binary())})
    staged = made.write(iter([batch]))
    assert isinstance(staged, StagedRows)
    return StagedRows(partition, staged.staged)


def payloads(path: Path) -> list[bytes]:
    return [row["payload"] for row in rows(path, columns="payload")]


def staging(path: Path) -> list[str]:
    return [entry.name for entry in (path / "staging").iterdir()]


@pytest.fixture(params=["appended", "adopted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small jobs are appended, large ones adopted: both must keep the same promises."""
    if request.param == "adopted":
        monkeypatch.setattr(adoption, "SMALL_BYTES", 0)
    return str(request.param)


def test_rows_keep_their_order_and_partitions_theirs(tmp_path: Path, way: str) -> None:
    made = writer(tmp_path)
    second = task(made, [b"c", b"d"], partition=1)
    first = task(made, [b"a", b"b"], partition=0)
    assert payloads(tmp_path) == []
    made.commit([second, None, first])
    assert payloads(tmp_path) == [b"a", b"b", b"c", b"d"]
    assert staging(tmp_path) == []
    with penstock.open(str(tmp_path)) as queue:
        assert [m.payload for m in queue.dequeue_batch(10)] == [b"a", b"b", b"c", b"d"]


def test_an_aborted_job_leaves_nothing(tmp_path: Path, way: str) -> None:
    made = writer(tmp_path)
    done = task(made, [b"a"])
    made.abort([done, None])
    assert payloads(tmp_path) == []
    assert staging(tmp_path) == []


def test_a_task_that_fails_leaves_nothing_and_is_done_again(tmp_path: Path, way: str) -> None:
    made = writer(tmp_path)
    bad = pa.record_batch({"payload": pa.array([b"a", None], pa.binary())})
    good = pa.record_batch({"payload": pa.array([b"x"], pa.binary())})
    with pytest.raises(InvalidInput, match="null"):
        made.write(iter([good, bad]))
    assert staging(tmp_path) == []
    made.commit([task(made, [b"a"])])
    assert payloads(tmp_path) == [b"a"]


def test_a_twin_of_a_task_is_not_adopted_and_swept_when_old(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(tmp_path)
    task(made, [b"a"])  # the slower twin: its message never reaches the driver
    made.commit([task(made, [b"a"])])
    assert payloads(tmp_path) == [b"a"]
    assert len(staging(tmp_path)) == 1
    monkeypatch.setattr("penstock.ledger.staging.ORPHANED_AFTER_S", 0)
    made.commit([task(made, [b"b"])])
    assert staging(tmp_path) == []
    assert payloads(tmp_path) == [b"a", b"b"]


def test_a_repeated_transaction_is_a_no_op(tmp_path: Path, way: str) -> None:
    for version, data in ((1, b"a"), (1, b"again"), (2, b"b"), (1, b"late")):
        made = writer(tmp_path, txnAppId="nightly", txnVersion=version)
        made.commit([task(made, [data])])
    assert payloads(tmp_path) == [b"a", b"b"]
    assert staging(tmp_path) == []


def test_a_driver_killed_before_the_adoption_loses_nothing_but_the_work(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(tmp_path, txnAppId="nightly", txnVersion=1)
    staged = task(made, [b"a", b"b"])
    with monkeypatch.context() as patch:
        patch.setattr(adoption, "adopt", _killed)
        patch.setattr(adoption, "append_once", _killed)
        with pytest.raises(KeyboardInterrupt):
            made.commit([staged])
    assert payloads(tmp_path) == []
    again = writer(tmp_path, txnAppId="nightly", txnVersion=1)
    again.commit([task(again, [b"a", b"b"])])
    assert payloads(tmp_path) == [b"a", b"b"]


def test_a_driver_killed_after_the_adoption_has_written_it_once(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(tmp_path, txnAppId="nightly", txnVersion=1)
    staged = task(made, [b"a", b"b"])
    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "with_done", _killed)
        with pytest.raises(KeyboardInterrupt):
            made.commit([staged])
    made.abort([staged])  # what Spark does when commit raises: nothing adopted may go
    assert payloads(tmp_path) == [b"a", b"b"]
    again = writer(tmp_path, txnAppId="nightly", txnVersion=1)
    again.commit([task(again, [b"a", b"b"])])
    assert payloads(tmp_path) == [b"a", b"b"]


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_queue_with_another_writer_is_refused_by_name(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.writers.LOCK_WAIT_S", 0)
    with penstock.open(str(tmp_path)) as queue:
        queue.enqueue(b"its own")
        made = writer(tmp_path)
        staged = task(made, [b"a"])
        with pytest.raises(LedgerLocked, match="is being written by process"):
            made.commit([staged])
        made.abort([staged])
    assert payloads(tmp_path) == [b"its own"]


def test_a_large_task_writes_several_segments(tmp_path: Path) -> None:
    with penstock.open(str(tmp_path), segment_bytes=1 << 20):
        pass
    made = writer(tmp_path)
    made.commit([task(made, [b"x" * 1000] * 12_000)])
    assert len(list((tmp_path / "messages").glob("*.log"))) > 10
    assert payloads(tmp_path) == [b"x" * 1000] * 12_000


def test_payloads_of_any_size_and_place_in_memory_are_written(tmp_path: Path, way: str) -> None:
    penstock.open(str(tmp_path), segment_bytes=1 << 20).close()
    large = [b"a" * 900_000, b"b" * 3_000_000, b"", b"c" * 1_048_576]  # some beyond a segment
    small = [bytes([n % 256]) * (n * 37 % 900) for n in range(3000)]
    part = pa.array([b"not", b"these", *small, b"nor this"], pa.binary()).slice(2, len(small))
    made = writer(tmp_path)
    batches = [
        pa.record_batch({"payload": pa.array(["text", "", "é"])}),
        pa.record_batch({"payload": pa.array(large, pa.binary())}),
        pa.record_batch({"payload": part}),
        pa.record_batch({"payload": pa.array([b"", b""], pa.binary())}),
        pa.record_batch({"payload": pa.array([b"with 64-bit offsets"], pa.large_binary())}),
    ]
    made.commit([made.write(iter(batches))])
    wanted = [b"text", b"", "é".encode(), *large, *small, b"", b"", b"with 64-bit offsets"]
    assert payloads(tmp_path) == wanted


def test_messages_with_options_fill_several_segments(tmp_path: Path, way: str) -> None:
    penstock.open(str(tmp_path), segment_bytes=1 << 20).close()
    sizes = [0, 5, 400_000, 1_200_000, 7, 600_000, 600_000, 1]
    made = writer(tmp_path, StructType().add("payload", "binary").add("key", "string"))
    batch = pa.record_batch(
        {"payload": [b"x" * size for size in sizes], "key": [str(size) for size in sizes]}
    )
    made.commit([made.write(iter([batch]))])
    found = rows(tmp_path, columns="payload,key")
    assert [(len(row["payload"]), row["key"]) for row in found] == [(s, str(s)) for s in sizes]


def test_options_of_messages_are_columns(tmp_path: Path, way: str) -> None:
    schema = (
        StructType()
        .add("payload", "string")
        .add("priority", "integer")
        .add("key", "string")
        .add("headers", MapType(StringType(), StringType()))
        .add("deliver_at", "timestamp")
        .add("expires_at", "timestamp")
        .add("content_type", "string")
        .add("max_attempts", "integer")
    )
    made = writer(tmp_path, schema)
    batch = pa.record_batch(
        {
            "payload": pa.array(["a", "b"]),
            "priority": pa.array([9, None], pa.int32()),
            "key": pa.array(["k", None]),
            "headers": pa.array([[("x", "1")], None], pa.map_(pa.string(), pa.string())),
            "deliver_at": pa.array([None, 4_000_000_000_000_000], pa.timestamp("us", "UTC")),
            "expires_at": pa.array([5_000_000_000_000_000, None], pa.timestamp("us", "UTC")),
            "content_type": pa.array(["text/plain", None]),
            "max_attempts": pa.array([3, None], pa.int32()),
        }
    )
    made.commit([made.write(iter([batch]))])
    with penstock.open(str(tmp_path)) as queue:
        (first,) = queue.peek(10)
        assert (first.payload, first.priority, first.key) == (b"a", 9, "k")
        assert (first.headers, first.content_type) == ({"x": "1"}, "text/plain")
        assert (first.expires_at, first.max_attempts) == (5e9, 3)
        (second,) = queue.browse("scheduled")
        assert (second.payload, second.priority, second.deliver_at) == (b"b", 5, 4e9)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (StructType().add("text", "string"), "needs a column 'payload'"),
        (StructType(), "no column"),
        (StructType().add("payload", "integer"), "takes binary or string"),
        (StructType().add("payload", "binary").add("prioirty", "integer"), "did you mean priority"),
        (
            StructType().add("payload", "binary").add("seq", "long"),
            "does not take the column 'seq'",
        ),
        (StructType().add("payload", "binary").add("headers", NUMBERS), "map<string,s"),
        (StructType().add("payload", "binary").add("deliver_at", "long"), "takes timestamp"),
        (StructType().add("payload", "binary").add("payload", "string"), "two columns 'payload'"),
    ],
)
def test_a_frame_that_cannot_be_messages_is_refused(schema: StructType, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_sink_schema(schema)


def test_values_that_a_queue_refuses_are_refused(tmp_path: Path) -> None:
    with penstock.open(str(tmp_path), max_payload_bytes=10):
        pass
    made = writer(tmp_path)
    with pytest.raises(TooLarge, match="max_payload_bytes"):
        task(made, [b"x" * 11])
    priorities = pa.record_batch({"payload": [b"x"], "priority": pa.array([10], pa.int32())})
    with pytest.raises(InvalidInput, match="from 0 to 9"):
        made.write(iter([priorities]))
    headers = pa.array([[("a\n", "b")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(InvalidInput, match="line break"):
        made.write(iter([pa.record_batch({"payload": [b"x"], "headers": headers})]))
    keys = pa.array([b"\xff\xfe"], pa.binary())
    with pytest.raises(InvalidInput, match="not valid UTF-8"):
        made.write(iter([pa.record_batch({"payload": [b"x"], "key": keys})]))


BAD_TIMES = [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 1969, 2261, 2262, 9999)]


@pytest.mark.parametrize("column", ["deliver_at", "expires_at"])
@pytest.mark.parametrize("time", BAD_TIMES)
def test_times_that_publishing_refuses_are_refused(
    tmp_path: Path, column: str, time: datetime
) -> None:
    made = writer(tmp_path)
    times = pa.array([None, time], pa.timestamp("us", tz="UTC"))
    said = f"a row's {column} is {time.year:04}-01-01T00:00:00.*; it must be from 1970-01-01T00:00"
    with pytest.raises(InvalidInput, match=said):
        made.write(iter([pa.record_batch({"payload": [b"x", b"y"], column: times})]))
    assert staging(tmp_path) == []


@pytest.mark.parametrize("column", ["deliver_at", "expires_at"])
def test_times_that_no_calendar_has_are_refused(tmp_path: Path, column: str) -> None:
    made = writer(tmp_path)
    for micros in (-(2**63), 2**63 - 1):
        times = pa.array([micros], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        with pytest.raises(
            InvalidInput, match=f"a row's {column} is {micros * 1000} ns since 1970"
        ):
            made.write(iter([pa.record_batch({"payload": [b"x"], column: times})]))


@pytest.mark.parametrize("column", ["deliver_at_ns", "expires_at_ns"])
@pytest.mark.parametrize("time_ns", [-1, 9183110400 * 10**9, 2**63 - 1])
def test_exact_times_that_publishing_refuses_are_refused(
    tmp_path: Path, column: str, time_ns: int
) -> None:
    made = writer(tmp_path)
    batch = pa.record_batch({"payload": [b"x"], column: pa.array([time_ns], pa.int64())})
    with pytest.raises(InvalidInput, match=f"a row's {column} is {time_ns}; it must be from 0 to"):
        made.write(iter([batch]))


def test_the_latest_times_that_publishing_takes_are_taken(tmp_path: Path) -> None:
    with penstock.open(str(tmp_path / "first")) as queue:
        queue.enqueue(b"x", delay=YEARS_S, ttl=YEARS_S)
    (found,) = rows(tmp_path / "first", columns="deliver_at_ns,expires_at_ns")
    made = writer(tmp_path / "copy")
    of_both = {name: pa.array([at], pa.int64()) for name, at in found.items()}
    staged = made.write(iter([pa.record_batch({"payload": [b"x"], **of_both})]))
    made.commit([staged])
    assert rows(tmp_path / "copy", columns="deliver_at_ns,expires_at_ns") == [found]
    only = pa.record_batch({"payload": [b"x"], "expires_at_ns": of_both["expires_at_ns"]})
    writer(tmp_path / "redriven").write(iter([only]))


def test_a_message_that_expired_in_1970_has_expired(tmp_path: Path) -> None:
    made = writer(tmp_path)
    times = pa.array([datetime(1970, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    made.commit([made.write(iter([pa.record_batch({"payload": [b"x"], "expires_at": times})]))])
    assert [row["state"] for row in rows(tmp_path, table="state")] == ["expired"]


def test_a_failed_task_reports_its_own_error_if_its_folder_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise Unreachable("no connection")

    made = writer(tmp_path)
    monkeypatch.setattr(OsFiles, "remove_directory", unreachable)
    with pytest.raises(InvalidInput, match="a payload is null"):
        made.write(iter([pa.record_batch({"payload": pa.array([None], pa.binary())})]))


def test_a_bounded_queue_is_refused(tmp_path: Path) -> None:
    penstock.open(str(tmp_path), max_messages=10).close()
    with pytest.raises(InvalidInput, match="max_messages is 10"):
        writer(tmp_path)


def test_the_queue_is_found_or_made(tmp_path: Path) -> None:
    writer(tmp_path / "new").commit([])
    assert payloads(tmp_path / "new") == []
    data = tmp_path / "data"
    (data / "shop").mkdir(parents=True)
    made = writer(data, queue="shop/orders")
    made.commit([task(made, [b"a"])])
    assert payloads(data / "shop" / "orders") == [b"a"]
    for queue, said in (("orders", "<namespace>/<name>"), ("shop/../x", "<namespace>/<name>")):
        with pytest.raises(InvalidInput, match=said):
            writer(data, queue=queue)
    with pytest.raises(InvalidInput, match="no namespace 'lab'"):
        writer(data, queue="lab/orders")
    with pytest.raises(InvalidInput, match="is not a queue"):
        writer(data)


@pytest.mark.parametrize("name", ["other/orders", "Shop/orders", "../../../orders", "/orders"])
def test_nothing_is_written_to_a_queue_with_another_name(tmp_path: Path, name: str) -> None:
    orders = tmp_path / "data" / "shop" / "orders"
    penstock.open(orders).close()
    with pytest.raises(InvalidInput, match=f"{name!r}: the queue at .* is shop/orders"):
        writer(orders, queue=name)
    for right in ("orders", "shop/orders"):
        made = writer(orders, queue=right)
        made.commit([task(made, [right.encode()])])
    assert payloads(orders) == [b"orders", b"shop/orders"]


def test_the_settings_of_the_queue_hold_for_the_sink(tmp_path: Path) -> None:
    penstock.open(
        str(tmp_path), compression="gzip", compression_min_bytes=100, default_priority=7
    ).close()
    made = writer(tmp_path)
    made.commit([task(made, [b"abc" * 1000, b"short"])])
    found = rows(tmp_path, columns="payload,priority,compression")
    assert [row["compression"] for row in found] == ["gzip", None]
    assert [row["priority"] for row in found] == [7, 7]
    assert found[0]["payload"] == b"abc" * 1000


# -- frames as Kafka's source makes them -----------------------------------------------------------

KAFKA_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NAMED = ArrayType(StructType().add("name", "string").add("value", "binary"))
TEXTS = ArrayType(StringType())
PAIRS = ArrayType(StructType().add("key", "string").add("value", "binary"))
KAFKA = StructType().add("key", "binary").add("value", "binary").add("headers", PAIRS)


def kafka_batch(value: bytes, headers: list[dict[str, object]] | None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([b"k"], pa.binary()),
            "value": pa.array([value], pa.binary()),
            "headers": pa.array([headers], KAFKA_HEADERS),
        }
    )


def test_a_frame_of_kafka_is_written_as_it_is(tmp_path: Path) -> None:
    made = writer(tmp_path, KAFKA)
    headers: list[dict[str, object]] = [
        {"key": "tenant", "value": b"acme"},
        {"key": "size", "value": "größe".encode()},
    ]
    staged = [made.write(iter([kafka_batch(b"a", headers), kafka_batch(b"b", None)]))]
    made.commit(staged)  # type: ignore[arg-type]
    found = rows(tmp_path, columns="key,value,headers")
    assert found == [
        {"key": "k", "value": b"a", "headers": {"tenant": "acme", "size": "größe"}},
        {"key": "k", "value": b"b", "headers": {}},
    ]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (
            [{"key": "good", "value": b"1"}, {"key": "trace-bin", "value": b"\xff"}],
            "the value of the header 'trace-bin' is not valid UTF-8 .byte 0.: ",
        ),
        ([{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], "'a' twice"),
        ([{"key": "a", "value": None}], "'a' is null"),
        ([{"key": "", "value": b"1"}], "header name '' is empty"),
        ([{"key": None, "value": b"1"}], "the key of a header is null: give it a name"),
        ([{"key": None, "value": b"\xff"}], "the key of a header is null: give it a name"),
        ([{"key": None, "value": None}], "the key of a header is null: give it a name"),
        ([None], "an element of the array headers is null: leave it out"),
        ([None, {"key": "a", "value": b"\xff"}], "an element of the array headers is null"),
    ],
)
def test_headers_of_kafka_that_cannot_be_kept_are_refused(
    tmp_path: Path, headers: list[dict[str, object]], said: str
) -> None:
    made = writer(tmp_path, KAFKA)
    with pytest.raises(InvalidInput, match=said):
        made.write(iter([kafka_batch(b"a", headers)]))
    assert payloads(tmp_path) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (deepcopy(KAFKA).add("topic", "string"), "the option 'queue'"),
        (deepcopy(KAFKA).add("partition", IntegerType()), "drop it"),
        (deepcopy(KAFKA).add("payload", "binary"), "has 'payload' and 'value', its other name"),
        (StructType().add("payload", "binary").add("value", "binary"), "its other name: drop one"),
        (StructType().add("value", IntegerType()), "'value' is int"),
        (StructType().add("value", "binary").add("headers", NAMED), "array<struct<key"),
        (StructType().add("value", "binary").add("headers", TEXTS), "array<struct<key"),
    ],
)
def test_columns_of_kafka_that_do_not_fit_are_named(schema: StructType, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_sink_schema(schema)
    assert said in str(refused.value)
