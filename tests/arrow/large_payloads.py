"""Run by test_memory.py: read or stage large payloads, and print how much memory that took."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

import penstock.arrow

MB = 1 << 20


def anonymous_mib() -> float:
    """Return this process's memory without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError("no RssAnon")


def growth_mib(work: Callable[[int], Iterable[object]]) -> float:
    """Return the highest growth seen, after a first small piece of the same work."""
    for _ in work(4):
        pass
    before = anonymous_mib()
    return max(anonymous_mib() for _ in work(1 << 30)) - before


def read(path: str, **options: bool) -> float:
    def batches(count: int) -> Iterator[object]:
        return iter(penstock.arrow.read(path, columns="seq,payload", end_seq=count + 1))

    return growth_mib(batches)


def stage(path: str, with_key: bool) -> float:
    from penstock.spark.options import WriteOptions
    from penstock.spark.sink import stage_rows
    from penstock.spark.writers import open_target

    target = open_target(WriteOptions.parse({"path": path}))
    seen: list[float] = []

    def batches(count: int) -> Iterator[pa.RecordBatch]:
        for number in range(min(count, 200)):
            columns = {"payload": pa.array([b"%08d" % number * (MB // 8)] * 2, pa.binary())}
            if with_key:
                columns["key"] = pa.array(["a", "b"])
            yield pa.RecordBatch.from_pydict(columns)
            seen.append(anonymous_mib())

    stage_rows(target, batches(4), 1)
    before = anonymous_mib()
    stage_rows(target, batches(200), 1)
    assert len(seen) == 204
    return max(seen) - before


if __name__ == "__main__":
    pa.set_memory_pool(pa.system_memory_pool())
    match sys.argv[1:]:
        case ["read", place]:
            print(read(place))
        case ["stage", place, columns]:
            print(stage(place, columns == "key"))
