"""`penstock keys`: the API keys of a broker, in its data directory."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.default_command import group_settings
from penstock.cli.extras import needing
from penstock.cli.opening import files_of
from penstock.cli.parameters import AsJson
from penstock.cli.terminal import complain, say, show_table, table, write_json, write_json_line
from penstock.cli.words import moment, plain
from penstock.model import NS

if TYPE_CHECKING:
    from penstock.broker.keys import Key, KeyFile

keys_app = typer.Typer(**group_settings("keys", "The API keys of a broker."))

_SHORT = 20  # characters: a shorter key is taken with a warning

_Data = Annotated[
    str,
    typer.Argument(metavar="DIR", help="The broker's data directory.", show_default=False),
]


class VerbName(StrEnum):
    """What a key may be good for; those of the broker, which may not be installed here."""

    PUBLISH = "publish"
    CONSUME = "consume"
    MANAGE = "manage"
    READ = "read"


@keys_app.command("list")
def list_keys(data: _Data, json: AsJson = False) -> None:
    """List the keys, and what each is good for. Their secrets are not kept, and so not shown."""
    keys = _key_file(data).list()
    if not keys:
        complain("there are no keys: whoever reaches the broker may do everything")
        raise typer.Exit(1)
    if json:
        for key in keys:
            write_json_line(_key_json(key))
        return
    made = table("id", "label", "verbs", "namespaces", "created", "revoked")
    for key in keys:
        made.add_row(
            key.id,
            plain(key.label),
            " ".join(sorted(key.verbs)),
            "all" if key.namespaces is None else " ".join(sorted(key.namespaces)),
            moment(key.created_at_ns / NS),
            moment(key.revoked_at_ns / NS) if key.revoked_at_ns else "",
        )
    show_table(made)


@keys_app.command("create")
def create_key(
    data: _Data,
    label: Annotated[str, typer.Option("--label", "-l", help="What it is for.")] = "",
    verb: Annotated[
        list[VerbName] | None,
        typer.Option("--verb", "-v", help="What it may do; may be repeated. All if none is given."),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Where; may be repeated. Else everywhere.",
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Take this key, which clients have already; - reads it from standard input.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Make a key, and show it: now and never again.

    A broker that runs on the directory asks for keys from the first one on.
    """
    verbs = [one.value for one in verb or VerbName]
    if value == "-":
        value = sys.stdin.readline().rstrip("\r\n")
    key, token = _key_file(data).create(label, verbs, namespace or None, value)
    if value is not None:
        if len(value) < _SHORT:
            complain(f"a key of fewer than {_SHORT} characters can be guessed")
        if json:
            write_json(_key_json(key))
        else:
            say(f"Key {key.id} is there.")
        return
    if json:
        write_json({**_key_json(key), "key": token})
        return
    typer.echo(token)
    complain("this is shown only now: keep it; clients send it as X-Api-Key, or as PENSTOCK_KEY")


@keys_app.command("revoke")
def revoke_key(
    data: _Data,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As listed.", show_default=False)],
    json: AsJson = False,
) -> None:
    """Make a key good for nothing, at once."""
    key = _key_file(data).revoke(key_id)
    if json:
        write_json(_key_json(key))
    else:
        say(f"Key {key.id} is revoked.")


def _key_file(data: str) -> "KeyFile":
    with needing("server"):
        from penstock.broker.keys import KeyFile
    return KeyFile(files_of(data))


def _key_json(key: "Key") -> dict[str, Any]:
    return {
        "id": key.id,
        "label": key.label,
        "verbs": sorted(key.verbs),
        "namespaces": None if key.namespaces is None else sorted(key.namespaces),
        "created_at": key.created_at_ns / NS,
        "revoked_at": key.revoked_at_ns / NS if key.revoked_at_ns else None,
    }
