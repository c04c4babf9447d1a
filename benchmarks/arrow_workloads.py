"""Workloads of the Arrow benchmark. Each runs in its own process, on files that are in memory."""

from collections.abc import Callable
from datetime import UTC, datetime
from mmap import ACCESS_READ, mmap
from pathlib import Path
from random import Random
from time import perf_counter

import pyarrow as pa
import pyarrow.parquet as pq
from measure import Figures, run_workload

import penstock
import penstock.arrow
from penstock import codec
from penstock.arrow.message_columns import MessageColumns
from penstock.arrow.tables import BATCH_BYTES, BATCH_ROWS
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader

_BATCH = 1000
_PASSES = 3  # the best counts: the first one maps the files


def fill(directory: str, count: int) -> Figures:
    """A queue of plain messages, and the same rows as Parquet."""
    root = Path(directory)
    root.mkdir(parents=True)
    random = Random(1)
    pool = [random.randbytes(50).hex().encode() for _ in range(50_000)]
    with penstock.open(str(root / "queue"), sync="never", auto_compact=False) as queue:
        for start in range(0, count, _BATCH):
            at = start % (len(pool) - _BATCH)
            queue.enqueue_batch(pool[at : at + min(_BATCH, count - start)])
    for compression in ("snappy", "zstd"):
        reader = penstock.arrow.read(root / "queue")
        path = root / f"{compression}.parquet"
        with pq.ParquetWriter(path, reader.schema, compression=compression) as writer:
            for batch in reader:
                writer.write_batch(batch, row_group_size=1 << 20)
        assert pq.read_metadata(path).num_rows == count
    return {}


def read_queue(directory: str, columns: str) -> Figures:
    path = Path(directory) / "queue"
    return _best(lambda: _rows(penstock.arrow.read(path, columns=columns)))


def read_parquet(directory: str, columns: str, compression: str) -> Figures:
    file = Path(directory) / f"{compression}.parquet"
    pa.set_cpu_count(1)

    def rows() -> int:
        batches = pq.ParquetFile(file).iter_batches(
            batch_size=BATCH_ROWS, columns=columns.split(","), use_threads=False
        )
        return sum(batch.num_rows for batch in batches)

    return _best(rows)


def decode(directory: str, columns: str) -> Figures:
    """Every segment, from its first byte to its last."""
    needed = MessageColumns(None, 0, columns.split(","), unpack=False).needed  # type: ignore[arg-type]
    max_bytes = BATCH_BYTES if "payload" in columns else 1 << 30

    def rows() -> int:
        count = 0
        for file in sorted((Path(directory) / "queue" / "messages").glob("*.log")):
            with file.open("rb") as opened:
                data = mmap(opened.fileno(), 0, access=ACCESS_READ)
            header = SegmentHeader.unpack(data[:HEADER_BYTES])
            at = HEADER_BYTES
            while True:
                found = codec.decode_columns(
                    data,
                    at,
                    len(data),
                    needed,
                    max_rows=BATCH_ROWS,
                    max_bytes=max_bytes,
                    seq_base=header.seq_base,
                )
                count += found.rows
                if found.next_offset == at:
                    break
                at = found.next_offset
        return count

    return _best(rows)


def read_part(directory: str, share: float) -> Figures:
    """Some messages in the middle, chosen by time."""
    path = Path(directory) / "queue"
    times = penstock.arrow.read(path, columns="timestamp").read_all()["timestamp"]
    first = int(len(times) * (1 - share) / 2)
    since, until = (times[at].as_py() for at in (first, first + int(len(times) * share) - 1))
    whole = share == 1.0
    took = []
    for _ in range(_PASSES):
        start = perf_counter()
        reader = penstock.arrow.read(path) if whole else _between(path, since, until)
        rows = _rows(reader)
        took.append(perf_counter() - start)
        assert rows >= len(times) * share * 0.9, rows
    return {"ms": min(took) * 1000}


def _between(path: Path, since: datetime, until: datetime) -> pa.RecordBatchReader:
    return penstock.arrow.read(path, since=since.astimezone(UTC), until=until.astimezone(UTC))


def _rows(reader: pa.RecordBatchReader) -> int:
    return sum(batch.num_rows for batch in reader)


def _best(rows: Callable[[], int]) -> Figures:
    rates = []
    for _ in range(_PASSES):
        start = perf_counter()
        count = rows()
        rates.append(count / (perf_counter() - start))
    return {"rate": max(rates)}


if __name__ == "__main__":
    run_workload(
        {
            "fill": fill,
            "read_queue": read_queue,
            "read_parquet": read_parquet,
            "decode": decode,
            "read_part": read_part,
        }
    )
