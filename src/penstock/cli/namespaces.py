"""`penstock namespaces`: the namespaces of a broker."""

from typing import Annotated

import typer

from penstock.cli.confirming import Yes, confirm
from penstock.cli.default_command import group_settings
from penstock.cli.parameters import AsJson, BrokerPlace, BrokerUrl
from penstock.cli.places import remote, view_of
from penstock.cli.setting_options import Settings, settings_of
from penstock.cli.terminal import complain, say, show_table, table, write_json, write_json_line
from penstock.cli.words import bytes_of, moment, number, size

namespaces_app = typer.Typer(**group_settings("namespaces", "The namespaces of a broker."))

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)]


@namespaces_app.command("list")
def list_namespaces(broker: BrokerPlace, json: AsJson = False) -> None:
    """List the namespaces, their quotas, and how many queues they have."""
    view = view_of(broker)
    rows = view.namespaces()
    if not rows:
        complain("there are no namespaces")
        raise typer.Exit(1)
    if json:
        for row in rows:
            write_json_line({**row._asdict(), "queues": len(view.queues(row.name))})
        return
    heads = ["queues", "most queues", "most bytes"]
    made = table("namespace", *heads, "created", right=heads)
    for row in rows:
        made.add_row(
            row.name,
            number(len(view.queues(row.name))),
            number(row.max_queues) if row.max_queues else "",
            size(row.max_bytes) if row.max_bytes else "",
            moment(row.created_at) if row.created_at else "",
        )
    show_table(made)


@namespaces_app.command("create")
def create_namespace(
    broker: BrokerUrl,
    name: _Name,
    max_queues: Annotated[int, typer.Option(min=0, help="Its quota of queues; 0: none.")] = 0,
    max_bytes: Annotated[
        int, typer.Option(metavar="SIZE", parser=bytes_of, help="Its quota of bytes; 0: none.")
    ] = 0,
    setting: Settings = None,
    json: AsJson = False,
) -> None:
    """Make a namespace. Its new queues begin with the settings that are given."""
    with remote(broker) as opened:
        made = opened.create_namespace(
            name, defaults=settings_of(setting), max_queues=max_queues, max_bytes=max_bytes
        )
    if json:
        write_json({**made._asdict(), "defaults": dict(made.defaults)})
    else:
        say(f"Namespace {made.name} is made.")


@namespaces_app.command("delete")
def delete_namespace(
    broker: BrokerUrl,
    name: _Name,
    force: Annotated[bool, typer.Option("--force", help="With all its queues.")] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Delete a namespace; with its queues only if forced, and after asking."""
    with remote(broker) as opened:
        if force:
            confirm(f"Delete namespace {name} with all its queues and messages?", yes=yes)
        opened.delete_namespace(name, force=force)
    if json:
        write_json({"name": name, "deleted": True})
    else:
        say(f"Namespace {name} is deleted.")
