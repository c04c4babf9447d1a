"""`penstock keys`: the API keys of a broker, in its data directory or database."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from penstock.checking import is_database_url
from penstock.cli.formatting import Json, local_time, printable
from penstock.cli.options import AsJson, argument, command_group, option
from penstock.cli.targets import local_path
from penstock.cli.terminal import (
    exit_no,
    print_json,
    print_line,
    print_list,
    print_result,
    print_stderr,
    table,
)
from penstock.extras import requires_extra
from penstock.model import NS

if TYPE_CHECKING:
    from penstock.broker.keys import Key
    from penstock.broker.stores import KeyAdmin

keys_app = command_group("keys", "List, create and revoke the API keys of a broker.")

_SHORT = 20  # characters: a shorter key is accepted with a warning

_Store = Annotated[
    str, argument("STORE", "Data directory of the broker, or its database: postgresql://….")
]
_Schema = Annotated[str, option("Schema of the tables in a database.", metavar="NAME")]


class VerbName(StrEnum):
    """The verbs of a key; a copy, because the broker may not be installed here."""

    PUBLISH = "publish"
    CONSUME = "consume"
    MANAGE = "manage"
    READ = "read"


@keys_app.command("list")
def list_keys(store: _Store, schema: _Schema = "penstock", json: AsJson = False) -> None:
    """List the keys and what each may do, without their secrets. Exits with 1 if there are none."""
    keys = _key_admin(store, schema).list()
    if not keys:
        exit_no("there are no keys: every client that reaches the broker may do everything")

    def row(key: "Key") -> list[str]:
        return [
            key.id,
            printable(key.label),
            " ".join(sorted(key.verbs)),
            "all" if key.namespaces is None else " ".join(sorted(key.namespaces)),
            local_time(key.created_at_ns / NS),
            local_time(key.revoked_at_ns / NS) if key.revoked_at_ns else "",
        ]

    made = table("id", "label", "verbs", "namespaces", "created", "revoked")
    print_list(keys, json, _key_json, made, row)


@keys_app.command("create")
def create_key(
    store: _Store,
    label: Annotated[str, option("What the key is for.", "--label", "-l")] = "",
    verb: Annotated[
        list[VerbName] | None,
        option(
            "What the key may do: publish, consume, manage or read; may be repeated. Default: all.",
            *("--verb", "-v"),
            metavar="VERB",
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        option(
            "Namespace it may use; may be repeated. Default: all.",
            "--namespace",
            "-n",
            metavar="NAME",
        ),
    ] = None,
    value: Annotated[
        str | None,
        option("Use this key instead of a new one; - reads it from standard input.", metavar="KEY"),
    ] = None,
    sqs: Annotated[
        bool, option("Let SQS clients use it as their secret access key.", "--sqs")
    ] = False,
    schema: _Schema = "penstock",
    json: AsJson = False,
) -> None:
    """Create a key and print it. It cannot be shown again.

    As soon as there is a key, the broker refuses requests without one.
    """
    verbs = [one.value for one in verb or VerbName]
    if value == "-":
        value = sys.stdin.readline().rstrip("\r\n")
    key, token = _key_admin(store, schema).create(label, verbs, namespace or None, value, signs=sqs)
    if value is not None:
        if len(value) < _SHORT:
            print_stderr(f"a key of fewer than {_SHORT} characters can be guessed")
        print_result(json, _key_json(key), f"Key {key.id} created.")
    elif json:
        print_json({**_key_json(key), "key": token})
    else:
        print_line(token)
        print_stderr(
            "this key is shown only now: keep it; clients send it as X-Api-Key, "
            "or read it from PENSTOCK_KEY"
        )
        if sqs:
            print_stderr(f"SQS clients: access key id {key.id}, and the key as secret access key")


@keys_app.command("revoke")
def revoke_key(
    store: _Store,
    key_id: Annotated[str, argument("ID", "Id of the key, as listed.")],
    schema: _Schema = "penstock",
    json: AsJson = False,
) -> None:
    """Revoke a key at once."""
    key = _key_admin(store, schema).revoke(key_id)
    print_result(json, _key_json(key), f"Key {key.id} revoked.")


def _key_admin(store: str, schema: str) -> "KeyAdmin":
    with requires_extra("server"):
        from penstock.broker.stores import KeyAdmin
    return KeyAdmin(store if is_database_url(store) else local_path(store), schema)


def _key_json(key: "Key") -> Json:
    return {
        "id": key.id,
        "label": key.label,
        "verbs": sorted(key.verbs),
        "namespaces": None if key.namespaces is None else sorted(key.namespaces),
        "created_at": key.created_at_ns / NS,
        "revoked_at": key.revoked_at_ns / NS if key.revoked_at_ns else None,
        "sqs": bool(key.signing_digest),
    }
