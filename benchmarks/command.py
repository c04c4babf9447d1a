"""Shared by all benchmark scripts: choose rows, run them, print the table, write the results."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chart import as_svg
from measure import Outcome, Row, Runner, machine_facts
from report import as_dict, as_markdown, as_table

from penstock.codec import IMPLEMENTATION
from penstock.ledger.files import OsFiles

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One script: `name` is that of its result files."""

    name: str
    title: str
    workloads: Path
    rows: Callable[..., list[Row]]  # takes `quick`
    versions: Callable[[], Mapping[str, str]]  # of everything that is compared
    settle_mib: int
    rounds: int = 5
    by_cpu: bool = False  # can rates be taken by processor time as well?


def run(benchmark: Benchmark, description: str) -> int:
    """The exit status: 1 if a target was missed."""
    arguments = _arguments(benchmark, description)
    os.environ["BENCH_BY"] = getattr(arguments, "by", "wall")
    every = benchmark.rows(quick=arguments.quick)
    chosen = [row for row in every if not arguments.only or row.name in arguments.only]
    directory = Path(tempfile.mkdtemp(prefix=".work-", dir=arguments.dir))
    try:
        facts = _facts(benchmark, directory)
        if facts["file_system"] == "tmpfs":
            print("note: this is memory, not a disk; what is durable here means nothing\n")
        outcomes = _measure(benchmark, chosen, directory, arguments)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(as_table(outcomes))
    complete = len(chosen) == len(every) and not arguments.quick
    out = arguments.out or (RESULTS if complete else None)
    if out is not None:
        _write(benchmark, out, facts, arguments.rounds, outcomes)
    missed = any(v.outcome == "MISSED" for outcome in outcomes for v in outcome.verdicts)
    return 1 if missed and not arguments.quick else 0


def _facts(benchmark: Benchmark, directory: Path) -> dict[str, str | int]:
    facts: dict[str, str | int] = {
        "codec": IMPLEMENTATION,
        **benchmark.versions(),
        **machine_facts(OsFiles().file_system(str(directory))),
    }
    if benchmark.by_cpu:
        by = os.environ["BENCH_BY"]
        facts["rates without sync"] = "by processor time" if by == "cpu" else "by the wall clock"
    return facts


def _measure(
    benchmark: Benchmark, chosen: Sequence[Row], directory: Path, arguments: argparse.Namespace
) -> list[Outcome]:
    settle_mib = 0 if arguments.quick else benchmark.settle_mib
    runner = Runner(benchmark.workloads, directory, settle_mib=settle_mib)
    outcomes = []
    for row in chosen:
        print(f"{row.name} ", end="", file=sys.stderr, flush=True)
        outcome = runner.measure(
            row, arguments.rounds, patience=arguments.patience, on_round=_show_round
        )
        outcomes.append(outcome)
        print(f"\n{as_table([outcome])}", file=sys.stderr, flush=True)  # a run may take long
    return outcomes


def _show_round() -> None:
    print(".", end="", file=sys.stderr, flush=True)


def _write(
    benchmark: Benchmark,
    out: Path,
    facts: dict[str, str | int],
    rounds: int,
    outcomes: list[Outcome],
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    name, title = benchmark.name, benchmark.title
    found = as_dict(name, facts, rounds, outcomes)
    (out / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    (out / f"{name}.md").write_text(as_markdown(f"{title}, measured", facts, outcomes))
    (out / f"{name}.svg").write_text(as_svg(f"{title}, measured", outcomes))


def _arguments(benchmark: Benchmark, description: str) -> argparse.Namespace:
    names = [row.name for row in benchmark.rows(quick=True)]
    rounds = benchmark.rounds
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", nargs="+", choices=names, help="run only these rows")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help=f"number of rounds (default: {rounds})"
    )
    parser.add_argument(
        "--patience",
        type=int,
        default=1,
        help="busy machine: run up to this many times the rounds, count the least disturbed",
    )
    if benchmark.by_cpu:
        parser.add_argument(
            "--by",
            choices=("wall", "cpu"),
            default="wall",
            help="measure rates without sync by wall time or, on a shared machine, processor time",
        )
    parser.add_argument(
        "--quick", action="store_true", help="do little work: only check that it runs"
    )
    parser.add_argument(
        "--dir", type=Path, default=HERE, help="directory to work in, on a real disk"
    )
    parser.add_argument(
        "--out", type=Path, help="directory of the results (default for a complete run: results/)"
    )
    return parser.parse_args()
