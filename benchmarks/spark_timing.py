"""Time passes in one warm Spark session, with medians and processor time."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from measure import Figures

_WARM_S, _FEW = 10.0, 1_000_000  # of each, to warm up; a quick run, with few rows, does not
_PASSES, _PASSES_S = 5, 15.0  # passes of each contender, or as many as fit into these seconds
_TICK = os.sysconf("SC_CLK_TCK")

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Passes:
    """Something to be timed: each call of `work` handles `count` rows."""

    count: int
    work: Work
    before: Work | None = None  # clears the place for a pass, untimed
    after: Work | None = None  # looks at what the last pass has left, untimed


def timed_in_turn(works: Mapping[str, Passes]) -> dict[str, Figures]:
    """Passes of each in turn, in one Spark. The JVM compiles what runs often: warm up first."""

    def once(one: Passes) -> tuple[float, float]:
        if one.before is not None:
            one.before()
        start, cpu_s = perf_counter(), tree_cpu_s()
        one.work()
        return perf_counter() - start, tree_cpu_s() - cpu_s

    for one in works.values():
        once(one)  # starts the workers, which is not what is timed
    many = max(one.count for one in works.values()) >= _FEW
    warm_from = perf_counter()
    while many and perf_counter() - warm_from < _WARM_S * len(works):
        for one in works.values():
            once(one)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    start = perf_counter()
    for number in range(_PASSES):
        if number and perf_counter() - start > _PASSES_S * len(works):
            break
        for name, one in works.items():
            spent[name].append(once(one))
    for one in works.values():
        if one.after is not None:
            one.after()
    return {name: _figures(works[name].count, passes) for name, passes in spent.items()}


def _figures(count: int, passes: list[tuple[float, float]]) -> Figures:
    wall_s, cpu_s = (median(one[which] for one in passes) for which in (0, 1))
    by_cpu = os.environ.get("BENCH_BY") == "cpu"
    return {"rate": count / (cpu_s if by_cpu else wall_s), "wall_s": wall_s, "cpu_s": cpu_s}


def tree_cpu_s() -> float:
    """The processor time of this process and all that it started: the JVM, and Python workers."""
    fields = _tree()
    # Own, and of ended children.
    return sum(sum(map(int, one[11:15])) / _TICK for one in fields.values())


def tree_memory_mib() -> dict[str, float]:
    """The peak of resident memory by program, of the largest process that this one started."""
    found: dict[str, float] = {}
    for number in _tree():
        if number == os.getpid():
            continue
        try:
            lines = Path(f"/proc/{number}/status").read_text().splitlines()
        except OSError:
            continue  # it ended
        status = dict(line.split(":", 1) for line in lines)
        program = "java" if status["Name"].strip() == "java" else "python"
        peak_mib = int(status.get("VmHWM", "0 kB").split()[0]) / 1024
        found[program] = max(found.get(program, 0), peak_mib)
    return found


def _tree() -> dict[int, list[str]]:
    """The fields of /proc/<number>/stat after the name, of this process and all below it."""
    found: dict[int, list[str]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(place.parent.name)] = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
    parents = {number: int(fields[1]) for number, fields in found.items()}
    return {number: fields for number, fields in found.items() if _is_ours(number, parents)}


def _is_ours(number: int, parents: dict[int, int]) -> bool:
    while number > 1:
        if number == os.getpid():
            return True
        number = parents.get(number, 0)
    return False


def busy_s() -> float:
    """How long all CPUs together were at work, for anyone."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return sum(int(n) for at, n in enumerate(fields) if at not in (3, 4)) / _TICK
