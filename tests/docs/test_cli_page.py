"""The command-line pages list every command, option and JSON key, and no other."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import penstock
from penstock.cli.app import app
from penstock.cli.dead_letters import discard, redrive
from penstock.cli.files import inspect, verify
from penstock.cli.formatting import dead_letter_json, event_json, leased_json, message_json
from penstock.cli.look import retries, stats, why
from penstock.cli.messages import ack, enqueue, nack
from penstock.cli.operate import cancel, compact, pause, purge, resume, seek
from penstock.cli.schedules import (
    add_schedule,
    list_schedules,
    next_times,
    pause_schedule,
    remove_schedule,
    resume_schedule,
)
from penstock.cli.survey import consumers, limits, reasons
from tests.docs.pages import DOCS, rows_with

PAGE = "cli.md"
PAGES = [DOCS / PAGE, *sorted(DOCS.glob("cli-*.md"))]
TEXT = "".join(page.read_text() + "\n## end\n" for page in PAGES)
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]

GROUPS = (
    "groups",
    "schedules",
    "queues",
    "namespaces",
    "webhooks",
    "keys",
    "placement",
    "import",
    "workflow",
)  # those of `spark` are on its own page
OF_GROUPS: dict[str, Any] = {
    f"{group} {name}": command
    for group in GROUPS
    for name, command in COMMANDS[group].commands.items()
}


def section(command: str) -> str:
    """Return the section about one command."""
    found = re.search(rf"^###? `penstock {command}`\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"no section about {command}"
    return found[1]


def keys_of(column: str) -> list[str]:
    return [name for row in rows_with(PAGE, column) for name in re.findall(r"`(\w+)`", row[column])]


def test_every_command_has_a_section() -> None:
    assert sorted(re.findall(r"^## `penstock ([\w-]+)`", TEXT, re.MULTILINE)) == sorted(COMMANDS)


def test_every_command_of_a_group_has_a_section() -> None:
    listed = re.findall(r"^### `penstock (\w+ [\w-]+)`", TEXT, re.MULTILINE)
    assert sorted(listed) == sorted(OF_GROUPS)


def test_publish_is_enqueue() -> None:
    names = [[p.name for p in COMMANDS[name].params] for name in ("publish", "enqueue")]
    assert names[0] == names[1]
    assert "The same as [`enqueue`]" in section("publish")


@pytest.mark.parametrize("name", [*(name for name in COMMANDS if name != "publish"), *OF_GROUPS])
def test_every_argument_and_option_is_listed_in_order(name: str) -> None:
    known = []
    for parameter in {**COMMANDS, **OF_GROUPS}[name].params:
        if parameter.param_type_name == "argument":
            known.append(parameter.metavar)
        elif parameter.name != "help":
            known += sorted(parameter.opts, key=len, reverse=True)
    first_cells = re.findall(r"^\| (`[^|]*`) \|", section(name), re.MULTILINE)
    listed = [option for cell in first_cells for option in re.findall(r"`([^`]+)`", cell)]
    assert listed == known


@pytest.fixture
def queue(tmp_path: Path) -> penstock.Queue:
    queue = penstock.open(tmp_path / "queue", max_attempts=1)
    queue.enqueue(b"dead")
    queue.nack(queue.lease(), "no")
    return queue


def test_keys_of_messages_dead_letters_and_events(queue: penstock.Queue) -> None:
    with queue:
        (letter,) = queue.dead()
        message = list(message_json(letter.message))
        assert keys_of("key of a message") == message
        assert keys_of("further key of a dead letter") == list(dead_letter_json(letter))[12:]
        queue.enqueue(b"leased")
        (job,) = queue.lease()
        assert keys_of("further key of a leased message") == list(leased_json(job))[12:]
        assert keys_of("key of an event") == list(event_json(queue.history(letter.id)[0]))
        assert len(message) == 12


def test_keys_of_documents(queue: penstock.Queue, capsys: pytest.CaptureFixture[str]) -> None:
    with queue:
        queue.enqueue(b"dead too")
        queue.nack(queue.lease(), "no")
        letter, other = queue.dead()
        queue.enqueue_batch([b"1", b"2"])
        receipts = [job.receipt for job in queue.lease(2)]
    path = queue.path
    documents: dict[str, Callable[[], None]] = {
        "stats": lambda: stats(path, json=True),
        "inspect": lambda: inspect(path, json=True),
        "why": lambda: why(path, letter.id, json=True),
        "retries": lambda: retries(path, letter.id, json=True),
        "consumers": lambda: consumers(path, json=True),
        "reasons": lambda: reasons(path, json=True),
        "limits": lambda: limits(path, json=True),
        "verify": lambda: verify(path, json=True),
        "enqueue": lambda: enqueue(path, "x", json=True),
        "ack": lambda: ack(path, receipts[:1], json=True),
        "nack": lambda: nack(path, receipts[1:], json=True),
        "redrive": lambda: redrive(path, [letter.id], json=True),
        "discard": lambda: discard(path, [other.id], yes=True, json=True),
        "cancel": lambda: cancel(path, [letter.id], json=True),
        "seek": lambda: seek(path, seq=1, json=True),
        "pause": lambda: pause(path, json=True),
        "resume": lambda: resume(path, json=True),
        "purge": lambda: purge(path, yes=True, json=True),
        "schedules add": lambda: add_schedule(path, "beat", "x", every=60, json=True),
        "schedules list": lambda: list_schedules(path, json=True),
        "schedules next": lambda: next_times(path, "beat", json=True),
        "schedules pause": lambda: pause_schedule(path, "beat", json=True),
        "schedules resume": lambda: resume_schedule(path, "beat", json=True),
        "schedules remove": lambda: remove_schedule(path, "beat", yes=True, json=True),
        "compact": lambda: compact(path, json=True),
    }
    rows = rows_with(PAGE, "document of", "keys")
    assert [row["document of"].strip("`") for row in rows] == list(documents)
    for row in rows:
        name = row["document of"].strip("`")
        documents[name]()
        printed = capsys.readouterr().out
        assert re.findall(r"`(\w+)`", row["keys"]) == list(json.loads(printed)), name
