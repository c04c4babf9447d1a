"""What the sink and the jobs that write take, refuse and keep, inside a real Spark."""

from importlib import import_module
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.clock import ManualClock
from penstock.queue import NewMessage
from penstock.queue.queue import open_queue
from penstock.spark.jobs import archive, redrive, restore, stream
from tests.spark.in_process import rows
from tests.spark.random_queues import SMALL, open_small

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

REDRIVE = import_module("penstock.spark.jobs.redrive")
MESSAGE = "payload,priority,key,headers,content_type,expires_at,deliver_at,max_attempts"


def write(frame: DataFrame, path: Path, mode: str = "append") -> None:
    frame.write.format("penstock").mode(mode).save(str(path))


def test_headers_of_any_map_of_strings_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    for headers in (
        "map('a', 'b')",
        "map('a', nullif('b', 'c'))",
        "cast(null as map<string,string>)",
    ):
        write(spark.range(1).selectExpr("'x' payload", f"{headers} headers"), tmp_path)
    assert [row["headers"] for row in rows(tmp_path, columns="headers")] == [
        {"a": "b"},
        {"a": "b"},
        {},
    ]
    null = spark.range(1).selectExpr("'x' payload", "map('a', nullif('b', 'b')) headers")
    with pytest.raises(PySparkException, match="the header 'a' is null"):
        write(null, tmp_path)
    with pytest.raises(PySparkException, match="map<string,int>; the sink takes"):
        write(spark.range(1).selectExpr("'x' payload", "map('a', 1) headers"), tmp_path)
    with pytest.raises(PySparkException, match="content_type has 300 bytes"):
        write(spark.range(1).selectExpr("'x' payload", "repeat('x', 300) content_type"), tmp_path)
    assert len(rows(tmp_path)) == 3


def sentence(error: PySparkException) -> str:
    """Our own line in Spark's message."""
    (found,) = (line for line in str(error).splitlines() if line.startswith("penstock."))
    return found


def test_what_cannot_be_is_refused_with_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    penstock.open(str(path)).close()
    frame = spark.range(3).selectExpr("cast(id as string) payload")
    with pytest.raises(PySparkException) as refused:
        write(frame, path, "overwrite")
    assert "a queue cannot be overwritten: use .mode('append')" in sentence(refused.value)
    with pytest.raises(PySparkException) as refused:
        spark.read.format("penstock").load([str(path), str(tmp_path)]).count()
    assert "load takes one path" in sentence(refused.value)
    assert spark.read.format("penstock").load([str(path)]).count() == 0
    for options, said in (
        ({"table": "state"}, "cannot be streamed"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"minPartitions": "many"}, "whole number"),
    ):
        reader = spark.readStream.format("penstock").options(path=str(path), **options)
        with pytest.raises(PySparkException, match=said) as refused:
            query = reader.schema("seq BIGINT").load().writeStream.format("noop")
            query.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(60)
        assert "UnboundLocalError" not in str(refused.value)


def test_a_stream_from_queue_to_queue_keeps_every_option(
    spark: SparkSession, tmp_path: Path
) -> None:
    clock = ManualClock(now_s=1_700_000_000)
    with open_small(tmp_path / "orders", clock) as queue:
        for number in range(8):
            bits = [bool(number >> bit & 1) for bit in range(3)]
            queue.publish(
                [
                    NewMessage(
                        payload=b"%d" % number,
                        priority=number,
                        key=f"k{number}" if bits[0] else None,
                        headers={"n": str(number)} if bits[1] else None,
                        ttl=3_000_000_000 if bits[2] else None,
                        delay=3600 if bits[0] else None,
                        max_attempts=number + 1 if bits[1] else None,
                        content_type="text/plain" if bits[2] else None,
                        dedup_id=f"d{number}",
                    )
                ]
            )
    query = stream(
        spark,
        str(tmp_path / "orders"),
        str(tmp_path / "copy"),
        to="queue",
        checkpoint=str(tmp_path / "checkpoint"),
        once=True,
    )
    assert query.awaitTermination(100)
    assert rows(tmp_path / "copy", columns=MESSAGE) == rows(tmp_path / "orders", columns=MESSAGE)
    assert [row["max_attempts"] for row in rows(tmp_path / "copy", columns="max_attempts")] == [
        None, None, 3, 4, None, None, 7, 8,
    ]  # fmt: skip


