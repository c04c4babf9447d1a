"""Bad bytes and removed ranges are told, with numbers, and passed over only when asked for."""

from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.spark import DamagedSegment, DataLoss
from tests.spark.in_process import planned, read, rows
from tests.spark.random_queues import open_small


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A queue with many segments; in the second of them a byte was changed."""
    with open_small(tmp_path) as queue:
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 20)
    second = sorted((tmp_path / "messages").glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[1000] ^= 0xFF
    second.write_bytes(data)
    return tmp_path


def test_damage_is_an_error_that_counts_what_can_be_read_and_what_is_lost(damaged: Path) -> None:
    with pytest.raises(DamagedSegment) as error:
        rows(damaged)
    said = str(error.value)
    assert "1 are lost" in said
    assert "can be read" in said
    assert "verify=false" in said
    assert "penstock verify" in said


def test_without_verify_reading_goes_on_behind_the_damage(damaged: Path) -> None:
    found = [row["seq"] for row in rows(damaged, verify="false")]
    assert len(found) == 199
    assert len(set(range(1, 201)) - set(found)) == 1


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_tasks_whose_range_is_sound_are_not_disturbed(damaged: Path, size: int) -> None:
    reader, tasks = planned(
        damaged, maxPartitionBytes=size, endingOffsets=f'{{"{damaged.name}": 10}}'
    )
    assert len(read(reader, tasks)) == 9


def test_a_damaged_header_loses_nothing(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 20)
    second = sorted((tmp_path / "messages").glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[20] ^= 0xFF
    second.write_bytes(data)
    assert [row["seq"] for row in rows(tmp_path)] == list(range(1, 201))


def test_a_segment_that_is_missing_is_told(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(10):
            queue.enqueue_batch([b"x" * 50] * 20)
    sorted((tmp_path / "messages").glob("*.log"))[2].unlink()
    with pytest.raises(DamagedSegment, match="lost"):
        rows(tmp_path)
    assert len(rows(tmp_path, verify="false")) < 200


def test_an_index_that_lies_is_not_believed(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        for _ in range(30):
            queue.enqueue_batch([b"x" * 50] * 20)
    indexes = sorted((tmp_path / "messages").glob("*.idx"))
    assert len(indexes) > 3
    first = indexes[0].read_bytes()
    for number, index in enumerate(indexes):
        if number % 2:
            index.write_bytes(first)
        else:
            index.unlink()
    assert [row["seq"] for row in rows(tmp_path, maxPartitionBytes=4096)] == list(range(1, 601))


def test_a_range_that_retention_removed_is_an_error_that_names_it(tmp_path: Path) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        for _ in range(20):
            queue.enqueue_batch([b"x" * 50] * 100)
        queue.dequeue_batch(1500)
        queue.compact()
        first = queue.stats().first_seq
    assert first > 1
    wanted: dict[str, Any] = {"startingOffsets": f'{{"{tmp_path.name}": 1}}'}
    with pytest.raises(DataLoss, match=rf"seq 1 to {first - 1} of messages .* retention"):
        rows(tmp_path, **wanted)
    found = rows(tmp_path, **wanted, failOnDataLoss="false")
    assert found[0]["seq"] >= first
    assert found[-1]["seq"] == 2000
    assert rows(tmp_path) == found  # "earliest" is what is there: no loss


def test_retention_after_planning_is_an_error_too(tmp_path: Path) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        for _ in range(20):
            queue.enqueue_batch([b"x" * 50] * 100)
        queue.sync()
        reader, tasks = planned(tmp_path, maxPartitionBytes=4096)
        queue.dequeue_batch(1500)
        queue.compact()
        with pytest.raises(DataLoss, match="retention"):
            read(reader, tasks)
