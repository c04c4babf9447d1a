"""Commands for dead letters: redrive, discard."""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer

from penstock.cli.formatting import number
from penstock.cli.look import print_dead_letters
from penstock.cli.options import (
    MAIN,
    AsJson,
    InGroup,
    QueuePath,
    Yes,
    argument,
    option,
    takes,
    time_option,
)
from penstock.cli.targets import open_to_read, open_to_write
from penstock.cli.terminal import confirm, exit_no, print_json, print_text
from penstock.errors import NoSuchMessage
from penstock.model import NS, DeadLetter
from penstock.queue.facade import AnyQueue

DryRun = Annotated[bool, option("Show them; change nothing.", "--dry-run")]


class Selection(NamedTuple):
    """Which dead letters of a group."""

    ids: Annotated[list[str] | None, argument("ID", "Ids of dead letters.")] = None
    everything: Annotated[bool, option("All dead letters.", "--all")] = False
    reason: Annotated[
        str | None, option("Only those whose reason contains this text.", metavar="TEXT")
    ] = None
    since: Annotated[
        float | None, time_option("Only those that last failed at or after this time.")
    ] = None
    until: Annotated[float | None, time_option("Only those that last failed before this time.")] = (
        None
    )
    limit: Annotated[int | None, option("Maximum number of dead letters, oldest first.", min=1)] = (
        None
    )
    group: InGroup = MAIN

    def check(self, *, dry_run: bool) -> None:
        """Refuse what could be a slip: nothing selected, or both all and some."""
        filtered = bool(self.ids) or any(
            one is not None for one in (self.reason, self.since, self.until)
        )
        if self.everything and filtered:
            raise typer.BadParameter("--all cannot be combined with ids or filters")
        if not (filtered or self.everything or dry_run):  # a dry run without a selection shows all
            raise typer.BadParameter("name dead letters by id, or filter them, or give --all")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Queue.redrive` and `Queue.discard`."""
        chosen = self._asdict()
        del chosen["everything"]
        return {**chosen, "ids": self.ids or None}

    def matching(self, queue: AnyQueue) -> list[DeadLetter]:
        """Return the dead letters that `Queue.redrive` and `Queue.discard` would take."""
        letters: Iterable[DeadLetter] = queue.dead(group=self.group)
        if self.ids:
            by_id = {letter.id: letter for letter in letters}
            for id_ in self.ids:
                if id_ not in by_id:
                    raise NoSuchMessage(f"message {id_} is not a dead letter of {self.group!r}")
            letters = [by_id[id_] for id_ in self.ids]
        matching = (
            letter
            for letter in letters
            if (self.reason is None or self.reason in letter.reason)
            and (self.since is None or letter.last_failure_ns / NS >= self.since)
            and (self.until is None or letter.last_failure_ns / NS < self.until)
        )
        return list(islice(matching, self.limit))


@takes(selection=Selection)
def redrive(
    path: QueuePath, selection: Selection, dry_run: DryRun = False, json: AsJson = False
) -> None:
    """Make dead letters ready again, and reset their attempts.

    Name them by id, filter them by --reason, --since and --until, or give --all.
    Exits with 1 if none matches.
    """
    if _is_dry_run(path, selection, dry_run, json):
        return
    with open_to_write(path) as queue:
        count = queue.redrive(**selection.arguments())
    _print_count(count, "redriven", f"ready again in group {selection.group!r}", selection, json)


@takes(selection=Selection)
def discard(
    path: QueuePath,
    selection: Selection,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Remove dead letters for good. Asks first.

    Name them by id, filter them by --reason, --since and --until, or give --all.
    Exits with 1 if none matches.
    """
    if _is_dry_run(path, selection, dry_run, json):
        return
    with open_to_write(path) as queue:
        which = "all" if selection.everything else "the selected"
        group = f"group {selection.group!r}"
        confirm(f"Discard {which} dead letters of {group} of {path}?", yes=yes)
        count = queue.discard(**selection.arguments())
    _print_count(count, "discarded", f"removed from {group}", selection, json)


def _is_dry_run(path: str, selection: Selection, dry_run: bool, as_json: bool) -> bool:
    """Check the selection. For a dry run, print it and return True."""
    selection.check(dry_run=dry_run)
    if not dry_run:
        return False
    with open_to_read(path) as queue:
        letters = selection.matching(queue)
    print_dead_letters(letters, as_json)
    if not letters:
        exit_no(f"no dead letter of group {selection.group!r} matches")
    return True


def _print_count(count: int, verb: str, result: str, selection: Selection, as_json: bool) -> None:
    if as_json:
        print_json({"group": selection.group, verb: count})
    elif count:
        print_text(f"{number(count)} {verb}: {result}.")
    if not count:
        exit_no(f"no dead letter of group {selection.group!r} matches")
