"""Streams into Delta and Iceberg: each row once, through replays, kills and other writers."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from shutil import copytree

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.archive import ArchiveError
from penstock.archive.places import place_of
from penstock.errors import InvalidInput
from penstock.spark.delta_stream import DeltaTarget
from penstock.spark.iceberg_stream import IcebergTarget
from penstock.spark.jobs import check_stream, stream
from penstock.spark.table_sink import TableTarget
from tests.archive.s3_server import S3Server, s3_process
from tests.spark.lake import (
    FORMATS,
    QUERY,
    SCHEMA,
    make_catalog,
    name_of,
    rows,
    seqs,
    target_of,
    written,
)


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_catalog(tmp_path, monkeypatch)


# -- the targets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_a_repeated_batch_is_added_once(kind: str, tmp_path: Path) -> None:
    name = name_of(kind, tmp_path)
    target = target_of(name)
    target.prepare(SCHEMA)
    for _ in range(2):
        target.commit(QUERY, 0, 0, written(target, [1, 2]))
    target.commit(QUERY, 1, 1, written(target, [3]))
    target.commit(QUERY, 0, 0, written(target, [1, 2]))  # by a driver that was slow to die
    assert seqs(name) == [1, 2, 3]
    # Batch ids of another query, or of one with a new checkpoint, are its own.
    target.commit(QUERY[::-1], 0, 0, written(target, [4]))
    assert seqs(name) == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", FORMATS)
def test_another_batch_of_a_number_that_the_table_has_is_refused(kind: str, tmp_path: Path) -> None:
    """As with a checkpoint that was restored from a backup."""
    name = name_of(kind, tmp_path)
    target = target_of(name)
    target.prepare(SCHEMA)
    for batch in range(3):
        target.commit(QUERY, batch, 100 + batch, written(target, [batch]))
    for batch, planned_us in ((2, 200), (2, 50), (1, 200)):
        with pytest.raises(ArchiveError, match=f"has another batch {batch} of query .* checkpoint"):
            target.commit(QUERY, batch, planned_us, written(target, [7]))
    target.commit(QUERY, 1, 101, written(target, [1]))  # a repetition
    target.commit(QUERY, 3, 300, written(target, [3]))
    assert seqs(name) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_later_batch_of_a_query_that_the_table_does_not_know_is_refused(
    kind: str, tmp_path: Path
) -> None:
    """As with a checkpoint whose first batches went to another table."""
    name = name_of(kind, tmp_path)
    target = target_of(name)
    target.prepare(SCHEMA)
    said = f"no batch of query {QUERY}, and this is batch 2: .* batches 0 to 1 of its checkpoint"
    for _ in range(2):
        with pytest.raises(ArchiveError, match=said):
            target.commit(QUERY, 2, 100, written(target, [1]))
    assert seqs(name) == []
    # A first batch without rows is recorded, once.
    other = QUERY[::-1]
    target.commit(other, 0, 0, [])
    target.commit(other, 0, 0, [])
    target.commit(other, 2, 100, written(target, [1]))
    target.commit(other, 0, 0, [])
    assert seqs(name) == [1]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_that_no_stream_created_may_lack_earlier_batches(kind: str, tmp_path: Path) -> None:
    """One of an earlier version, whose streams may have had batches without rows; or a copy."""
    name = name_of(kind, tmp_path)
    if kind == "delta":
        DeltaTable.create(name, Schema.from_arrow(SCHEMA))
    else:
        load_catalog("lake").create_namespace("shop")
        load_catalog("lake").create_table("shop.orders", SCHEMA)
    target = target_of(name)
    target.prepare(SCHEMA)
    target.commit(QUERY, 2, 100, written(target, [1]))
    assert seqs(name) == [1]


@pytest.mark.parametrize("kind", FORMATS)
def test_files_of_a_driver_that_died_before_the_commit_are_in_no_version(
    kind: str, tmp_path: Path
) -> None:
    name = name_of(kind, tmp_path)
    target = target_of(name)
    target.prepare(SCHEMA)
    written(target, [1, 2, 3])
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 1
    assert seqs(name) == []
    again = target_of(name)
    again.prepare(SCHEMA)
    again.commit(QUERY, 0, 0, written(again, [1, 2, 3]))
    assert seqs(name) == [1, 2, 3]


@pytest.mark.parametrize("kind", FORMATS)
def test_drivers_that_commit_the_same_batches_at_once_add_each_once(
    kind: str, tmp_path: Path
) -> None:
    name = name_of(kind, tmp_path)
    target_of(name).prepare(SCHEMA)

    def run(_: int) -> None:
        target = target_of(name)
        for batch in range(4):
            target.commit(QUERY, batch, batch, written(target, [batch * 2, batch * 2 + 1]))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(run, range(3)))
    assert seqs(name) == list(range(8))


@pytest.mark.parametrize("kind", FORMATS)
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(lives=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["files", "commit", ""]))))
def test_any_deaths_leave_each_row_once(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    catalog: None,
    lives: list[tuple[int, str]],
) -> None:
    """A driver repeats its last batch unless Spark knew that it was committed."""
    place = tmp_path_factory.mktemp("lives")
    name = name_of(kind, place, place.name)
    batch = 0
    for length, dies_after in [*lives, (1, "")]:
        target = target_of(name)
        target.prepare(SCHEMA)
        for number in range(length + 1):
            files = written(target, [batch * 10, batch * 10 + 1])
            is_last = number == length
            if is_last and dies_after == "files":
                break
            target.commit(QUERY, batch, batch, files)
            if is_last and dies_after == "commit":
                break
            batch += 1
    assert seqs(name) == [batch * 10 + n for batch in range(batch) for n in range(2)]


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_are_added_and_earlier_versions_stay_readable(kind: str, tmp_path: Path) -> None:
    name = name_of(kind, tmp_path)
    target = target_of(name)
    target.prepare(SCHEMA)
    target.commit(QUERY, 0, 0, written(target, [1]))
    first = 1  # Delta's version 0 is the empty table
    wider = SCHEMA.append(pa.field("shop", pa.string()))
    target.prepare(wider)
    target.prepare(wider)
    target.commit(QUERY, 1, 1, written(target, [2], wider))
    target.commit(QUERY, 2, 2, written(target, [3]))  # files without the column still fit
    found = rows(name).sort_by("seq")
    assert found["shop"].to_pylist() == [None, "new", None]
    assert seqs(name) == [1, 2, 3]
    assert seqs(name, first) == [1]
    assert "shop" not in rows(name, first).column_names


@pytest.mark.parametrize("kind", FORMATS)
def test_a_column_of_another_type_is_refused_and_nothing_changes(kind: str, tmp_path: Path) -> None:
    name = name_of(kind, tmp_path)
    target = target_of(name)
    target.prepare(SCHEMA)
    target.commit(QUERY, 0, 0, written(target, [1]))
    other = pa.schema([("seq", pa.string()), ("more", pa.int64())])
    with pytest.raises(InvalidInput, match="the column 'seq' of .* is .*, and the stream has"):
        target.prepare(other)
    assert rows(name).column_names == SCHEMA.names


def test_the_record_of_a_batch_survives_a_checkpoint_of_the_log(tmp_path: Path) -> None:
    name = name_of("delta", tmp_path)
    target = target_of(name)
    target.prepare(SCHEMA)
    target.commit(QUERY, 0, 7, written(target, [1]))
    table = DeltaTable(name)
    table.create_checkpoint()
    (tmp_path / "orders" / "_delta_log" / f"{table.version():020d}.json").unlink()
    target.commit(QUERY, 0, 7, written(target, [1]))
    assert seqs(name) == [1]


def test_files_have_bounds_by_which_readers_skip_them(tmp_path: Path) -> None:
    name = name_of("delta", tmp_path)
    target = target_of(name)
    target.prepare(SCHEMA)
    target.commit(QUERY, 0, 0, written(target, [5, 3, 9]))
    (action,) = pa.table(DeltaTable(name).get_add_actions(flatten=True)).to_pylist()
    assert (action["num_records"], action["min.seq"], action["max.seq"]) == (3, 3, 9)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_process() as server:
        yield server


@pytest.mark.parametrize("kind", FORMATS)
def test_tables_in_an_object_store(
    kind: str, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = s3.location(f"{tmp_path.name}/{kind}")
    place = DeltaTarget.parse(location).place
    target: TableTarget = DeltaTarget(place)
    if kind == "iceberg":
        for key, value in {
            "WAREHOUSE": place.url,
            "S3__ENDPOINT": place.options["endpoint"],
            "S3__ACCESS_KEY_ID": place.options["access_key"],
            "S3__SECRET_ACCESS_KEY": place.options["secret_key"],
            "S3__REGION": place.options["region"],
        }.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        target = IcebergTarget.parse("lake.shop.orders")
    target.prepare(SCHEMA)
    for batch in (0, 1, 1):
        target.commit(QUERY, batch, batch, written(target, [batch]))
    if kind == "iceberg":
        assert seqs("lake.shop.orders") == [0, 1]
        return
    from penstock.spark.delta_log import storage_options

    table = DeltaTable(place.url, storage_options=storage_options(place))
    assert sorted(pa.table(table.to_pyarrow_table())["seq"].to_pylist()) == [0, 1]


def test_targets_that_cannot_be_are_refused(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    penstock.open(str(queue)).close()

    def check(target: str, to: str) -> None:
        check_stream(str(queue), target, to, None, None)

    for target, to, why in (
        ("orders", "iceberg", "write catalog.namespace.table"),
        ("lake.orders", "iceberg", "write catalog.namespace.table"),
        ("nowhere.shop.orders", "iceberg", "'nowhere' is not configured"),
        ("hdfs://host/orders", "delta", "Hadoop's file systems"),
        (str(queue / "table"), "delta", "is inside"),
        (str(queue / "table"), "parquet", "is inside"),
        (str(tmp_path / "table"), "csv", "to is 'csv'"),
    ):
        with pytest.raises(InvalidInput, match=why):
            check(target, to)
    check(str(tmp_path / "table"), "delta")
    check("lake.shop.orders", "iceberg")
    assert not (tmp_path / "table").exists()


def test_secrets_of_a_target_are_not_shown() -> None:
    target = IcebergTarget("lake", "shop.orders", {"s3.secret-access-key": "hush"})
    assert "hush" not in repr(target)
    assert asdict(target)["properties"] == {"s3.secret-access-key": "hush"}
    assert "hush" not in repr(DeltaTarget(place_of("s3://b/t?access_key=a&secret_key=hush")))


# -- on Spark --------------------------------------------------------------------------------------


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_stream_goes_on_from_its_checkpoint_and_repeats_nothing(
    kind: str, tmp_path: Path, spark: SparkSession
) -> None:
    source, name, checkpoint = tmp_path / "queue", name_of(kind, tmp_path), tmp_path / "checkpoint"

    def run(**options: str) -> None:
        query = stream(
            spark,
            str(source),
            name,
            to=kind,
            checkpoint=str(checkpoint),
            once=True,
            options=options,
        )
        query.awaitTermination()

    def publish(first: int, count: int) -> None:
        with penstock.open(str(source)) as queue:
            for n in range(first, first + count):
                queue.enqueue(b"%d" % n, headers={"n": str(n)}, key="k")

    publish(1, 5)
    run()
    assert seqs(name) == [1, 2, 3, 4, 5]
    publish(6, 3)
    run()
    # As if the driver had died before Spark recorded the batch, which the table has.
    commits = sorted(checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    run()
    publish(9, 1)
    run()
    found = rows(name).sort_by("seq")
    assert found["seq"].to_pylist() == list(range(1, 10))
    assert found["payload"].to_pylist() == [b"%d" % n for n in range(1, 10)]
    assert dict(found["headers"].to_pylist()[6]) == {"n": "7"}
    assert seqs(name, 1) == [1, 2, 3, 4, 5]  # time travel
    # A checkpoint that is older than the table, as from a backup: nothing is taken for repeated.
    copytree(checkpoint, tmp_path / "backup")
    publish(10, 1)
    run()
    publish(11, 1)
    newest, checkpoint = checkpoint, tmp_path / "backup"
    with pytest.raises(StreamingQueryException, match="the checkpoint is older than the table"):
        run()
    checkpoint = newest
    run()
    assert seqs(name) == list(range(1, 12))
    # A restart with another column: the table gets it.
    publish(12, 1)
    columns = "seq,timestamp,payload,key,headers,content_type,priority,expires_at,deliver_at,size"
    run(columns=columns)
    assert rows(name).sort_by("seq")["size"].to_pylist()[:11] == [None] * 11
    assert rows(name).sort_by("seq")["size"].to_pylist()[11] > 0


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_checkpoint_with_a_mistyped_target_loses_nothing(
    kind: str, tmp_path: Path, spark: SparkSession
) -> None:
    source, name, typo = (
        tmp_path / "queue",
        name_of(kind, tmp_path),
        name_of(kind, tmp_path, "odres"),
    )

    def run(target: str) -> None:
        """Publish a message and stream, but only even seqs: the first batch has no rows."""
        with penstock.open(str(source)) as queue:
            queue.enqueue(b"x")
        frame = spark.readStream.format("penstock").option("startingOffsets", "earliest")
        even = frame.load(str(source)).where("seq % 2 = 0")
        checkpoint = str(tmp_path / "checkpoint")
        query = stream(spark, even, target, to=kind, checkpoint=checkpoint, once=True)
        query.awaitTermination()

    run(name)
    assert seqs(name) == []
    with pytest.raises(StreamingQueryException, match="batches 0 to 0 of its checkpoint"):
        run(typo)
    run(name)
    run(name)
    assert seqs(name) == [2, 4]
    assert seqs(typo) == []


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_a_typed_stream_becomes_a_delta_table(tmp_path: Path, spark: SparkSession) -> None:
    with penstock.open(str(tmp_path / "queue")) as queue:
        queue.enqueue(json.dumps({"id": 1, "tags": ["a"], "at": "2026-01-31"}).encode())
    frame = (
        spark.readStream.format("penstock")
        .options(
            path=str(tmp_path / "queue"),
            startingOffsets="earliest",
            payloadSchema="id SMALLINT, tags ARRAY<STRING>, at DATE",
        )
        .load()
        .selectExpr("data.*", "cast(seq as decimal(20, 2)) cents", "struct(seq) inner", "timestamp")
    )
    name = str(tmp_path / "table")
    where = {"checkpoint": str(tmp_path / "checkpoint"), "to": "delta"}
    stream(spark, frame, name, once=True, **where).awaitTermination()  # type: ignore[arg-type]
    (row,) = rows(name).to_pylist()
    assert (row["id"], row["tags"], str(row["at"])) == (1, ["a"], "2026-01-31")
    assert (str(row["cents"]), row["inner"]) == ("1.00", {"seq": 1})
    bad = frame.selectExpr("cast(timestamp as timestamp_ntz) local")
    with pytest.raises(InvalidInput, match="'local' has the type timestamp_ntz"):
        stream(spark, bad, name, **where)  # type: ignore[arg-type]


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", FORMATS)
def test_two_streams_write_to_one_table_at_once(
    kind: str, tmp_path: Path, spark: SparkSession
) -> None:
    """The second one is started in a thread of its own, as an application may do."""
    name = name_of(kind, tmp_path)
    numbers = {"a": range(1, 4), "b": range(101, 105)}
    for source, some in numbers.items():
        with penstock.open(str(tmp_path / source)) as queue:
            queue.enqueue_batch([b"%d" % n for n in some])

    def start(source: str, checkpoint: str) -> StreamingQuery:
        where = str(tmp_path / source), name
        place = str(tmp_path / checkpoint)
        return stream(spark, *where, to=kind, checkpoint=place, interval_s=0)

    queries = [start("a", "a")]
    with ThreadPoolExecutor(1) as threads:
        queries.append(threads.submit(start, "b", "b").result())
        with pytest.raises(InvalidInput, match="checkpoint .* is in use by the query"):
            threads.submit(start, "b", "a").result()
    for query in queries:
        query.processAllAvailable()
    assert all(query.isActive for query in queries)
    for query in queries:
        query.stop()
    found = sorted(int(payload) for payload in rows(name)["payload"].to_pylist())
    assert found == [n for some in numbers.values() for n in some]
