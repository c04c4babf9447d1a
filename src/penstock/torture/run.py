"""Torture a disk: kill writers, damage files, and compare with what was acknowledged."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, PenstockError
from penstock.model import NS
from penstock.torture.child import Told
from penstock.torture.children import ChildFailed
from penstock.torture.damage_judge import PromiseBroken, judge
from penstock.torture.damage_store import build, on_disk
from penstock.torture.damage_strokes import stroke
from penstock.torture.kills import (
    Finding,
    Killer,
    check_killed,
    lose_newest_message,
    read_beside,
    read_from_disk_again,
)

MARK = "penstock-torture"  # a file that says: this directory may be emptied
SYNC_MODES = ("always", "interval", "batch", "never")
CYCLES_PER_QUEUE = 3  # the next writer recovers what the killed one left
MOST_ANSWERS = 200  # before a kill
STROKES_PER_CYCLE = 10


@dataclass(slots=True)
class Report:
    """What a run did and found."""

    cycles: int = 0
    sync_modes: list[str] = field(default_factory=list)  # that writers used
    answers: int = 0  # calls that were acknowledged before a kill
    messages: int = 0  # that were compared
    reads: int = 0  # of a queue beside its writer
    strokes: int = 0  # damages to files
    control: bool | None = None  # whether a loss made on purpose was found; None: not tried
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    kept: str | None = None  # where the queue that broke a promise is

    @property
    def is_sound(self) -> bool:
        """Whether every promise was kept, and the control was found."""
        return not self.findings and self.control is not False

    def count(self, kind: str) -> int:
        """Return the number of findings of a kind."""
        return sum(finding.kind == kind for finding in self.findings)


def torture(
    directory: str,
    *,
    seconds: float,
    cycles: int | None = None,
    seed: str = "",
    clock: Clock | None = None,
    after_kill: Callable[[Path, Told], None] | None = None,
    on_progress: Callable[[Report], None] | None = None,
) -> Report:
    """Run cycles of kills and damage in a directory, until the time or the cycles are over.

    The directory is left as it was, unless a promise was broken. KeyboardInterrupt ends the run
    early. `after_kill` is called with each queue whose writer was killed, before it is checked:
    tests break the files there.
    """
    root = Path(directory)
    made_root = _prepare(root)
    clock = clock or SystemClock()
    report = Report()
    start_ns = clock.monotonic_ns()
    run = _Run(root, Random(seed or None), report, after_kill)
    try:
        while report.is_sound:
            run.kill_once()
            run.damage_some()
            report.seconds = (clock.monotonic_ns() - start_ns) / NS
            if on_progress is not None:
                on_progress(report)
            if report.seconds >= seconds or (cycles is not None and report.cycles >= cycles):
                break
    except KeyboardInterrupt:
        report.seconds = (clock.monotonic_ns() - start_ns) / NS
    finally:
        run.close()
    if not report.is_sound:
        report.kept = str(root)
        return report
    _empty(root)
    (root / MARK).unlink()
    if made_root:
        root.rmdir()
    return report


def _prepare(root: Path) -> bool:
    """Create the directory and mark it as ours. Return whether it was created."""
    made = not root.exists()
    if not made and not root.is_dir():
        raise InvalidInput(f"{root} is not a directory: name one on the disk to test")
    if not made and any(root.iterdir()) and not (root / MARK).exists():
        raise InvalidInput(
            f"{root} is not empty, and was not made by `penstock torture`: this command removes "
            f"what is in its directory, so name a new one on the same disk"
        )
    root.mkdir(parents=True, exist_ok=True)
    (root / MARK).write_text("Made by `penstock torture`, which empties this directory.\n")
    _empty(root)
    return made


def _empty(root: Path) -> None:
    for path in root.iterdir():
        if path.name != MARK:
            shutil.rmtree(path)


class _Run:
    """The state between cycles."""

    def __init__(
        self,
        root: Path,
        random: Random,
        report: Report,
        after_kill: Callable[[Path, Told], None] | None,
    ) -> None:
        self._root, self._random, self._report = root, random, report
        self._after_kill = after_kill
        self._killer = Killer()
        self._told = Told()
        self._truth = build()  # of what the damaged files must hold, in memory
        self._damaged = root / "damaged"
        self._damaged.mkdir()

    def kill_once(self) -> None:
        """Let a writer work, kill it, and compare."""
        report, random = self._report, self._random
        cycle = report.cycles
        if cycle % CYCLES_PER_QUEUE == 0:
            self._told = Told()
            if cycle:
                shutil.rmtree(self._place(cycle - 1))
        place, told, sync = self._place(cycle), self._told, self._sync(cycle)
        most = random.choice((0, MOST_ANSWERS, MOST_ANSWERS))  # 0: killed while it opens
        after = random.randint(min(1, most), most)
        answers, seen = told.answers, set[str]()

        def beside() -> None:
            report.findings += read_beside(place, told, seen)
            report.reads += 1

        try:
            self._killer.run_and_kill(place, sync, str(cycle), told, after, beside=beside)
        except ChildFailed as error:
            report.findings.append(Finding("failed", f"the writer (sync={sync}): {error}"))
            return
        report.cycles += 1
        if sync not in report.sync_modes:
            report.sync_modes.append(sync)
        report.answers += told.answers - answers
        if foreign := seen - told.attempted:
            report.findings.append(Finding("changed", f"a reader found {min(foreign)!r}"))
        if self._after_kill is not None:
            self._after_kill(place, told)
        read_from_disk_again(place)
        report.findings += check_killed(place, sync, told)
        report.messages += len(told.published)
        if report.control is None and told.published and not report.findings:
            report.control = self._finds_a_loss(place, sync)

    def damage_some(self) -> None:
        """Damage files of a small ledger, one after the other, and judge what is served."""
        lay_out = on_disk(self._damaged)
        for _ in range(STROKES_PER_CYCLE if self._report.is_sound else 0):
            case = stroke(self._truth, self._random)
            try:
                judge(self._truth, case, lay_out)
            except (PromiseBroken, PenstockError) as error:
                self._report.findings.append(Finding("damage", f"{case}: {error}"))
                return
            self._report.strokes += 1

    def close(self) -> None:
        """End the processes."""
        self._killer.close()

    def _finds_a_loss(self, place: Path, sync: str) -> bool:
        """Lose the newest message in a copy of the queue. Return whether the check finds it."""
        copy = self._root / "control"
        shutil.copytree(place, copy)
        lose_newest_message(copy, self._told)
        found = any(each.kind == "lost" for each in check_killed(copy, sync, self._told))
        shutil.rmtree(copy)
        return found

    def _place(self, cycle: int) -> Path:
        return self._root / f"queue-{cycle // CYCLES_PER_QUEUE}"

    def _sync(self, cycle: int) -> str:
        return SYNC_MODES[cycle // CYCLES_PER_QUEUE % len(SYNC_MODES)]
