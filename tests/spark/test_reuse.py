"""One table, used again and again: what one query asked for never shows in another."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.spark.sessions import KNOWN_BROKEN, PUSHDOWN, scopes_filters, session
from penstock.spark.source import FilteringDataSource
from tests.spark.random_queues import open_small

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

COUNT = 1000


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reuse") / "orders"
    with open_small(path) as queue:
        for number in range(10):
            queue.enqueue_batch([f"{number * 100 + n}" for n in range(100)])
    return path


@pytest.fixture(params=["session()", "own, setting on", "own, setting off"])
def any_session(request: pytest.FixtureRequest, spark: SparkSession) -> SparkSession:
    """As `session()` gives it, and as users make it, whatever they set."""
    if request.param == "session()":
        return spark
    own = spark.newSession()
    own.conf.set(PUSHDOWN, "true" if request.param.endswith("on") else "false")
    return own


def table(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(path=str(path), **options).load()


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def test_a_table_that_was_filtered_has_all_its_rows_in_the_next_query(
    any_session: SparkSession, orders: Path
) -> None:
    frame = table(any_session, orders)
    assert frame.where("seq > 990").count() == 10
    assert frame.count() == COUNT
    assert frame.where("seq <= 5").count() == 5
    assert frame.where("seq > 5 and payload is not null").count() == COUNT - 5
    assert frame.limit(3).count() == 3
    assert frame.count() == COUNT


def test_scans_of_one_table_in_one_query_do_not_share_a_filter(
    any_session: SparkSession, orders: Path
) -> None:
    frame = table(any_session, orders, columns="seq,timestamp")
    few, rest = frame.where("seq > 990"), frame.where("seq < 3")
    assert seqs(few.union(frame)) == sorted([*range(1, COUNT + 1), *range(991, COUNT + 1)])
    assert seqs(rest.union(few)) == [1, 2, *range(991, COUNT + 1)]
    twice = frame.alias("a").join(few.alias("b"), f.col("a.seq") == f.col("b.seq") - 100)
    assert seqs(twice.select("a.seq")) == list(range(891, 901))
    assert frame.join(few, "seq", "left_anti").count() == COUNT - 10
    assert frame.join(few, "seq", "left_semi").count() == 10


def test_a_cached_table_is_whole_and_so_is_what_it_was_made_from(
    any_session: SparkSession, orders: Path
) -> None:
    frame = table(any_session, orders)
    few = frame.where("seq > 990").cache()
    try:
        assert few.count() == 10
        whole = frame.cache()
        assert whole.count() == COUNT
        assert whole.where("seq <= 20").count() == 20
        whole.unpersist()
        assert frame.count() == COUNT
    finally:
        few.unpersist()


def test_a_view_and_its_subqueries_are_whole_in_every_query(
    any_session: SparkSession, orders: Path
) -> None:
    any_session.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW reused USING penstock OPTIONS (path '{orders}')"
    )

    def value(query: str) -> int:
        return int(any_session.sql(query).collect()[0][0])

    assert value("SELECT count(*) FROM reused WHERE seq = 7") == 1
    assert value("SELECT count(*) FROM reused") == COUNT
    assert value("SELECT (SELECT count(*) FROM reused WHERE seq < 4) + count(*) FROM reused") == (
        COUNT + 3
    )
    inner = "SELECT seq FROM reused WHERE seq > 900"
    assert value(f"SELECT count(*) FROM reused WHERE seq NOT IN ({inner})") == 900
    assert value(f"SELECT count(*) FROM reused WHERE seq IN ({inner}) AND seq < 950") == 49


def test_a_stream_and_a_filtered_batch_do_not_touch_each_other(
    any_session: SparkSession, orders: Path, tmp_path: Path
) -> None:
    batch = table(any_session, orders, columns="seq")
    assert batch.where("seq > 990").count() == 10
    stream = any_session.readStream.format("penstock").options(
        path=str(orders), startingOffsets="earliest", columns="seq", maxOffsetsPerTrigger="400"
    )
    seen: list[int] = []

    def note(frame: DataFrame, _: int) -> None:
        assert frame.where("seq % 2 = 0").count() * 2 == frame.count()
        seen.extend(seqs(frame.where("seq > 100")))
        # A table that is looked up for each batch, as when a stream is joined with one.
        assert frame.join(batch.where("seq <= 500"), "seq").count() <= frame.count()

    query = (
        stream.load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert sorted(seen) == list(range(101, COUNT + 1))
    assert batch.count() == COUNT


def test_a_table_is_of_the_moment_at_which_it_was_first_used(
    spark: SparkSession, tmp_path: Path
) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue_batch([b"x"] * 10)
    frame = spark.read.format("penstock").option("PATH", str(tmp_path)).load()
    assert frame.count() == 10
    with open_small(tmp_path) as queue:
        queue.enqueue_batch([b"x"] * 5)
    assert (frame.count(), frame.where("seq > 8").count(), frame.union(frame).count()) == (
        10,
        2,
        20,
    )
    assert table(spark, tmp_path).count() == 15


# -- any sequence of uses --------------------------------------------------------------------------


def _uses(random: Random) -> tuple[str, Callable[[DataFrame], DataFrame], list[int]]:
    """A use of the table, and the seqs that it gives by the model."""
    everything = range(1, COUNT + 1)
    low, high = sorted(random.sample(everything, 2))
    inside = [seq for seq in everything if low <= seq < high]
    condition = f"seq >= {low} AND seq < {high}"
    match random.randrange(6):
        case 0:
            return "all", lambda frame: frame, list(everything)
        case 1:
            return condition, lambda frame: frame.where(condition), inside
        case 2:
            chosen = sorted(random.sample(everything, 5))
            return f"in {chosen}", lambda frame: frame.where(f.col("seq").isin(chosen)), chosen
        case 3:
            union = sorted([*inside, *everything])
            return f"union {condition}", lambda frame: frame.where(condition).union(frame), union
        case 4:
            outside = [seq for seq in everything if not low <= seq < high]
            return (
                f"anti {condition}",
                lambda frame: frame.join(frame.where(condition), "seq", "left_anti"),
                outside,
            )
        case _:
            return (
                f"not {low}",
                lambda frame: frame.where(f"seq <> {low}"),
                [seq for seq in everything if seq != low],
            )


def _use_often(spark: SparkSession, path: Path, seed: int, uses: int) -> None:
    frame, random, done = table(spark, path, columns="seq"), Random(seed), []
    for _ in range(uses):
        said, use, wanted = _uses(random)
        done.append(said)
        assert seqs(use(frame)) == wanted, done


def test_any_sequence_of_uses_gives_the_rows_of_the_model(
    any_session: SparkSession, orders: Path
) -> None:
    _use_often(any_session, orders, seed=4, uses=8)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_many_sequences_of_uses_give_the_rows_of_the_model(
    any_session: SparkSession, orders: Path, seed: int
) -> None:
    _use_often(any_session, orders, seed, uses=25)


# -- where filters are taken -----------------------------------------------------------------------


def test_the_probe_finds_a_spark_that_keeps_filters(spark: SparkSession) -> None:
    """And the list of those that need no probe is true of this one."""
    broken = spark.version.startswith(KNOWN_BROKEN)
    assert scopes_filters(spark) is not broken
    assert spark.conf.get(PUSHDOWN, "false") == ("false" if broken else "true")


def test_a_session_of_a_right_spark_takes_filters(
    spark: SparkSession,
    orders: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("penstock.spark.sessions.filters_are_scoped", lambda _: True)
    before = spark.conf.get(PUSHDOWN, "false") or "false"
    try:
        with caplog.at_level("INFO", "penstock.spark"):
            assert session() is spark
            session()
        assert spark.conf.get(PUSHDOWN) == "true"
        assert [r.message for r in caplog.records] == [
            "filters on seq and time are pushed to the reader"
        ]
        assert table(spark, orders).where("seq > 990").count() == 10
    finally:
        spark.conf.set(PUSHDOWN, before)


def test_the_reader_takes_filters_only_in_the_process_that_hands_them_down(orders: Path) -> None:
    made = FilteringDataSource({"path": str(orders)})
    assert type(made.reader(made.schema())).__name__ == "BatchReader"
