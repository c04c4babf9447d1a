"""The lag of streaming queries: in Spark's progress, and at the broker."""

import json
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.listener import StreamingQueryListener

import penstock
from penstock.client import connect_broker
from penstock.clock import ManualClock
from penstock.errors import InvalidInput, Unreachable
from penstock.spark import LagListener, lag_of, publish_lag
from penstock.spark.lag import Position, positions_of, reader_name
from penstock.spark.stream_reader import StreamReader
from tests.server.running import RunningServer
from tests.spark.in_process import source
from tests.spark.random_queues import open_small


def reader_of(path: Path, **options: object) -> StreamReader:
    made = source(path, **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def progress(end: object, latest: object, *, name: str | None = "copy", rate: float = 2.0) -> Any:
    one = {"endOffset": end, "latestOffset": latest, "processedRowsPerSecond": rate}
    return SimpleNamespace(name=name, id="320d6d91", sources=[SimpleNamespace(**one)])


def offsets(**seqs: int) -> str:
    identities = {f"{queue}//identity": 7 for queue in seqs}
    return json.dumps({**seqs, **identities}).replace("__", "/")


def test_the_source_reports_the_end_of_the_queue_beyond_the_limit(tmp_path: Path) -> None:
    with open_small(tmp_path / "orders") as queue:
        queue.enqueue_batch([b"x"] * 10)
    reader = reader_of(tmp_path / "orders", startingOffsets="earliest", maxOffsetsPerTrigger=4)
    assert reader.reportLatestOffset()["orders"] == 11, "before the first batch"
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    assert (end["orders"], reader.reportLatestOffset()["orders"]) == (5, 11)
    found = {"sources": [{"endOffset": end, "latestOffset": reader.reportLatestOffset()}]}
    assert lag_of(found) == {"orders": 6}
    with open_small(tmp_path / "orders") as queue:
        queue.enqueue_batch([b"x"] * 5)
    reader.latestOffset(end, ReadMaxRows(4))
    assert reader.reportLatestOffset()["orders"] == 16


def test_events_are_no_messages_and_other_sources_have_no_lag(tmp_path: Path) -> None:
    with open_small(tmp_path / "orders") as queue:
        queue.enqueue_batch([b"x"] * 3)
        queue.dequeue_batch(3)
    reader = reader_of(tmp_path / "orders", table="events", startingOffsets="earliest")
    start = reader.initialOffset()
    reader.latestOffset(start, ReadAllAvailable())
    found = progress(json.dumps(start), json.dumps(reader.reportLatestOffset()))
    assert positions_of(found, "copy") == {}
    assert lag_of(found)["orders"] > 0, "in events"
    for end, latest in ((None, None), ('{"logOffset":3}', None), ("3", "7"), ("not json", "")):
        assert positions_of(progress(end, latest), "copy") == {}
        assert lag_of(progress(end, latest)) == {}
    assert lag_of(None) == {}


class Sent:
    """What a listener would send, and when."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str, Position]] = []
        self.came = Event()

    def __call__(self, queue: str, reader: str, position: Position) -> None:
        self.reports.append((queue, reader, position))
        self.came.set()

    def wait(self) -> list[tuple[str, str, Position]]:
        assert self.came.wait(60)
        self.came.clear()
        found, self.reports = self.reports, []
        return found


def event(found: Any) -> Any:
    return SimpleNamespace(progress=found, id=found.id)


def test_reports_are_joined_during_the_interval_and_the_last_is_sent_when_the_query_ends() -> None:
    sent, clock = Sent(), ManualClock()
    listener = LagListener("http://nowhere", send=sent, clock=clock)
    listener.onQueryProgress(event(progress(offsets(a__b=3), offsets(a__b=9))))
    assert sent.wait() == [("a/b", "copy", Position(3, 2.0))]
    for seq in (4, 5, 6):
        listener.onQueryProgress(event(progress(offsets(a__b=seq), offsets(a__b=9))))
    assert sent.reports == []
    listener.onQueryTerminated(event(progress(None, None)))
    assert sent.wait() == [("a/b", "copy", Position(6, 2.0))]
    listener.onQueryProgress(event(progress(offsets(a__b=7), None, name=None)))
    listener.close()
    assert sent.wait() == [("a/b", "spark-320d6d91", Position(7, 2.0))]
    listener.onQueryProgress(event(progress(offsets(a__b=8), None)))
    assert sent.reports == [], "it is closed"


def test_an_idle_query_keeps_its_report() -> None:
    sent = Sent()
    listener = LagListener("http://nowhere", send=sent, interval_s=0)
    listener.onQueryIdle(event(progress(None, None)))
    listener.onQueryProgress(event(progress(offsets(a__b=3), None)))
    assert sent.wait() == [("a/b", "copy", Position(3, 2.0))]
    listener.onQueryIdle(event(progress(None, None)))
    assert sent.wait() == [("a/b", "copy", Position(3, 0.0))]
    listener.close()


def test_a_listener_refuses_what_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        LagListener(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="interval_s"):
        LagListener(tmp_path, interval_s=-1)
    with pytest.raises(InvalidInput, match="reader"):
        LagListener(tmp_path, reader="a b")
    with pytest.raises(Unreachable):
        LagListener("http://127.0.0.1:1")


def test_a_directory_without_a_broker_publishes_nothing_and_disturbs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = LagListener(tmp_path, interval_s=0)
    with caplog.at_level("DEBUG", "penstock.spark"):
        listener.onQueryProgress(event(progress(offsets(a__b=3), None)))
        listener.close()
    assert "no broker has the queue a/b" in caplog.text


def test_a_refused_report_is_logged_once_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer(tmp_path / "data") as server:
        key = server.new_key("read")
        listener = LagListener(server.url, key=key, interval_s=0)
        with caplog.at_level("WARNING", "penstock.spark"):
            found = progress(offsets(shop__orders=3, shop__mails=3), None)
            listener.onQueryProgress(event(found))
            listener.close()
    warnings = [one for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) == 1 and "is not published" in warnings[0].message


class Ended(StreamingQueryListener):
    """Tells when a query has ended."""

    def __init__(self) -> None:
        self.came = Event()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.came.set()


def test_a_query_is_shown_by_its_broker_with_its_lag(spark: SparkSession, tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        with penstock.open(f"{server.url}/shop/orders") as queue:
            queue.enqueue_batch([b"x"] * 10)
        listener, end = publish_lag(spark, tmp_path / "data", interval_s=0), Ended()
        spark.streams.addListener(end)  # it is told after the other
        try:
            stream = (
                spark.readStream.format("penstock")
                .option("url", server.url)
                .option("queue", "shop/orders")
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", "6")
                .load()
            )
            with penstock.open(f"{server.url}/shop/copy") as copy:
                copy.enqueue(b"makes the queue")
            writer = stream.select("payload").writeStream.format("penstock")
            writer = writer.option("url", server.url).option("queue", "shop/copy")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.queryName("orders to copy").trigger(availableNow=True).start()
            query.awaitTermination(100)
            first = query.recentProgress[0]
            assert lag_of(first) == {"shop/orders": 4}
            assert first.sink.numOutputRows == 6
            assert end.came.wait(100)
        finally:
            spark.streams.removeListener(listener)
            spark.streams.removeListener(end)
            listener.close()
        with penstock.open(f"{server.url}/shop/orders") as queue:
            queue.enqueue(b"y")
        with connect_broker(server.url) as broker:
            (found,) = broker.readers("shop/orders")
            assert (found.name, found.lag) == (reader_name("orders to copy", ""), 1)
            assert found.expires_at - found.reported_at == pytest.approx(3600)
            broker.forget_reader("shop/orders", found.name)
            assert broker.readers("shop/orders") == []
