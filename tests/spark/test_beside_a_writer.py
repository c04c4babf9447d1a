"""Reading while another writes: always a whole first part of what was written, never less later."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.queue import Queue
from penstock.queue.queue import open_queue
from penstock.spark.stream_reader import StreamReader
from tests.spark.in_process import as_rows, rows, source

SETTINGS = {"segment_bytes": 16384, "min_free_bytes": 0, "auto_compact": False}
LOT = 7  # messages of a batch: a reader sees all of them or none


@contextmanager
def busy_writer(path: Path, sync: str, *, consume: bool = False) -> Iterator[None]:
    """A queue in this process that is published to, and perhaps consumed and compacted."""
    ended = Event()
    with open_queue(str(path), {**SETTINGS, "sync": sync}) as queue:
        _publish(queue, 1)

        def work() -> None:
            number = 1 + LOT
            while not ended.is_set():
                _publish(queue, number)
                number += LOT
                if consume and number % (LOT * 50) == 1:
                    queue.dequeue_batch(LOT * 40)
                    queue.compact()

        thread = Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _publish(queue: Queue, first: int) -> None:
    queue.enqueue_batch([f"message {number}" for number in range(first, first + LOT)])


@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_a_batch_read_is_a_whole_first_part(tmp_path: Path, sync: str) -> None:
    seen = 0
    with busy_writer(tmp_path / "queue", sync):
        for _ in range(10):
            found = rows(tmp_path / "queue", columns="seq,payload", maxPartitionBytes=8192)
            assert [row["seq"] for row in found] == list(range(1, len(found) + 1))
            assert all(row["payload"] == f"message {row['seq']}".encode() for row in found)
            assert len(found) % LOT == 0
            assert len(found) >= seen
            seen = len(found)
    assert seen > LOT


@pytest.mark.parametrize("sync", ["always", "interval"])
def test_a_stream_misses_nothing_while_segments_are_rewritten(tmp_path: Path, sync: str) -> None:
    path = tmp_path / "queue"
    open_queue(str(path), SETTINGS).close()
    made = source(path, startingOffsets="earliest", columns="seq,payload", failOnDataLoss="false")
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    offset, seen = reader.initialOffset(), []
    with busy_writer(path, sync, consume=True):
        for _ in range(25):
            end = reader.latestOffset(offset, ReadAllAvailable())
            for task in reader.partitions(offset, end):
                seen += [row for batch in reader.read(task) for row in as_rows(batch)]
            offset = end
    seqs = [row["seq"] for row in seen]
    assert seqs == sorted(set(seqs)), "each once, in order"
    assert all(row["payload"] == f"message {row['seq']}".encode() for row in seen)
    assert len(seqs) > LOT
