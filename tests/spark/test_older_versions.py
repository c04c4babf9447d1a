"""What stands in for the parts that PySpark lacks before 4.2, tested with the newest."""

import pickle
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.spark import DataLoss, source
from penstock.spark.payloads import frames
from penstock.spark.stream_reader import RefusedStream, UnlimitedStreamReader
from tests.spark.in_process import as_rows
from tests.spark.in_process import source as source_at


@pytest.fixture(autouse=True)
def before_4_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "HAS_READ_LIMITS", False)


def stream(path: Path, **options: object) -> UnlimitedStreamReader:
    made = source_at(path, startingOffsets="earliest", **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, UnlimitedStreamReader)
    return reader


def seqs(reader: UnlimitedStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    tasks = reader.partitions(start, end)
    sent: UnlimitedStreamReader = pickle.loads(pickle.dumps(reader))  # as to an executor
    return [row["seq"] for task in tasks for batch in sent.read(task) for row in as_rows(batch)]


def test_each_batch_reads_all_that_is_new(tmp_path: Path) -> None:
    with penstock.open(str(tmp_path)) as queue:
        queue.enqueue_batch([b"x"] * 5)
    reader = stream(tmp_path, group="copier")
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert seqs(reader, start, end) == [1, 2, 3, 4, 5]
    assert reader.latestOffset() == end  # the same text: Spark starts no batch
    reader.commit(end)
    with penstock.open(str(tmp_path)) as queue:
        assert queue.stats().groups["copier"].read_position == 6
        queue.enqueue(b"x")
    restarted = stream(tmp_path)  # which is not told where it was
    assert seqs(restarted, end, restarted.latestOffset()) == [6]
    restarted.stop()


def test_a_queue_that_was_replaced_is_data_loss(tmp_path: Path) -> None:
    place = tmp_path / "orders"
    with penstock.open(str(place)) as queue:
        queue.enqueue_batch([b"x"] * 5)
    end = stream(place).latestOffset()
    rmtree(place)
    with penstock.open(str(place)) as queue:
        queue.enqueue_batch([b"x"] * 7)
    restarted = stream(place)
    with pytest.raises(DataLoss, match="deleted and created again"):
        restarted.partitions(end, restarted.latestOffset())
    lenient = stream(place, failOnDataLoss="false")
    assert seqs(lenient, end, lenient.latestOffset()) == [1, 2, 3, 4, 5, 6, 7]


def test_decoding_a_frame_is_refused_with_the_version_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "HAS_ARROW_UDFS", False)
    frame: Any = None  # not looked at
    with pytest.raises(InvalidInput, match=r"PySpark 4.1 or newer.*payloadSchema"):
        frames.decode_payloads(frame, "id BIGINT")


@pytest.mark.parametrize(
    "limit", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"]
)
def test_limits_are_refused_with_the_version_that_has_them(tmp_path: Path, limit: str) -> None:
    penstock.open(str(tmp_path)).close()
    made = source_at(tmp_path, **{limit: "10"})
    refused = made.streamReader(made.schema())
    assert isinstance(refused, RefusedStream)
    with pytest.raises(InvalidInput, match=f"{limit} cannot be applied.*PySpark 4.2 or newer"):
        refused.initialOffset()
