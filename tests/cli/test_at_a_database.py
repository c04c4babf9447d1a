"""Commands that are given the URL of a PostgreSQL database."""

from collections.abc import Callable

import pytest

from tests.cli.command_line import CommandLine
from tests.harness.postgres_server import PostgresServer


def test_keys_of_a_schema_are_made_listed_and_revoked(
    command: CommandLine, postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    here, elsewhere = ["--schema", new_schema()], ["--schema", new_schema()]
    url = postgres_server.url
    assert command("keys", "create", url, "-l", "shop", *here).text.startswith("psk_")
    (listed,) = command("keys", "list", url, "--json", *here).json_lines
    assert listed["label"] == "shop"
    assert command("keys", "list", url, *elsewhere).code == 1
    assert command("keys", "revoke", url, listed["id"], *elsewhere).code == 2
    assert command("keys", "revoke", url, listed["id"], "--json", *here).json["revoked_at"] > 0


@pytest.mark.parametrize(
    "line",
    [
        ["stats"],
        ["dequeue"],
        ["peek"],
        ["verify"],
        ["top", "--once"],
        ["queues", "list"],
        ["compact"],
    ],
)
def test_commands_for_directories_and_brokers_refuse_a_database(
    command: CommandLine, line: list[str]
) -> None:
    refused = command(*line, "postgresql://ann:secret@db1,db2/shop")
    assert refused.code == 2
    assert "secret" not in refused.err, "the password is not shown"
    assert "penstock serve --store" in refused.err
