"""Run contenders in their own processes, in interleaved rounds, and compare medians.

A round runs every contender of a row once. The order changes between rounds, so that other load on
the machine affects all of them equally. If starting is slow (Spark), one process runs all of them,
pass by pass. A target is evaluated in each round, and the median over the rounds counts.

The share of the machine used by other processes is measured in each round. On a shared machine, run
more rounds than needed: those with the lowest share count. Results play no part in that choice.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

Figures = dict[str, float]  # what one run of a workload found, by name: "rate", "p99_us"
Round = Mapping[str, Figures]  # the figures of each contender of a row, in one round
IN_TURN = "in turn"  # the workload that runs all contenders of a row in one process
OTHERS = "others"  # the figure that every run has: the share of the machine that others took

_RUN_LIMIT_S = 1800
_SETTLE_TRIES = 4
_SETTLED_MIB_PER_S = 1000
_QUIET = 0.05  # a share of others that needs no repeating
_DISTRIBUTIONS = {"penstock": "penstock-queue"}  # by package, where the names differ
_IDLE_FIELDS = (3, 4)  # of a line of /proc/stat: idle, waiting for the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One thing to time: a workload with its arguments, run in a fresh process."""

    name: str
    workload: str
    arguments: Mapping[str, int | str | bool] = field(default_factory=dict)
    codec: str = "compiled"
    peer: str | None = None  # the package it needs; the contender is left out where it is missing
    does: str = ""  # what it does, and what it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A number that a row must reach; `judge` finds it from the figures of one round."""

    says: str
    judge: Callable[[Round], float]
    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Contenders that are compared with each other, and what is asked of them."""

    name: str
    title: str
    unit: str
    contenders: Sequence[Contender]
    targets: Sequence[Target]
    often: int = 1  # multiplies the rounds, for rows that depend on something noisier than the CPU
    prepare: Contender | None = None  # run once; its directory is handed to every contender
    in_turn: bool = False  # a round is one process, which runs all contenders pass by pass


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a target came out; `value` is None where a peer was missing."""

    target: Target
    value: float | None

    @property
    def outcome(self) -> str:
        if self.value is None:
            return "skipped"
        return "met" if self.target.is_met(self.value) else "MISSED"


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a row's rounds found."""

    row: Row
    rounds: Sequence[Round]

    @property
    def others(self) -> float:
        """The share of the machine that other processes took, the median over the rounds."""
        return statistics.median(disturbance(one) for one in self.rounds)

    @property
    def verdicts(self) -> list[Verdict]:
        return [Verdict(target, self._value(target)) for target in self.row.targets]

    def median(self, contender: Contender) -> Figures | None:
        """Each of its figures, the median over the rounds; None if it did not run."""
        found = [one[contender.name] for one in self.rounds if contender.name in one]
        if not found:
            return None
        return {name: statistics.median(figures[name] for figures in found) for name in found[0]}

    def _value(self, target: Target) -> float | None:
        try:
            return statistics.median(target.judge(one) for one in self.rounds)
        except KeyError:
            return None


