"""`penstock pause`, `resume`, `purge`, `cancel`, `discard` and `groups`, by path and by URL."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import penstock
from penstock.cli.app import app
from penstock.client import connect_broker
from penstock.model import Receipt
from tests.cli.command_line import CommandLine
from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(params=["path", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A queue with three messages, one of them dead."""
    if request.param == "url":
        server: RunningServer = request.getfixturevalue("server")
        with connect_broker(server.url) as broker:
            if any(space.name == "shop" for space in broker.namespaces()):
                broker.delete_namespace("shop", force=True)
            broker.create_queue("shop/orders", max_attempts=1)
        place = f"{server.url}/shop/orders"
        opened = penstock.open(place)
    else:
        place = str(tmp_path / "orders")
        opened = penstock.open(place, max_attempts=1)
    with opened as queue:
        queue.enqueue_batch([b"1", b"2", b"3"])
        queue.nack(queue.lease(), "no luck")
    return place


def test_pause_and_resume(command: CommandLine, place: str) -> None:
    assert command("pause", place).code == 0
    assert command("stats", place, "--json").json["paused"] is True
    assert command("dequeue", place).code == 1
    assert command("resume", place, "--json").json == {"paused": False}
    assert command("dequeue", place).text == "2\n"


def test_purge_asks_and_empties(command: CommandLine, place: str) -> None:
    refused = command("purge", place)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert command("stats", place, "--json").json["ready"] == 2
    assert command("purge", place, "--yes", "--json").json == {"purged": 2}
    counts = command("stats", place, "--json").json
    assert (counts["ready"], counts["dead"]) == (0, 1)


@pytest.mark.parametrize(("typed", "ready"), [("y\n", 0), ("n\n", 2), ("\n", 2)])
def test_what_is_typed_at_a_terminal_decides(
    command: CommandLine, place: str, monkeypatch: pytest.MonkeyPatch, typed: str, ready: int
) -> None:
    monkeypatch.setattr("penstock.cli.terminal.can_ask", lambda: True)
    answer = command("purge", place, stdin=typed.encode())
    assert "Remove all waiting messages" in answer.err
    assert answer.code == (0 if ready == 0 else 1)
    assert command("stats", place, "--json").json["ready"] == ready


def test_cancel(command: CommandLine, place: str) -> None:
    id_ = command("peek", place, "--json").json_lines[0]["id"]
    assert command("cancel", place, id_, "--json").json == {"cancelled": [id_]}
    assert command("stats", place, "--json").json["ready"] == 1
    assert command("cancel", place, id_).code == 1
    assert command("cancel", place, "nonsense").code in (1, 2)


def test_discard(command: CommandLine, place: str) -> None:
    assert command("discard", place).code == 2
    assert command("discard", place, "--all").code == 2  # nobody can be asked
    assert command("discard", place, "--reason", "other", "-y").code == 1
    answer = command("discard", place, "--reason", "luck", "-y", "--json")
    assert answer.json == {"group": "main", "discarded": 1}
    assert command("stats", place, "--json").json["dead"] == 0


def test_groups(command: CommandLine, place: str) -> None:
    made = command("groups", "create", place, "audit", "--json")
    assert made.json == {"group": "audit", "ready": 3}
    assert command("groups", "create", place, "late", "--to", "end").code == 0
    assert command("groups", "create", place, "x", "--to", "end", "--seq", 1).code == 2
    listed = command("groups", place, "--json").json_lines
    assert {line["group"]: line["ready"] for line in listed} == {"main": 2, "audit": 3, "late": 0}
    assert "audit" in command("groups", "list", place).text
    assert command("groups", "delete", place, "audit").code == 2
    assert command("groups", "delete", place, "audit", "--yes").code == 0
    assert command("groups", "delete", place, "audit", "--yes").code == 1
    assert len(command("groups", place, "--json").json_lines) == 2


# -- receipts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ack", "nack"])
@pytest.mark.parametrize("form", ["text", "object", "lines", "list", "stdin"])
def test_a_receipt_is_text_or_what_lease_printed(
    command: CommandLine, place: str, verb: str, form: str
) -> None:
    leased = command("lease", place, "-n", 2, "--json")
    lines = leased.text.splitlines()
    receipts = [line["receipt"] for line in leased.json_lines]
    arguments = {
        "text": receipts,
        "object": lines,
        "lines": [leased.text],
        "list": [f"[{','.join(lines)}]"],
        "stdin": ["-"],
    }[form]
    answer = command(verb, place, *arguments, "--json", stdin=leased.out)
    assert answer.json == {f"{verb}ed": 2}


@pytest.mark.parametrize("verb", ["ack", "nack"])
@pytest.mark.parametrize("begins", ["-r", "-h", "--", "-j"])
def test_a_receipt_that_looks_like_an_option_is_a_receipt(
    command: CommandLine, path: Path, verb: str, begins: str
) -> None:
    """Receipts are base64 for URLs, which has a minus: one of 64 begins with it."""
    made_up = f"{begins}{'A' * (len(Receipt(1, 0, 1, 1, 1).pack()) - len(begins))}"
    answer = command(verb, path, made_up, "--json")
    assert answer.code == 1
    assert "receipt" in answer.err and "option" not in answer.err


@pytest.mark.parametrize("wrong", ['{"id": "x"}', "{", "[1]", "-"])
def test_what_is_no_receipt_is_refused(command: CommandLine, place: str, wrong: str) -> None:
    answer = command("ack", place, wrong)
    assert answer.code == 2
    assert "receipt" in answer.err


# -- help and completion ---------------------------------------------------------------------------

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
LINES = [
    *([name] for name in COMMANDS),
    *(
        [name, inner]
        for name, group in COMMANDS.items()
        for inner in getattr(group, "commands", ())
    ),
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_every_command_knows_h(command: CommandLine, line: list[str]) -> None:
    answer = command(*line, "-h")
    assert answer.code == 0
    assert f"Usage: penstock {' '.join(line)}" in answer.text


def test_a_shell_completes_commands(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "penstock pa")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setattr(sys, "argv", ["penstock"])
    assert "pause" in command().text.split()


# -- units -----------------------------------------------------------------------------------------


def test_settings_and_quotas_take_units(command: CommandLine, server: RunningServer) -> None:
    made = command(
        "queues", "create", server.url, "units/q", "-s", "lease_s=1m", "-s", "segment_bytes=1MiB",
        "--json",
    )  # fmt: skip
    settings = made.json["settings"]
    assert (settings["lease_s"], settings["segment_bytes"]) == (60, 1 << 20)
    space = command("namespaces", "create", server.url, "sized", "--max-bytes", "64MB", "--json")
    assert space.json["max_bytes"] == 64_000_000
    wrong = command("queues", "change", server.url, "units/q", "-s", "lease_s=soon")
    assert wrong.code == 2
    assert "250ms" in wrong.err
