"""`penstock stats`: the counts of a queue."""

from collections.abc import Mapping
from typing import Any

from penstock.cli.opening import looking
from penstock.cli.parameters import AsJson, QueuePath
from penstock.cli.terminal import out, show_facts, show_table, table, write_json
from penstock.cli.words import number, size, span
from penstock.model import GroupStats, Stats

_NOW = ("ready", "scheduled", "leased", "parked", "dead")
_TOTALS = {  # field: head of its column
    "acked": "acked",
    "nacked": "nacked",
    "timed_out": "timed out",
    "expired": "expired",
    "cancelled": "cancelled",
    "dead_lettered": "died",
    "redriven": "redriven",
    "discarded": "discarded",
}


def stats(path: QueuePath, json: AsJson = False) -> None:
    """Show how many messages wait, are worked on, are dead, and what happened so far."""
    with looking(path) as queue:
        found = queue.stats()
    if json:
        write_json(stats_json(found))
        return
    paused = "   paused" if found.paused else ""
    again = f", {number(found.deduplicated, 'duplicate')} refused" if found.deduplicated else ""
    show_facts(
        [
            ("queue", path + paused),
            ("published", number(found.published, "message") + again),
            ("read up to", f"message {found.read_position}"),
            (
                "kept in mind",
                f"{number(found.retrying)} retrying, {number(found.dedup_entries, 'dedup id')}",
            ),
            (
                "on disk",
                f"{size(found.message_log_bytes)} messages, {size(found.event_log_bytes)} events, "
                f"{number(found.segments, 'segment')}",
            ),
        ]
    )
    out.line()
    show_groups(found.groups)
    out.line()
    made = table("so far", *_TOTALS.values(), right=_TOTALS.values())
    for name, group in found.groups.items():
        made.add_row(name, *(number(getattr(group, total)) for total in _TOTALS))
    show_table(made)


def show_groups(groups: Mapping[str, GroupStats]) -> None:
    """Where the messages stand in each group."""
    made = table("group", *_NOW, "oldest ready", right=[*_NOW, "oldest ready"])
    for name, group in groups.items():
        counts = [number(getattr(group, state)) for state in _NOW]
        made.add_row(name, *counts, span(group.oldest_ready_age_s) if group.ready else "")
    show_table(made)


def stats_json(found: Stats) -> dict[str, Any]:
    """All counts that the files know; not those of the handle that looked."""
    document = found._asdict()
    del document["damaged"]
    document["groups"] = {name: group._asdict() for name, group in found.groups.items()}
    return document
