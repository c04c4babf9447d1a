"""`penstock torture`: kill writers and damage files on the user's own disk."""

from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli.formatting import printable
from penstock.cli.options import AsJson, argument, duration_option, option
from penstock.cli.terminal import print_facts, print_json, print_text, progress_bar
from penstock.torture import Report
from penstock.torture import torture as run_torture

_PROMISES = """\
Penstock promises, on this disk:
- what was acknowledged survives kill -9 at any moment, with every sync mode;
- what was acked or cancelled does not come back, and nothing is there twice;
- a process that reads beside the writer sees everything that was acknowledged;
- damage to a file is reported, wrong bytes are never served, and every message that the
  damage spared is served.
"""
_NOT_TESTED = """\
Not tested, because a program cannot cause it: a power cut, a crash of the kernel, a disk that
reports fsync done before it is. With sync=always, an acknowledged message survives these if the
disk tells the truth; with the other modes, the newest messages can be lost.\
"""
_FINDINGS_SHOWN = 10


def torture(
    directory: Annotated[
        str, argument("DIR", "A new directory on the disk to test; removed afterwards.")
    ],
    seconds: Annotated[float, duration_option("Stop after this time.", "--seconds")] = 60.0,
    cycles: Annotated[int | None, option("Stop after this number of kills.", min=1)] = None,
    seed: Annotated[
        str, option("Choose the moments of kills and the damage by this text.", metavar="TEXT")
    ] = "",
    json: AsJson = False,
) -> None:
    """Kill writers and damage files on this disk, and check that nothing is lost.

    A writer publishes, acks, nacks and cancels from four threads, and is killed
    with SIGKILL; what was acknowledged is compared with what is on the disk.
    Copies of another queue's files are flipped, cut, zeroed and overwritten.
    Exits with 1 if a promise is broken, and keeps the files then. Ctrl-C stops
    early.
    """
    if not json:
        print_text(_PROMISES)
    with progress_bar() as progress:
        task = progress.add_task("", total=seconds)

        def show(report: Report) -> None:
            shown = f"{report.cycles} kills, {report.strokes} damages"
            progress.update(task, completed=report.seconds, description=shown)

        report = run_torture(directory, seconds=seconds, cycles=cycles, seed=seed, on_progress=show)
    if json:
        findings = [finding._asdict() for finding in report.findings]
        print_json(asdict(report) | {"findings": findings, "sound": report.is_sound})
    else:
        _print(report)
    if not report.is_sound:
        raise typer.Exit(1)


def _print(report: Report) -> None:
    count = report.count
    wrong = ", ".join(
        f"{count(kind)} {kind}" for kind in ("lost", "came back", "changed", "twice", "miscounted")
    )
    controls = {
        True: "works: a message that was removed on purpose was missed",
        False: "FAILED: a message that was removed on purpose was not missed",
        None: "not tried: no message was acknowledged before the first kills",
    }
    print_facts(
        [
            ("time", f"{report.seconds:.0f} s"),
            ("kill -9", f"{report.cycles:,} writers, with sync {', '.join(report.sync_modes)}"),
            ("acknowledged", f"{report.answers:,} calls"),
            ("compared", f"{report.messages:,} messages: {wrong}"),
            ("reader", f"{report.reads:,} times beside a writer"),
            ("damage", f"{report.strokes:,} files; promises broken: {count('damage')}"),
            ("this check", controls[report.control]),
        ]
    )
    for kind, detail in report.findings[:_FINDINGS_SHOWN]:
        print_text(printable(f"{kind.upper()}: {detail}"))
    if report.kept is not None:
        print_text(
            f"\nA promise was broken. The files are kept in {report.kept}: please report it."
        )
    else:
        print_text(f"\nNo promise was broken.\n{_NOT_TESTED}")
