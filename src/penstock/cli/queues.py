"""`penstock queues`: the queues of a broker."""

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.confirming import Yes, confirm
from penstock.cli.default_command import group_settings
from penstock.cli.parameters import AsJson, BrokerPlace, BrokerUrl, QueueAtBroker
from penstock.cli.places import QueueRow, remote, view_of
from penstock.cli.setting_options import Settings, settings_of
from penstock.cli.stats import stats_json
from penstock.cli.terminal import complain, say, show_table, table, write_json, write_json_line
from penstock.cli.words import number, plain, span
from penstock.errors import AlreadyExists

queues_app = typer.Typer(**group_settings("queues", "The queues of a broker."))

COUNTS = ("ready", "scheduled", "leased", "parked", "dead")


@queues_app.command("list")
def list_queues(
    broker: BrokerPlace,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Only of this one.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the queues, with how many messages wait, are worked on and are dead."""
    view = view_of(broker)
    rows = view.rows(view.queues(namespace))
    if json:
        for row in rows:
            write_json_line(queue_json(row))
    elif rows:
        show_table(queue_table(rows))
    if not rows:
        complain("there are no queues")
        raise typer.Exit(1)


@queues_app.command("create")
def create_queue(
    broker: BrokerUrl, queue: QueueAtBroker, setting: Settings = None, json: AsJson = False
) -> None:
    """Make a queue. One that is there with these settings is left as it is."""
    with remote(broker) as opened:
        try:
            made = opened.create_queue(queue, **settings_of(setting))
        except AlreadyExists as error:
            raise AlreadyExists(
                f"{error} (penstock queues change BROKER QUEUE --set NAME=VALUE)"
            ) from None
    if json:
        write_json({"queue": f"{made.namespace}/{made.name}", "settings": made.settings.as_dict()})
    else:
        say(f"Queue {made.namespace}/{made.name} is there.")


@queues_app.command("change")
def change_queue(
    broker: BrokerUrl, queue: QueueAtBroker, setting: Settings = None, json: AsJson = False
) -> None:
    """Change some settings of a queue; the others stay."""
    changes = settings_of(setting)
    if not changes:
        raise typer.BadParameter("give what is to change: --set NAME=VALUE")
    with remote(broker) as opened:
        made = opened.change_queue(queue, **changes)
    if json:
        write_json({"queue": f"{made.namespace}/{made.name}", "settings": made.settings.as_dict()})
    else:
        say(f"Queue {made.namespace}/{made.name} is changed.")


@queues_app.command("delete")
def delete_queue(
    broker: BrokerUrl, queue: QueueAtBroker, yes: Yes = False, json: AsJson = False
) -> None:
    """Delete a queue and all that is in it. Asks first."""
    with remote(broker) as opened:
        confirm(f"Delete queue {queue} and all its messages?", yes=yes)
        opened.delete_queue(queue)
    if json:
        write_json({"queue": queue, "deleted": True})
    else:
        say(f"Queue {queue} is deleted.")


def queue_table(rows: list[QueueRow]) -> Table:
    """Queues and their counts, for people."""
    heads = [*COUNTS, "oldest ready"]
    made = table("queue", *heads, right=heads, rest="queue")  # a long name must not hide the counts
    for row in rows:
        if row.stats is None:
            made.add_row(Text(plain(f"{row.queue}: {row.problem}"), style="red"))
            continue
        counts = [number(getattr(row.stats, count)) for count in COUNTS]
        oldest = span(row.stats.oldest_ready_age_s) if row.stats.ready else ""
        made.add_row(f"{row.queue}{' (paused)' if row.stats.paused else ''}", *counts, oldest)
    return made


def queue_json(row: QueueRow) -> dict[str, Any]:
    """A queue and its counts, for programs."""
    return {
        "queue": row.queue,
        "stats": None if row.stats is None else stats_json(row.stats),
        "problem": row.problem or None,
    }
