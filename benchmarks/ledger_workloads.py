"""Workloads of the ledger benchmark. Each runs in its own process, started by `measure.Runner`.

A workload gets a directory and returns its figures. Opening and the first appends, which create the
files, are not timed. Payloads are 100 bytes; their entries are 126 bytes on disk.
"""

import asyncio
import mmap
import os
import random
import statistics
from itertools import repeat
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter_ns

from measure import Figures, rate_of, run_workload

from penstock import codec
from penstock.codec import Draft
from penstock.ledger import Cursor, Ledger, LedgerSettings, read_entry
from penstock.ledger.segment_header import HEADER_BYTES

PAYLOAD = bytes(range(100))
BATCH = 100
READ_CHUNK = 1000
WARM_UP = 1000
PASSES = 3
PLAIN_COLUMNS = ("seq", "timestamp_ns", "payload")


# -- appending without sync ------------------------------------------------------------------------


def append(directory: str, count: int, mapped: bool) -> Figures:
    """Single appends; the bytes are the kernel's when each call returns."""
    with Ledger.open(directory, LedgerSettings(sync="never", mapped=mapped)) as ledger:
        one = ledger.messages.append
        _each(one, PAYLOAD, WARM_UP)
        return rate_of(count, lambda: _each(one, PAYLOAD, count))


def append_queuelib(directory: str, count: int) -> Figures:
    """One write(2) each, no checksum; its index is written when the queue is closed."""
    from queuelib import FifoDiskQueue

    queue = FifoDiskQueue(directory)
    _each(queue.push, PAYLOAD, WARM_UP)
    figures = rate_of(count, lambda: _each(queue.push, PAYLOAD, count))
    queue.close()
    return figures


def append_batches(directory: str, count: int) -> Figures:
    """Atomic batches of a hundred."""
    with Ledger.open(directory, LedgerSettings(sync="never")) as ledger:
        batch = [PAYLOAD] * BATCH
        many = ledger.messages.append_batch
        _each(many, batch, WARM_UP // BATCH)
        return rate_of(count, lambda: _each(many, batch, count // BATCH))


def copy_and_checksum(directory: str, count: int) -> Figures:
    """The same bytes copied into memory and checksummed, a batch at a time: no file at all."""
    packed = b"".join(codec.pack(seq, 1, Draft(PAYLOAD)) for seq in range(BATCH))
    target = memoryview(bytearray(64 << 20))
    room = len(target) // len(packed)

    def work() -> None:
        for number in range(count // BATCH):
            at = number % room * len(packed)
            target[at : at + len(packed)] = packed
            codec.crc32c(packed)

    return rate_of(count, work)


# -- durable appending -----------------------------------------------------------------------------


def durable_loop(directory: str, count: int) -> Figures:
    """The machine's own: append to a file, fdatasync, again."""
    data = codec.pack(1, 1, Draft(PAYLOAD))
    os.mkdir(directory)
    fd = os.open(os.path.join(directory, "file"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def work() -> None:
        for _ in range(count):
            os.write(fd, data)
            os.fdatasync(fd)

    return rate_of(count, work)


def durable_one(directory: str, count: int) -> Figures:
    """One thread that waits for the disk after each append."""
    with Ledger.open(directory, LedgerSettings(sync="always")) as ledger:
        _append_durably(ledger, 10)
        return rate_of(count, lambda: _append_durably(ledger, count))


def durable_threads(directory: str, count: int, threads: int, one_core: bool = False) -> Figures:
    """Many threads, each waiting for the disk after each of its appends."""
    if one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with Ledger.open(directory, LedgerSettings(sync="always")) as ledger:
        _append_durably(ledger, 10)
        all_are_there = Barrier(threads + 1)

        def append() -> None:
            all_are_there.wait()
            _append_durably(ledger, count // threads)

        each = [Thread(target=append) for _ in range(threads)]
        for thread in each:
            thread.start()

        def work() -> None:
            all_are_there.wait()
            for thread in each:
                thread.join()

        return rate_of(count, work)


def durable_tasks(directory: str, count: int, tasks: int) -> Figures:
    """Many asyncio tasks in one thread, each waiting for the disk after each of its appends."""
    with Ledger.open(directory, LedgerSettings(sync="always")) as ledger:
        _append_durably(ledger, 10)

        async def task() -> None:
            for _ in range(count // tasks):
                ledger.messages.append(PAYLOAD)
                waiting = ledger.commit_async()
                if waiting is not None:
                    await waiting

        async def work() -> None:
            await asyncio.gather(*(task() for _ in range(tasks)))

        return rate_of(count, lambda: asyncio.run(work()))


def _append_durably(ledger: Ledger, count: int) -> None:
    for _ in range(count):
        ledger.messages.append(PAYLOAD)
        ledger.commit()


# -- reading ---------------------------------------------------------------------------------------


def fill(directory: str, count: int) -> Figures:
    """A ledger for the workloads that read."""
    with Ledger.open(directory, LedgerSettings(sync="never")) as ledger:
        batch = [PAYLOAD] * BATCH
        return rate_of(count, lambda: _each(ledger.messages.append_batch, batch, count // BATCH))


def read_in_order(directory: str, count: int) -> Figures:
    """Checked entries as Python objects, a thousand a call."""
    with Ledger.open(directory, read_only=True) as ledger:

        def work() -> None:
            cursor, left = Cursor(ledger.messages, 1), count
            while left > 0:
                left -= len(cursor.read(min(left, READ_CHUNK)))

        return rate_of(count, work)


def read_columns(directory: str, all_columns: bool) -> Figures:
    """Whole segments to Arrow-ready buffers, checked, one core."""
    names = codec.COLUMN_NAMES if all_columns else PLAIN_COLUMNS
    segments = [_map(path) for path in sorted(Path(directory, "messages").glob("*.log"))]
    rows = sum(_columns(segment, ("seq",)) for segment in segments)
    every = segments * PASSES
    return rate_of(rows * PASSES, lambda: [_columns(segment, names) for segment in every])


def read_at_random(directory: str, count: int) -> Figures:
    """Single entries by seq, anywhere in the ledger."""
    times_ns = []
    with Ledger.open(directory, read_only=True) as ledger:
        log = ledger.messages
        draw = random.Random(1)
        seqs = [draw.randrange(1, log.next_seq) for _ in range(count + WARM_UP)]
        for seq in seqs[:WARM_UP]:
            read_entry(log, seq)
        for seq in seqs[WARM_UP:]:
            start = perf_counter_ns()
            read_entry(log, seq)
            times_ns.append(perf_counter_ns() - start)
    percent = statistics.quantiles(times_ns, n=100)
    return {
        "median_us": percent[49] / 1e3,
        "p99_us": percent[98] / 1e3,
        "mean_us": statistics.fmean(times_ns) / 1e3,
    }


def _each(call, argument, count: int) -> None:  # type: ignore[no-untyped-def]
    for one in repeat(argument, count):
        call(one)


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _columns(segment: memoryview, names: tuple[str, ...]) -> int:
    offset, rows = HEADER_BYTES, 0
    while True:
        columns = codec.decode_columns(segment, offset, len(segment), names)
        if not columns.rows:
            return rows
        offset, rows = columns.next_offset, rows + columns.rows


WORKLOADS = {
    work.__name__: work
    for work in (
        append,
        append_batches,
        append_queuelib,
        copy_and_checksum,
        durable_loop,
        durable_one,
        durable_tasks,
        durable_threads,
        fill,
        read_at_random,
        read_columns,
        read_in_order,
    )
}

if __name__ == "__main__":
    run_workload(WORKLOADS)
