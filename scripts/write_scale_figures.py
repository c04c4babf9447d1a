"""Write the section "From 1 to 100 machines" of docs/scale.md from the recorded benchmark.

The figures come from benchmarks/results/postgres.json; what follows from them is calculated here.
Run it again after `make bench-postgres`:

    python scripts/write_scale_figures.py
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scale.md"
RESULTS = ROOT / "benchmarks" / "results" / "postgres.json"
START, END = (
    "<!-- figures: written by scripts/write_scale_figures.py -->",
    "<!-- end of figures -->",
)

REQUESTS = 3  # of a message by itself: publish, lease, ack
BYTES = 420  # of write-ahead log for each message, see "Sizing"
CONNECTIONS = 17  # of a broker: `postgres_connections`, and one for its sign of life


class Layout(NamedTuple):
    """A number of machines, and what runs on them."""

    machines: str
    says: str
    brokers: int
    remark: str = ""


LAYOUTS = (
    Layout("1", "one broker on files, or with a database beside it", 1),
    Layout("3", "three machines, each with a database and two brokers", 6),
    Layout("10", "3 databases, 7 machines with 21 brokers", 21),
    Layout(
        "100, as one cluster",
        "3 databases, 97 machines with 291 brokers",
        291,
        ", and {connections} connections: too much for one primary",
    ),
)


class Figures(NamedTuple):
    """What was measured, and the inputs of the arithmetic."""

    rows: dict[str, dict[str, dict[str, float]]]  # row -> contender -> medians
    others: list[float]  # the share of the processors that other programs took, by row
    rounds: int
    cores: int

    @classmethod
    def read(cls, results: dict[str, Any]) -> "Figures":
        rows = {
            row["name"]: {one["name"]: one["median"] for one in row["contenders"]}
            for row in results["rows"]
        }
        others = [row["others"] for row in results["rows"]]
        return cls(rows, others, results["rounds"], results["facts"]["cpu_count"])

    def own_cores(self, row: str, contender: str) -> float:
        """Return how many cores were left for the benchmark."""
        return self.cores * (1 - self.rows[row][contender]["others"])

    @property
    def request_ms(self) -> float:
        """Return the time of a core for one request over HTTP, of all processes together."""
        http = self.rows["http"]["penstock"]
        requests = http["publish_per_s"] + 2 * http["lease_per_s"]
        return self.own_cores("http", "penstock") / requests * 1000

    @property
    def messages_per_core(self) -> float:
        return 1000 / self.request_ms / REQUESTS

    @property
    def batch_per_core(self) -> float:
        batches = self.rows["batches"]["penstock"]
        return batches["publish_per_s"] / self.own_cores("batches", "penstock")

    def with_brokers(self, count: int) -> float:
        """Return the part of one broker's publishes that one queue takes with several."""
        found = self.rows["brokers"]
        return found[f"{count} brokers"]["publish_per_s"] / found["1 broker"]["publish_per_s"]

    def best_peer(self, row: str, figure: str) -> float:
        peers = (one for name, one in self.rows[row].items() if not name.startswith("penstock"))
        return max(one[figure] for one in peers)


def section(results: dict[str, Any]) -> str:
    """Return the generated text."""
    figures = Figures.read(results)
    single, forwarded = _rounded(figures.messages_per_core), min(figures.with_brokers(4), 1.0)
    forwarded = round(forwarded, 2)
    lines = [
        START,
        "",
        *_measured(figures),
        "",
        f"One request over HTTP costs {figures.request_ms:.2f} ms of a core, client and database "
        f"included. A message by itself",
        f"takes three requests (publish, lease, ack): about {single:,} messages a second for each "
        f"core. In batches of 100 the",
        f"store alone does about {_rounded(figures.batch_per_core):,} for each core.",
        "",
        "What follows is arithmetic from these figures, not a measurement. A machine has four "
        "cores. A broker uses one core, so a",
        "machine of brokers runs three. Calls that reach another broker than the owner are "
        "forwarded, which costs both of them work.",
        f"On the same {figures.cores} cores, one queue took {figures.with_brokers(2):.2f} of the "
        f"publishes of one broker with two, and",
        f"{figures.with_brokers(4):.2f} with four. So the table takes {forwarded:g}.",
        "",
        "| machines | layout | single messages | write-ahead log of a primary |",
        "|---|---|---|---|",
        *(_row(layout, single, forwarded) for layout in LAYOUTS),
    ]
    ten = next(one for one in LAYOUTS if one.machines == "10")
    rate = _rate(ten, single, forwarded)
    last = _rate(LAYOUTS[-1], single, forwarded)
    lines += [
        f"| 100, as ten clusters | 10 × the layout with 10 machines | {10 * rate:,}/s | "
        f"{_log(rate)} each |",
        "",
        f"So let a cluster grow to about ten machines, and then add clusters: a primary with "
        f"{_log(rate)} of log and",
        f"{ten.brokers * CONNECTIONS} connections is ordinary, one with {_log(last)} and "
        f"{LAYOUTS[-1].brokers * CONNECTIONS:,} is not. Batches do more than machines:",
        "publish and lease 100 at a time where you can.",
        "",
        END,
    ]
    return "\n".join(lines)