def dead_letters(path: Path, count: int) -> list[int]:
    with open_queue(str(path), {"max_attempts": 1, "sync": "never"}) as queue:
        for number in range(count):
            queue.enqueue(str(number))
            (job,) = queue.lease()
            queue.nack(job, "no luck")
        return [letter.seq for letter in queue.browse("dead")]


def test_a_redrive_after_a_crash_publishes_what_it_discards(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same ends and count as the one that died, but not of the same letters."""
    path = str(tmp_path / "orders")
    seqs = dead_letters(tmp_path / "orders", 4)
    mended = "encode(concat('mended ', cast(payload as string)), 'utf-8')"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def where(*chosen: int) -> str:
        return f"seq in ({', '.join(str(seqs[number]) for number in chosen)})"

    with monkeypatch.context() as patch:
        patch.setattr(REDRIVE, "open_for_change", killed)
        with pytest.raises(KeyboardInterrupt):  # published, not discarded
            redrive(spark, path, where=where(0, 1, 3), transform=mended)
    result = redrive(spark, path, where=where(0, 2, 3), transform=mended)
    assert (result.replaced, result.dead_after) == (3, 1)
    again = redrive(spark, path, where=where(1), transform=mended)
    assert (again.replaced, again.dead_after) == (1, 0)
    with penstock.open(path) as queue:
        ready = sorted(message.payload for message in queue.browse("ready"))
    assert set(ready) == {b"mended 0", b"mended 1", b"mended 2", b"mended 3"}


def test_a_redrive_that_died_before_discarding_is_run_again_without_a_second_copy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "orders")
    dead_letters(tmp_path / "orders", 3)
    with monkeypatch.context() as patch:
        patch.setattr(REDRIVE, "open_for_change", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            redrive(spark, path, transform="payload")
    assert redrive(spark, path, transform="payload").dead_after == 0
    with penstock.open(path) as queue:
        assert sorted(message.payload for message in queue.browse("ready")) == [b"0", b"1", b"2"]
        # The same letters, dead once more: these are new, and are published anew.
        for job in queue.lease(3):
            queue.nack(job, "again")
    result = redrive(spark, path, transform="payload")
    assert (result.chosen, result.replaced, result.dead_after) == (3, 3, 0)
    with penstock.open(path) as queue:
        assert sorted(message.payload for message in queue.browse("ready")) == [b"0", b"1", b"2"]


def test_restores_that_overlap_write_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock(now_s=1_700_000_000)
    with open_queue(str(tmp_path / "orders"), SMALL, clock=clock) as queue:
        for number in range(200):
            clock.advance(1)
            queue.publish([NewMessage(payload=b"%d" % number + b" " * 100, max_attempts=7)])
    target, back = str(tmp_path / "archive"), str(tmp_path / "back")
    (result,) = archive(spark, str(tmp_path / "orders"), target)
    assert result.rows > 120
    written = [
        restore(spark, target, back, first_seq=first, end_seq=end)
        for first, end in ((50, 60), (40, 45), (50, 60), (30, 70), (30, 70), (1, 101), (1, 90))
    ]
    assert written == [10, 5, 0, 25, 0, 60, 0]
    everything = restore(spark, target, back)
    assert everything == result.rows - 100
    found = [int(row["payload"]) for row in rows(Path(back), columns="payload")]
    assert sorted(found) == list(range(result.rows))
    assert {row["max_attempts"] for row in rows(Path(back), columns="max_attempts")} == {7}