class Runner:
    """Runs the workloads of one script in processes of their own, in a directory on a real disk."""

    def __init__(self, script: Path, directory: Path, *, settle_mib: int) -> None:
        self._script = script
        self._directory = directory
        self._settle_mib = settle_mib
        self._runs = 0

    def measure(
        self, row: Row, rounds: int, *, patience: int, on_round: Callable[[], None]
    ) -> Outcome:
        """Run a row. Contenders whose peer is not installed are left out.

        Disturbed rounds are repeated, up to `patience` times as many in all.
        """
        prepared = self._fresh_directory() if row.prepare else None
        if row.prepare and prepared:
            self._run_contender(row.prepare, prepared)
        present = [one for one in row.contenders if one.peer is None or version_of(one.peer)]
        wanted = rounds * row.often
        found: list[Round] = []
        try:
            for number in range(wanted * patience):
                turn = number % len(present)
                order = [*present[turn:], *present[:turn]]
                found.append(self._round(order, prepared, in_turn=row.in_turn))
                on_round()
                if sum(disturbance(one) < _QUIET for one in found) >= wanted:
                    break
        finally:
            if prepared:
                shutil.rmtree(prepared, ignore_errors=True)
        return Outcome(row, sorted(found, key=disturbance)[:wanted])

    def _round(self, order: Sequence[Contender], prepared: Path | None, *, in_turn: bool) -> Round:
        if in_turn:
            return self._run_in_turn(order, prepared)
        found = {}
        for one in order:
            with self._place(prepared) as directory:
                found[one.name] = self._run_contender(one, directory)
        return found

    def _run_in_turn(self, order: Sequence[Contender], prepared: Path | None) -> Round:
        works = {one.name: [one.workload, dict(one.arguments)] for one in order}
        with self._place(prepared) as directory:
            found: Round = self._run(IN_TURN, {"works": works}, directory, codec="compiled")
            return found

    def _run_contender(self, contender: Contender, directory: Path) -> Figures:
        found: Figures = self._run(
            contender.workload, contender.arguments, directory, codec=contender.codec
        )
        return found

    def _run(
        self, workload: str, arguments: Mapping[str, Any], directory: Path, *, codec: str
    ) -> Any:
        done = subprocess.run(
            [
                sys.executable,
                str(self._script),
                workload,
                json.dumps({**arguments, "directory": str(directory)}),
                str(self._settle_mib),
            ],
            env={**os.environ, "PENSTOCK_CODEC": codec},
            stdout=subprocess.PIPE,
            text=True,
            timeout=_RUN_LIMIT_S,
            check=True,
        )
        return json.loads(done.stdout)

    @contextmanager
    def _place(self, prepared: Path | None) -> Iterator[Path]:
        """What was prepared, or a directory of its own."""
        if prepared is not None:
            yield prepared
            return
        directory = self._fresh_directory()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _fresh_directory(self) -> Path:
        self._runs += 1
        return self._directory / f"run-{self._runs}"


def run_workload(workloads: Mapping[str, Callable[..., Figures]]) -> None:
    """The main function of a workload script: run the one that is named, print its figures."""
    name, arguments_json, settle_mib = sys.argv[1:]
    arguments = json.loads(arguments_json)
    settle(Path(arguments["directory"]).parent, int(settle_mib))
    start, busy_s, own_s = perf_counter(), _busy_s(), _own_s()
    figures = workloads[name](**arguments)
    others_s = (_busy_s() - busy_s) - (_own_s() - own_s)
    figures[OTHERS] = max(others_s / (perf_counter() - start) / _cpu_count(), 0.0)
    print(json.dumps(figures))


def disturbance(one: Round) -> float:
    """The share of the machine that others took in a round: the mean over its runs."""
    return statistics.fmean(figures[OTHERS] for figures in one.values())


def _busy_s() -> float:
    """How long all CPUs together were at work, for anyone."""
    ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    busy = sum(int(n) for field, n in enumerate(ticks) if field not in _IDLE_FIELDS)
    return busy / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Of this process, and of the servers it started and ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0))


def settle(directory: Path, mib: int) -> None:
    """Let what was written before reach the disk, and have memory at hand for files.

    The host of a virtual machine takes back memory that lies free, within seconds; getting a page
    of it again takes ten times as long as filling it. The first contender would pay for that. So
    files are written and removed before anything is timed, until that goes at memory's own speed.
    """
    os.sync()
    for _ in range(_SETTLE_TRIES if mib else 0):
        start = perf_counter()
        with tempfile.TemporaryFile(dir=directory) as file:
            for _ in range(mib):
                file.write(bytes(1 << 20))
        if mib / (perf_counter() - start) > _SETTLED_MIB_PER_S:
            return


def rate_of(count: int, work: Callable[[], object]) -> Figures:
    """How many of `count` things a second the work does."""
    start = perf_counter()
    work()
    return {"rate": count / (perf_counter() - start)}


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not there."""
    try:
        return metadata.version(_DISTRIBUTIONS.get(package, package))
    except metadata.PackageNotFoundError:
        return None


def machine_facts(file_system: str) -> dict[str, str | int]:
    """What the figures depend on; nothing that names the machine."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "file_system": file_system,
        "architecture": platform.machine(),
        "cpu_count": _cpu_count(),
    }
