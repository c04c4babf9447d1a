"""Choosing dead letters: by id, by what they failed of and when, or all."""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, NamedTuple

import typer

from penstock.errors import NoSuchMessage
from penstock.model import NS, DeadLetter
from penstock.queue import Queue

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Dead letters by id.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]
Reason = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only those with this in their reason.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of dead letters, oldest first.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show which ones; nothing is changed.")
]


class Choice(NamedTuple):
    """Which dead letters of a group."""

    ids: list[str] | None
    reason: str | None
    since: float | None
    until: float | None
    limit: int | None
    group: str

    def check(self, *, everything: bool, dry_run: bool) -> None:
        """Refuse a choice that could be a slip: nothing chosen, or all and a part."""
        filtered = bool(self.ids) or any(
            one is not None for one in (self.reason, self.since, self.until)
        )
        if everything and filtered:
            raise typer.BadParameter("--all goes with neither ids nor filters")
        if not (filtered or everything or dry_run):  # a dry run without a choice shows all
            raise typer.BadParameter("name dead letters by id, or filter them, or give --all")

    def matching(self, queue: Queue) -> list[DeadLetter]:
        """Return those that `Queue.redrive` and `Queue.discard` would take."""
        letters: Iterable[DeadLetter] = queue.dead(group=self.group)
        if self.ids:
            named = {letter.id: letter for letter in letters}
            for id_ in self.ids:
                if id_ not in named:
                    raise NoSuchMessage(f"message {id_} is not a dead letter of {self.group!r}")
            letters = [named[id_] for id_ in self.ids]
        fitting = (
            letter
            for letter in letters
            if (self.reason is None or self.reason in letter.reason)
            and (self.since is None or letter.last_failure_ns / NS >= self.since)
            and (self.until is None or letter.last_failure_ns / NS < self.until)
        )
        return list(islice(fitting, self.limit))
