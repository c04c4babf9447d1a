"""A read of a directory returns what was there when it was called, whatever compaction does."""

import os
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

import penstock
import penstock.arrow
import penstock.arrow.reading
from penstock import Queue
from penstock.arrow import holding
from penstock.arrow.loss import DataLoss
from penstock.arrow.planning import plan_batch
from penstock.clock import ManualClock
from tests.spark.random_queues import open_small

MANY = 300


def fill(queue: Queue) -> None:
    for number in range(MANY):
        queue.enqueue(b"%0100d" % number)
    queue.sync()


def remove_all(queue: Queue) -> None:
    queue.dequeue_batch(MANY)
    assert queue.compact().segments_removed


def remove_some(queue: Queue) -> None:
    """Leave a message in each segment, so that compaction rewrites them."""
    for job in queue.lease(MANY):
        if job.seq % 10:
            queue.ack(job)
    queue.compact()


def seqs(reader: Any) -> list[int]:
    found: list[int] = reader.read_all()["seq"].to_pylist()
    return found


@pytest.mark.parametrize("table", ["messages", "events", "state"])
@pytest.mark.parametrize("remove", [remove_all, remove_some])
def test_compaction_does_not_take_away_what_is_not_read_yet(
    tmp_path: Path, table: Any, remove: Callable[[Queue], None]
) -> None:
    with open_small(tmp_path, ManualClock()) as queue:
        fill(queue)
        for job in queue.lease(20):
            queue.nack(job, "boom")
        queue.sync()
        expected = penstock.arrow.read(tmp_path, table=table, columns="*").read_all()
        reader = penstock.arrow.read(tmp_path, table=table, columns="*")
        remove(queue)
        assert reader.read_all().equals(expected)
        if table == "messages":
            assert len(seqs(penstock.arrow.read(tmp_path))) < MANY, "nothing was removed"


@pytest.mark.parametrize("table", ["messages", "state"])
def test_messages_that_were_removed_before_the_call_are_not_missed(
    tmp_path: Path, table: Any
) -> None:
    """The segment ends with removed messages, and is then removed as a whole."""
    with penstock.open(tmp_path, segment_entries=10, auto_compact=False) as queue:
        queue.enqueue_batch([b"x"] * 10)
        queue.enqueue_batch([b"x"] * 10)
        queue.sync()
        jobs = queue.lease(10)
        queue.ack(jobs[3:])
        queue.compact()
        reader = penstock.arrow.read(tmp_path, table=table, columns="seq")
        queue.ack(jobs[:3])
        queue.compact()
        assert seqs(reader) == [1, 2, 3, *range(11, 21)]


def test_a_queue_that_is_created_again_is_not_mixed_with_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "orders"

    def create(payload: bytes) -> Queue:
        queue = penstock.open(path, segment_entries=10, auto_compact=False)
        for _ in range(3):
            queue.enqueue_batch([payload] * 10)
        return queue

    with create(b"old") as queue:
        queue.ack(queue.lease(10)[3:])
        queue.compact()
    readers = [
        penstock.arrow.read(path, columns="payload"),
        penstock.arrow.read(path, columns="payload", fail_on_data_loss=False),
    ]
    rmtree(path)
    create(b"new").close()
    for reader in readers:
        assert reader.read_all()["payload"].to_pylist() == [b"old"] * 23


def test_damage_is_not_filled_from_a_queue_that_is_created_again(tmp_path: Path) -> None:
    """Damage is read with the ledger's reader, which finds the new queue."""
    path = tmp_path / "orders"
    with penstock.open(path) as queue:
        queue.enqueue_batch([b"old"] * 10)
    (segment,) = (path / "messages").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    strict = penstock.arrow.read(path)
    lenient = penstock.arrow.read(path, columns="payload", fail_on_data_loss=False)
    rmtree(path)
    with penstock.open(path) as queue:
        queue.enqueue_batch([b"new"] * 10)
    with pytest.raises(DataLoss, match="were removed"):
        strict.read_all()
    assert b"new" not in lenient.read_all()["payload"].to_pylist()


def test_a_segment_that_changes_while_a_read_is_planned_is_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []

    def interrupted(*args: Any) -> Any:
        plans.append(plan_batch(*args))
        if len(plans) == 1:
            remove_some(queue)
        return plans[-1]

    monkeypatch.setattr(penstock.arrow.reading, "plan_batch", interrupted)
    with open_small(tmp_path, ManualClock()) as queue:
        fill(queue)
        found = seqs(penstock.arrow.read(tmp_path))
        assert len(plans) == 2
        assert found == seqs(penstock.arrow.read(tmp_path))
        assert {seq for seq in found if seq % 10 == 0} == set(range(10, MANY + 1, 10))


def test_segments_beyond_the_limit_are_opened_when_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "MAX_HELD", 1)
    with open_small(tmp_path, ManualClock()) as queue:
        fill(queue)
        assert seqs(penstock.arrow.read(tmp_path)) == list(range(1, MANY + 1))
        reader = penstock.arrow.read(tmp_path)
        remove_all(queue)
        with pytest.raises(DataLoss, match="They were there when this read was planned"):
            reader.read_all()


def test_segments_are_released_as_they_are_read(tmp_path: Path) -> None:
    """Their disk space is free again, also if a reader is dropped half way."""

    def held() -> int:
        maps = Path("/proc/self/maps").read_text()
        return sum(os.fspath(tmp_path) in line for line in maps.splitlines())

    with open_small(tmp_path, ManualClock()) as queue:
        fill(queue)
    reader = penstock.arrow.read(tmp_path)
    at_first = held()
    reader.read_next_batch()
    reader.read_next_batch()
    assert 0 < held() < at_first
    del reader
    assert not held()
