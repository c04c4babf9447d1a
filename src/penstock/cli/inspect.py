"""`penstock inspect`: what a queue's directory holds."""

import json as json_module
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.opening import files_of, looking, looking_at_files
from penstock.cli.parameters import AsJson, QueueFiles
from penstock.cli.stats import show_groups, stats_json
from penstock.cli.terminal import out, say, show_facts, show_table, table, write_json
from penstock.cli.words import moment, number, plain, size
from penstock.ledger import Ledger
from penstock.ledger.segment_header import COMPACTED
from penstock.model import NS, Stats
from penstock.queue import QueueSettings

Json = dict[str, Any]
_SEGMENTS_SHOWN = 20


def inspect(
    path: QueueFiles,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", help="Also the settings that are at their default.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the files, segments, snapshots, groups and settings of a queue."""
    with looking(files_of(path)) as queue:
        stats, settings = queue.stats(), queue.settings
    with looking_at_files(path) as files:
        document: Json = {
            "path": path,
            "identity": f"{files.identity:08x}",
            "created_at": files.created_at_ns / NS,
            "last_writer": _last_writer(Path(path)),
            "paused": stats.paused,
            "files": _files(Path(path)),
            "segments": _segments(files),
            "snapshots": _snapshots(files),
            "groups": stats_json(stats)["groups"],
            "settings": settings.as_dict(),
        }
    if json:
        write_json(document)
    else:
        _show(document, stats, all_settings=all_settings)


# -- finding out -----------------------------------------------------------------------------------


def _files(root: Path) -> list[Json]:
    found = [file for file in sorted(root.rglob("*")) if file.is_file()]
    return [{"file": str(file.relative_to(root)), "bytes": file.stat().st_size} for file in found]


def _last_writer(root: Path) -> Json | None:
    """Who took the lock last; it may be gone by now."""
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


def _snapshots(files: Ledger) -> list[Json]:
    return [
        {"file": f"snapshots/{seq:020d}.snap", "event_seq": seq} for seq in files.snapshot_seqs()
    ]


# -- showing ---------------------------------------------------------------------------------------


def _show(document: Json, stats: Stats, *, all_settings: bool) -> None:
    writer = document["last_writer"]
    show_facts(
        [
            ("queue", document["path"] + ("   paused" if document["paused"] else "")),
            ("identity", document["identity"]),
            ("created", moment(document["created_at"])),
            (
                "last writer",
                plain(f"process {writer['pid']} on {writer['host']}, {writer['since']}")
                if writer
                else "not known",
            ),
        ]
    )
    _show_segments(document["segments"])
    _show_other_files(document)
    out.line()
    show_groups(stats.groups)
    _show_settings(document["settings"], all_settings=all_settings)


def _show_segments(segments: list[Json]) -> None:
    out.line()
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
    show_table(made)
    if len(segments) > _SEGMENTS_SHOWN:
        say(f"and {number(len(segments) - _SEGMENTS_SHOWN)} before; --json has them all")


def _show_other_files(document: Json) -> None:
    out.line()
    shown = {segment["file"] for segment in document["segments"]}
    snapshots = {snapshot["file"]: snapshot["event_seq"] for snapshot in document["snapshots"]}
    made = table("other file", "size", "what", right=["size"])
    for file in document["files"]:
        name = file["file"]
        if name in shown or name.endswith(".idx"):
            continue
        what = f"the state after event {number(snapshots[name])}" if name in snapshots else ""
        made.add_row(plain(name), size(file["bytes"]), what)
    show_table(made)


def _show_settings(settings: Json, *, all_settings: bool) -> None:
    defaults = QueueSettings()
    changed = [
        item.name
        for item in fields(defaults)
        if settings[item.name] != getattr(defaults, item.name)
    ]
    out.line()
    if not changed and not all_settings:
        say("All settings are at their defaults; --all-settings shows them.")
        return
    made = table("setting", "value", "default", right=["value", "default"])
    for item in fields(defaults):
        if all_settings or item.name in changed:
            default = getattr(defaults, item.name)
            made.add_row(
                item.name,
                str(settings[item.name]),
                str(default) if item.name in changed else "the same",
            )
    show_table(made)
