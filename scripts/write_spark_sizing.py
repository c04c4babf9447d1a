"""Write the tables of docs/how-to/spark-sizing.md from the recorded benchmarks.

What was measured comes from benchmarks/results/spark.json and spark_scale.json (which may be
missing). What a cluster would do is calculated here from that and from `Node`. Run it again after
`make bench-spark` or `make bench-spark-scale`:

    python scripts/write_spark_sizing.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-to" / "spark-sizing.md"
RESULTS = tuple(ROOT / "benchmarks" / "results" / f"{n}.json" for n in ("spark", "spark_scale"))
START, END = (
    "<!-- figures: written by scripts/write_spark_sizing.py -->",
    "<!-- end of figures -->",
)

ENTRY_BYTES = 26  # of a message beside its payload
PARTITION_BYTES = 128 << 20  # `maxPartitionBytes`
SCALING = 0.9  # of perfect, from one machine to several: tasks end at different times


class Node(NamedTuple):
    """A machine of the cluster that is calculated."""

    cores: int = 8
    network_bytes_per_s: float = 3.125e9  # 25 Gbit/s

    @property
    def says(self) -> str:
        return f"{self.cores} cores and {self.network_bytes_per_s * 8 / 1e9:.0f} Gbit/s"


class Work(NamedTuple):
    """Something that was measured, and what it moves over the network for each message."""

    says: str
    row: str
    contender: str
    payload_bytes: int = 100
    copies: int = 1  # of a message's bytes that pass the node's link

    @property
    def message_bytes(self) -> int:
        return (self.payload_bytes + ENTRY_BYTES) * self.copies


READ = Work("read, default columns", "read", "penstock")
WORKS = (
    READ,
    Work("read, default columns, 1 KB", "read-1k", "penstock", payload_bytes=1024),
    Work("group by, three columns", "columns", "penstock grouped"),
    Work("read `seq` and `timestamp`", "columns", "penstock two"),
    Work("write", "sink", "penstock"),
    Work("archive", "archive", "archive", copies=2),
    Work("audit", "archive", "audit"),
    Work("stream, three columns", "stream", "drain"),
)


class Measured(NamedTuple):
    """The recorded rows: row -> contender -> medians."""

    rows: dict[str, dict[str, dict[str, float]]]

    @classmethod
    def of(cls, results: Sequence[dict[str, Any]]) -> "Measured":
        rows = {
            row["name"]: {one["name"]: one["median"] for one in row["contenders"]}
            for result in results
            for row in result["rows"]
        }
        return cls(rows)

    def per_core(self, work: Work) -> float:
        """Return the messages for each second of a core: JVM and Python worker together."""
        figures = self.rows[work.row][work.contender]
        return figures["rate"] * figures["wall_s"] / figures["cpu_s"]


class Cluster(NamedTuple):
    """Nodes that work on queues of enough segments."""

    nodes: int
    node: Node = Node()

    def by_cores(self, measured: Measured, work: Work) -> float:
        scaling = SCALING if self.nodes > 1 else 1.0
        return self.nodes * self.node.cores * measured.per_core(work) * scaling

    def by_network(self, work: Work) -> float:
        return self.nodes * self.node.network_bytes_per_s / work.message_bytes

    def rate(self, measured: Measured, work: Work) -> float:
        """Return messages per second: what cores or network allow, whichever is less."""
        return min(self.by_cores(measured, work), self.by_network(work))


def section(results: Sequence[dict[str, Any]]) -> str:
    """Return the generated text."""
    measured, node = Measured.of(results), Node()
    lines = [
        START,
        "",
        "| work | one core | one node | 10 nodes | 100 nodes, by cores | by network | so | moved |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(measured, work) for work in WORKS),
        "",
        f"Figures are messages per second. A node has {node.says}. A message has 100 bytes, unless "
        f"the row says otherwise,",
        f"and {ENTRY_BYTES} more in the files.",
        "",
        *_broker(measured, node),
        "",
        *_tasks(measured),
        "",
        END,
    ]
    return "\n".join(lines)


def _row(measured: Measured, work: Work) -> str:
    one, ten, hundred = (Cluster(count) for count in (1, 10, 100))
    rate = hundred.rate(measured, work)
    cells = [
        work.says,
        short(measured.per_core(work)),
        short(one.rate(measured, work)),
        short(ten.rate(measured, work)),
        short(hundred.by_cores(measured, work)),
        short(hundred.by_network(work)),
        f"**{short(rate)}**",
        f"{rate * work.message_bytes / 1e9:,.0f} GB/s",
    ]
    return f"| {' | '.join(cells)} |"


def _broker(measured: Measured, node: Node) -> list[str]:
    """Return what a broker's own link allows."""
    allowed = node.network_bytes_per_s / READ.message_bytes
    one = Cluster(1).rate(measured, READ)
    nodes = max(allowed / one, 0.1)
    return [
        f"**One broker at a `url`** sends at most what its link carries: "
        f"{short(allowed)} messages of 100 bytes a second, which",
        f"{nodes:.1f} nodes read. More nodes need more brokers, or a file system that each node "
        f"mounts.",
    ]


def _tasks(measured: Measured) -> list[str]:
    rate = Cluster(100).rate(measured, READ)
    per_s = rate * READ.message_bytes / PARTITION_BYTES
    seconds = 1e12 / (rate * READ.message_bytes)
    return [
        f"**100 nodes** read a terabyte of messages of 100 bytes in {seconds:.1f} seconds, with "
        f"{1e12 / PARTITION_BYTES:,.0f} tasks of",
        f"{PARTITION_BYTES >> 20} MiB: {short(per_s)} tasks a second, which one driver has to "
        f"start. With `maxPartitionBytes` of 512m it is a quarter.",
    ]


def short(value: float) -> str:
    """Return a number with two digits that count: more would say too much.

    >>> short(1_234_567), short(45_678_901), short(870)
    ('1.2 M', '46 M', '870')
    """
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:,.0f}{unit}"
    return f"{value:.0f}"


def recorded() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in RESULTS if path.exists()]


def page(text: str, results: Sequence[dict[str, Any]]) -> str:
    """Return the page with its generated section written anew."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + section(results) + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), recorded()))
