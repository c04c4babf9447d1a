"""Files of a queue that are missing, cut or misplaced: the source tells, and doubles no row."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock
from penstock.errors import NotALedger
from penstock.spark.errors import DamagedSegment, DataLoss
from penstock.spark.stream_reader import StreamReader
from tests.harness.file_strokes import entry_bounds
from tests.spark.in_process import rows, source


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "queue"
    with penstock.open(path, segment_bytes=4096, sync="never") as made:
        for number in range(120):
            made.enqueue(b"%d" % number + bytes(80))
    return path


def segments(queue: Path) -> list[Path]:
    return sorted((queue / "messages").glob("*.log"))


def test_a_copy_of_a_segment_under_another_number_adds_no_rows(queue: Path) -> None:
    whole = [row["seq"] for row in rows(queue)]
    (queue / "messages" / f"{500:020d}.log").write_bytes(segments(queue)[0].read_bytes())
    assert [row["seq"] for row in rows(queue)] == whole == list(range(1, 121))


@pytest.mark.parametrize("how", ["cut", "delete"])
def test_a_lost_end_is_told_after_a_clean_close(queue: Path, how: str) -> None:
    last = segments(queue)[-1]
    data = last.read_bytes()
    if how == "delete":
        last.unlink()
    else:
        last.write_bytes(data[: entry_bounds(data)[2]])
    with pytest.raises(DamagedSegment, match="lost"):
        rows(queue)
    left = int(last.stem) + (2 if how == "cut" else 0)
    assert [row["seq"] for row in rows(queue, verify="false")] == list(range(1, left))


def test_a_queue_without_its_manifest_is_a_clear_error(queue: Path) -> None:
    (queue / "queue.json").unlink()
    with pytest.raises(NotALedger):
        rows(queue)


# -- the first segment -----------------------------------------------------------------------------


def without_first(queue: Path) -> int:
    """Delete the first segment; the first seq that is left."""
    first, second, *_ = segments(queue)
    first.unlink()
    return int(second.stem)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"startingOffsets": "earliest"},
        {"startingOffsets": '{"queue": -2}'},
        {"startingOffsets": '{"queue": 5}'},
        {"startingOffsets": "5"},
        {"startingTimestamp": "0"},
    ],
    ids=str,
)
def test_a_lost_first_segment_is_told_by_a_read_that_wants_it(
    queue: Path, options: dict[str, Any]
) -> None:
    left = without_first(queue)
    with pytest.raises(DamagedSegment, match=rf"seq [15] to {left - 1} of messages are lost"):
        rows(queue, **options)
    found = [row["seq"] for row in rows(queue, **options, verify="false")]
    assert found == list(range(left, 121))


def test_a_lost_first_segment_does_not_disturb_a_read_behind_it(queue: Path) -> None:
    left = without_first(queue)
    assert [row["seq"] for row in rows(queue, startingOffsets=left)] == list(range(left, 121))


def test_a_log_without_any_segment_is_told(queue: Path) -> None:
    for segment in segments(queue):
        segment.unlink()
    with pytest.raises(DamagedSegment, match="seq 1 to 120 of messages are lost"):
        rows(queue)
    assert rows(queue, verify="false") == []


@pytest.mark.parametrize("read_before", [0, 5])
def test_a_lost_first_segment_stops_a_stream_that_has_not_read_it(
    queue: Path, read_before: int
) -> None:
    made = source(queue, startingOffsets="earliest")
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    start = reader.initialOffset()
    if read_before:
        start = {**start, "queue": 1 + read_before}
    left = without_first(queue)
    end = reader.latestOffset(start, ReadAllAvailable())
    lost = rf"seq {1 + read_before} to {left - 1} of messages are lost"
    with pytest.raises(DamagedSegment, match=lost):
        reader.partitions(start, end)


def test_a_stream_that_begins_after_the_loss_is_told_of_it(queue: Path) -> None:
    left = without_first(queue)
    made = source(queue, startingOffsets="earliest")
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    start = reader.initialOffset()
    with pytest.raises(DamagedSegment, match=rf"seq 1 to {left - 1}"):
        reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))


def test_what_a_writer_has_accepted_as_lost_is_not_told_to_earliest(queue: Path) -> None:
    left = without_first(queue)
    penstock.open(queue).close()  # which reports it, and notes that it is gone
    assert [row["seq"] for row in rows(queue)] == list(range(left, 121))
    with pytest.raises(DataLoss, match=f"seq 1 to {left - 1}"):
        rows(queue, startingOffsets=1)
