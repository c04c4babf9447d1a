"""Commands that read a queue's files: inspect, verify."""

import json as json_module
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from penstock import ledger
from penstock.cli.formatting import Json, local_time, number, printable, size, stats_json
from penstock.cli.look import print_groups
from penstock.cli.options import AsJson, QueueDirectory, option
from penstock.cli.targets import open_ledger, open_to_read, stored_settings
from penstock.cli.terminal import out, print_facts, print_json, print_text, progress_bar, table
from penstock.ledger import Damage, Ledger, VerifyReport
from penstock.ledger.segment_header import COMPACTED
from penstock.model import NS, Stats
from penstock.queue import QueueSettings
from penstock.queue.fold import fold

_SEGMENTS_SHOWN = 20


# -- inspect ---------------------------------------------------------------------------------------


def inspect(
    path: QueueDirectory,
    all_settings: Annotated[
        bool, option("Include settings that have their defaults.", "--all-settings")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the files, segments, snapshots, groups and settings of a queue."""
    settings = stored_settings(path)
    with open_to_read(path) as queue:
        stats = queue.stats()
    root = Path(path)
    with open_ledger(path) as files:
        document: Json = {
            "path": path,
            "identity": f"{files.identity:08x}",
            "created_at": files.created_at_ns / NS,
            "last_writer": _last_writer(root),
            "paused": stats.paused,
            "files": [
                {"file": str(file.relative_to(root)), "bytes": file.stat().st_size}
                for file in sorted(root.rglob("*"))
                if file.is_file()
            ],
            "segments": _segments(files),
            "snapshots": [
                {"file": f"snapshots/{seq:020d}.snap", "event_seq": seq}
                for seq in files.snapshot_seqs()
            ],
            "groups": stats_json(stats)["groups"],
            "settings": settings.as_dict(),
        }
    if json:
        print_json(document)
    else:
        _print_document(document, stats, all_settings=all_settings)


def _last_writer(root: Path) -> Json | None:
    """Return the last holder of the lock, which may have exited."""
    try:
        holder = json_module.loads((root / "LOCK").read_text())
        return {name: holder[name] for name in ("pid", "host", "since")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _segments(files: Ledger) -> list[Json]:
    found = []
    for name, log in (("messages", files.messages), ("events", files.events)):
        segments = log.segments.all
        next_bases = [*(segment.base_seq for segment in segments), log.next_seq][1:]
        for segment, end_seq in zip(segments, next_bases, strict=True):
            found.append(
                {
                    "log": name,
                    "file": f"{name}/{segment.name}",
                    "first_seq": segment.base_seq,
                    "last_seq": end_seq - 1 if end_seq > segment.base_seq else None,
                    "used_bytes": segment.end,
                    "file_bytes": segment.file_bytes(),
                    "created_at": segment.header.created_at_ns / NS,
                    "sealed": segment is not log.segments.last,
                    "compacted": bool(segment.header.flags & COMPACTED),
                }
            )
    return found


def _print_document(document: Json, stats: Stats, *, all_settings: bool) -> None:
    writer = document["last_writer"]
    print_facts(
        [
            ("queue", document["path"] + ("   paused" if document["paused"] else "")),
            ("identity", document["identity"]),
            ("created", local_time(document["created_at"])),
            (
                "last writer",
                printable(f"process {writer['pid']} on {writer['host']}, {writer['since']}")
                if writer
                else "not known",
            ),
        ]
    )
    out.line()
    _print_segments(document["segments"])
    out.line()
    _print_other_files(document)
    out.line()
    print_groups(stats.groups)
    out.line()
    _print_settings(document["settings"], all_settings=all_settings)


def _print_segments(segments: list[Json]) -> None:
    made = table("segment", "seqs", "used", "file", "state", right=["seqs", "used", "file"])
    for segment in segments[-_SEGMENTS_SHOWN:]:
        seqs = f"{number(segment['first_seq'])}–{number(segment['last_seq'] or 0)}"
        state = "sealed" if segment["sealed"] else "active"
        made.add_row(
            segment["file"],
            seqs if segment["last_seq"] else "none",
            size(segment["used_bytes"]),
            size(segment["file_bytes"]),
            "compacted" if segment["compacted"] else state,
        )
    out.print(made)
    if len(segments) > _SEGMENTS_SHOWN:
        print_text(f"and {number(len(segments) - _SEGMENTS_SHOWN)} earlier; --json lists all")


def _print_other_files(document: Json) -> None:
    shown = {segment["file"] for segment in document["segments"]}
    snapshots = {snapshot["file"]: snapshot["event_seq"] for snapshot in document["snapshots"]}
    made = table("other file", "size", "content", right=["size"])
    for file in document["files"]:
        name = file["file"]
        if name not in shown and not name.endswith(".idx"):
            content = f"state after event {number(snapshots[name])}" if name in snapshots else ""
            made.add_row(printable(name), size(file["bytes"]), content)
    out.print(made)


def _print_settings(settings: Json, *, all_settings: bool) -> None:
    made = table("setting", "value", "default", right=["value", "default"])
    for name, default in QueueSettings().as_dict().items():
        if settings[name] != default:
            made.add_row(name, str(settings[name]), str(default))
        elif all_settings:
            made.add_row(name, str(default), "the same")
    if made.row_count:
        out.print(made)
    else:
        print_text("All settings have their defaults; --all-settings shows them.")


# -- verify ----------------------------------------------------------------------------------------


def verify(path: QueueDirectory, json: AsJson = False) -> None:
    """Read every entry and snapshot, check the checksums, and list all damage.

    Another process may write meanwhile. Exits with 1 if anything is damaged.
    """
    report = _read_everything(path)
    if json:
        document: Json = {"path": path, "sound": report.is_sound, "entries": report.entries}
        document |= {"segments": report.segments, "snapshots": report.snapshots}
        document |= {"bytes_read": report.bytes_read}
        print_json(document | {"problems": [_problem_json(one) for one in report.problems]})
    else:
        _print_report(path, report)
    if not report.is_sound:
        raise typer.Exit(1)


def _read_everything(path: str) -> VerifyReport:
    stored = stored_settings(path)
    # Find all damage, even if the queue itself is set to stop at the first.
    settings = replace(stored.storage.ledger_settings(), on_corruption="quarantine")
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("reading", total=None)
        return ledger.verify(
            path,
            settings=settings,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            fold=lambda files: fold(files, dedup_entries=stored.dedup_entries),
        )


def _print_report(path: str, report: VerifyReport) -> None:
    read = (
        f"{number(report.entries, 'entry', 'entries')} in {number(report.segments, 'segment')} "
        f"({size(report.bytes_read)}), {number(report.snapshots, 'snapshot')}"
    )
    if report.is_sound:
        print_text(f"{path} is sound: {read}.")
        return
    columns = ("file", "offset", "bytes", "lost seqs", "problem")
    made = table(*columns, right=["offset", "bytes"], rest="problem", wrap_rest=True)
    for one in report.problems:
        first, last = number(one.first_lost_seq), number(one.last_lost_seq)
        made.add_row(
            one.file,
            number(one.offset),
            number(one.length),
            "none" if not one.lost else first if first == last else f"{first}–{last}",
            ("unfinished write: " if one.torn else "") + printable(one.reason),
        )
    out.print(made)
    out.line()
    print_text(f"{path} has {number(len(report.problems), 'problem')}; read: {read}.")


def _problem_json(problem: Damage) -> Json:
    return {
        "file": problem.file,
        "offset": problem.offset,
        "length": problem.length,
        "first_lost_seq": problem.first_lost_seq if problem.lost else None,
        "last_lost_seq": problem.last_lost_seq if problem.lost else None,
        "torn": problem.torn,
        "reason": problem.reason,
    }
