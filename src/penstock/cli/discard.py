"""`penstock discard`: throw dead letters away."""

import typer

from penstock.cli.confirming import Yes, confirm
from penstock.cli.dead_filters import All, Choice, DryRun, Ids, Limit, Reason
from penstock.cli.opening import looking, writing
from penstock.cli.parameters import MAIN, AsJson, InGroup, QueuePath, Since, Until
from penstock.cli.peek import show_dead_letters
from penstock.cli.terminal import complain, say, write_json
from penstock.cli.words import number


def discard(
    path: QueuePath,
    ids: Ids = None,
    everything: All = False,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    group: InGroup = MAIN,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Throw dead letters away for good. Asks first.

    Name them by id, filter them by --reason, --since and --until, or take --all.
    """
    choice = Choice(ids, reason, since, until, limit, group)
    choice.check(everything=everything, dry_run=dry_run)
    if dry_run:
        with looking(path) as queue:
            letters = choice.matching(queue)
        show_dead_letters(letters, json=json)
        count = len(letters)
    else:
        with writing(path) as queue:
            which = "All" if everything else "The chosen"
            confirm(f"{which} dead letters of group {group!r} of {path} are lost. Go on?", yes=yes)
            count = queue.discard(
                ids or None, reason=reason, since=since, until=until, limit=limit, group=group
            )
        if json:
            write_json({"group": group, "discarded": count})
        elif count:
            say(f"{number(count)} thrown away.")
    if not count:
        complain(f"no dead letter of group {group!r} matches")
        raise typer.Exit(1)