def _measured(figures: Figures) -> list[str]:
    rows = figures.rows
    low, high = min(figures.others), max(figures.others)
    return [
        f"[Measured](../benchmarks/results/postgres.md) on {figures.cores} cores that run the "
        f"load, the brokers and the database, and of which",
        f"other programs took {low:.0%} to {high:.0%} meanwhile (`make bench-postgres`, medians of "
        f"{figures.rounds} rounds; 256 bytes, every",
        "publish and ack durable):",
        "",
        "| | files | PostgreSQL | with a standby that applies first | best other queue in "
        "PostgreSQL |",
        "|---|---|---|---|---|",
        f"| publish, and lease with ack, one message a call, tasks that call the store | "
        f"{_pair(rows['singles']['penstock, files'])} | {_pair(rows['singles']['penstock'])} | "
        f"{_pair(rows['singles']['penstock, standby'])} | {_best(figures, 'singles')} |",
        f"| the same over HTTP | {_pair(rows['http']['penstock, files'])} | "
        f"{_pair(rows['http']['penstock'])} | | |",
        f"| batches of 100, tasks that call the store | "
        f"{_pair(rows['batches']['penstock, files'])} | {_pair(rows['batches']['penstock'])} | | "
        f"{_best(figures, 'batches')} |",
        f"| publish to delivery across two brokers, p50 | | "
        f"{max(one['p50_ms'] for one in rows['delivery'].values()):.0f} ms | | |",
    ]


def _row(layout: Layout, single: int, forwarded: float) -> str:
    rate = _rate(layout, single, forwarded)
    says = f"{rate:,}/s"
    if layout.brokers > 1:
        says = f"{layout.brokers} × {single:,} × {forwarded:g} = {says}"
    remark = layout.remark.format(connections=f"{layout.brokers * CONNECTIONS:,}")
    return f"| {layout.machines} | {layout.says} | {says} | {_log(rate)}{remark} |"


def _rate(layout: Layout, single: int, forwarded: float) -> int:
    """Return the messages per second. With one broker, nothing is forwarded."""
    return _rounded(layout.brokers * single * (forwarded if layout.brokers > 1 else 1.0))


def _log(rate: int) -> str:
    megabytes = rate * BYTES / 1e6
    return f"{megabytes:.0f} MB/s" if megabytes >= 2 else f"{megabytes:.1f} MB/s"


def _pair(figures: dict[str, float]) -> str:
    return f"{_rounded(figures['publish_per_s']):,} + {_rounded(figures['lease_per_s']):,}/s"


def _best(figures: Figures, row: str) -> str:
    publish, lease = (figures.best_peer(row, name) for name in ("publish_per_s", "lease_per_s"))
    return f"{_rounded(publish):,} + {_rounded(lease):,}/s"


def _rounded(value: float) -> int:
    """Return a number with two or three digits that count: more would say too much."""
    step: int = 10 ** max(len(str(int(value))) - (3 if value >= 10_000 else 2), 0)
    return round(value / step) * step


def page(text: str, results: dict[str, Any]) -> str:
    """Return the page with its generated section written anew."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + section(results) + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULTS.read_text())))
