"""`penstock verify`: read everything again, and say what is wrong where."""

from dataclasses import replace

import typer
from rich.text import Text

from penstock import ledger
from penstock.cli.opening import stored_settings
from penstock.cli.parameters import AsJson, QueueFiles
from penstock.cli.terminal import byte_progress, out, say, show_table, table, write_json
from penstock.cli.words import number, plain, size
from penstock.ledger import Damage, VerifyReport
from penstock.queue.fold import fold


def verify(path: QueueFiles, json: AsJson = False) -> None:
    """Read every entry and snapshot again, check its checksum, and say what is wrong where.

    A writer may be at work meanwhile. Exits with 1 if anything is wrong.
    """
    report = _read_everything(path)
    if json:
        write_json(_report_json(path, report))
    else:
        _show(path, report)
    if not report.is_sound:
        raise typer.Exit(1)


def _read_everything(path: str) -> VerifyReport:
    # All damage is to be found, also where the queue itself would stop at the first.
    stored = stored_settings(path)
    settings = replace(stored.ledger_settings(), on_corruption="quarantine")
    with byte_progress() as progress:
        task = progress.add_task("reading", total=None)
        return ledger.verify(
            path,
            settings=settings,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            fold=lambda files: fold(files, dedup_entries=stored.dedup_entries),
        )


def _show(path: str, report: VerifyReport) -> None:
    read = (
        f"{number(report.entries)} entries in {number(report.segments, 'segment')} "
        f"({size(report.bytes_read)}), {number(report.snapshots, 'snapshot')}"
    )
    if report.is_sound:
        say(f"{path} is sound: {read}.")
        return
    made = table(
        "file",
        "offset",
        "bytes",
        "lost seqs",
        "what",
        right=["offset", "bytes"],
        rest="what",
        wrap_rest=True,
    )
    for problem in report.problems:
        made.add_row(
            problem.file,
            number(problem.offset),
            number(problem.length),
            _lost(problem),
            Text(("unfinished write: " if problem.torn else "") + plain(problem.reason)),
        )
    show_table(made)
    out.line()
    say(f"{path} has {number(len(report.problems), 'problem')}; read: {read}.")


def _lost(problem: Damage) -> str:
    first, last = problem.first_lost_seq, problem.last_lost_seq
    if not problem.lost:
        return "none"
    return number(first) if first == last else f"{number(first)}–{number(last)}"


def _report_json(path: str, report: VerifyReport) -> dict[str, object]:
    return {
        "path": path,
        "sound": report.is_sound,
        "entries": report.entries,
        "segments": report.segments,
        "snapshots": report.snapshots,
        "bytes_read": report.bytes_read,
        "problems": [
            {
                "file": problem.file,
                "offset": problem.offset,
                "length": problem.length,
                "first_lost_seq": None if _lost(problem) == "none" else problem.first_lost_seq,
                "last_lost_seq": None if _lost(problem) == "none" else problem.last_lost_seq,
                "torn": problem.torn,
                "reason": problem.reason,
            }
            for problem in report.problems
        ],
    }
