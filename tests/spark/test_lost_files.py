"""Files of a queue that are missing, cut or misplaced: the source tells, and doubles no row."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock
from penstock.arrow.loss import DamagedSegment, DataLoss
from penstock.errors import NotALedger
from penstock.ledger.segment_header import HEADER_BYTES
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


# -- segments that are there and have nothing in them ----------------------------------------------


@pytest.mark.parametrize("table", ["messages", "state"])
@pytest.mark.parametrize("left_bytes", [0, 20, HEADER_BYTES], ids=["none", "half", "header"])
@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "middle", "last"])
def test_an_emptied_segment_is_told(queue: Path, which: int, left_bytes: int, table: str) -> None:
    path = segments(queue)[which]
    lost = {row["seq"] for row in rows(queue) if row["seq"] >= int(path.stem)}
    if which != -1:
        lost = {seq for seq in lost if seq < int(segments(queue)[which + 1].stem)}
    path.write_bytes(path.read_bytes()[:left_bytes])
    with pytest.raises(DamagedSegment, match="lost"):
        rows(queue, table=table)
    found = [row["seq"] for row in rows(queue, table=table, verify="false")]
    assert found == sorted(set(range(1, 121)) - lost)


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_an_emptied_segment_of_events_is_told(queue: Path, which: int) -> None:
    with penstock.open(queue, segment_entries=20) as opened:
        for _ in range(30):
            opened.ack(opened.lease())
    path = sorted((queue / "events").glob("*.log"))[which]
    path.write_bytes(b"")
    with pytest.raises(DamagedSegment, match="lost"):
        rows(queue, table="events")


@pytest.mark.parametrize("how", ["cut", "delete"])
def test_the_states_tell_of_a_lost_end_after_a_clean_close(queue: Path, how: str) -> None:
    last = segments(queue)[-1]
    data = last.read_bytes()
    if how == "delete":
        last.unlink()
    else:
        last.write_bytes(data[: entry_bounds(data)[2]])
    with pytest.raises(DamagedSegment, match="lost"):
        rows(queue, table="state")


@pytest.mark.parametrize("table", ["messages", "state"])
def test_a_cut_in_the_only_batch_of_a_queue_is_told(tmp_path: Path, table: str) -> None:
    with penstock.open(tmp_path / "queue", sync="never") as made:
        made.enqueue_batch([b"%d" % number for number in range(20)])
    (only,) = segments(tmp_path / "queue")
    data = only.read_bytes()
    only.write_bytes(data[: entry_bounds(data)[10]])
    with pytest.raises(DamagedSegment, match="lost"):
        rows(tmp_path / "queue", table=table)


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}'], ids=["empty", "cut", "other"])
def test_a_damaged_manifest_is_told_with_its_place(queue: Path, content: bytes) -> None:
    (queue / "queue.json").write_bytes(content)
    with pytest.raises(NotALedger, match=r"queue: queue\.json cannot be read"):
        rows(queue)
