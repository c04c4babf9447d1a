"""Planning finds times by the index: it answers as the ledger does, and reads little."""

from pathlib import Path
from random import Random

import pytest

from penstock.arrow.locations import QueueLocation
from penstock.arrow.logs import find_time, ledger_reader, watcher_of
from penstock.clock import ManualClock
from penstock.ledger.files import OsFiles
from penstock.queue import Queue
from penstock.queue.queue import open_queue
from tests.spark.in_process import planned
from tests.spark.random_queues import open_small

ROUNDS = 200


def filled(queue: Queue, clock: ManualClock, random: Random) -> None:
    for _ in range(ROUNDS):
        queue.enqueue_batch([b"x" * 50] * random.randint(1, 20))
        clock.advance(random.choice((0, 1, 1, 5)))


def damage(path: Path, random: Random) -> None:
    victim = random.choice(sorted((path / "messages").iterdir()))
    data = bytearray(victim.read_bytes())
    match random.randrange(3):
        case 0:
            data[random.randrange(len(data))] ^= 0xFF
            victim.write_bytes(data)
        case 1:
            victim.write_bytes(data[: random.randrange(len(data))])
        case _:
            victim.unlink()


@pytest.mark.parametrize("seed", range(12))
def test_a_time_is_found_as_the_ledger_finds_it(tmp_path: Path, seed: int) -> None:
    random, clock = Random(seed), ManualClock()
    with open_small(tmp_path, clock) as queue:
        filled(queue, clock, random)
        if seed % 3 == 1:
            queue.ack([job for job in queue.lease(10_000) if random.random() < 0.8])
            queue.compact()
    if seed % 3 == 2:
        damage(tmp_path, random)
    at = QueueLocation(None, tmp_path.name, str(tmp_path))
    view = watcher_of(at, "messages").view()
    start_ns, end_ns = ManualClock().now_ns(), clock.now_ns()
    with ledger_reader(at, "messages") as reader:
        for _ in range(50):
            time_ns = random.randrange(start_ns - 10**9, end_ns + 10**9) // 10**9 * 10**9
            expected = min(reader.seq_at_time(time_ns), view.next_seq)
            assert find_time(view, time_ns) == expected


@pytest.mark.parametrize("by", ["seq", "time"])
def test_planning_a_small_range_reads_a_small_part(
    tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    settings = {"segment_bytes": 1 << 20, "min_free_bytes": 0, "sync": "never"}
    with open_queue(str(tmp_path), settings, clock=clock) as queue:
        for _ in range(100):
            queue.enqueue_batch([b"x" * 100] * 350)
            clock.advance(1)
    segments = list((tmp_path / "messages").glob("*.log"))
    assert len(segments) > 3
    read_bytes, pread = [0], OsFiles.pread

    def counted(self: OsFiles, fd: int, length: int, offset: int) -> bytes:
        data = pread(self, fd, length, offset)
        read_bytes[0] += len(data)
        return data

    monkeypatch.setattr(OsFiles, "pread", counted)
    start_ms = ManualClock().now_ns() // 10**6
    if by == "seq":
        planned(tmp_path, startingOffsets=10_000, endingOffsets=10_350)
    else:
        planned(tmp_path, startingTimestamp=start_ms + 30_000, endingTimestamp=start_ms + 31_000)
    assert read_bytes[0] < sum(one.stat().st_size for one in segments) / 20
