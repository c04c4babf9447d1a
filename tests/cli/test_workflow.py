"""`penstock workflow show`."""

from pathlib import Path

from penstock.tasks import Tasks, chain
from tests.cli.command_line import CommandLine
from tests.server.running import RunningServer


def test_a_workflow_is_shown(tmp_path: Path, command: CommandLine) -> None:
    with Tasks(tmp_path) as tasks:
        one = tasks.add(lambda: 1, name="one")
        run = chain(one.s(), one.si()).enqueue(id="order-7")
        tasks.run_pending(limit=1)
        assert run.state() == "running"
    path = tmp_path / "tasks"
    shown = command("workflow", "show", path, "order-7")
    assert shown.text.splitlines() == ["done   1 one  one", "ready  2 one  one  after 1 one"]
    assert "s0 --> s1" in command("workflow", "show", path, "order-7", "--as", "mermaid").text
    assert "s0 -> s1;" in command("workflow", "show", path, "order-7", "--as", "dot").text
    found = command("workflow", "show", path, "order-7", "--json").json
    assert [step["state"] for step in found["steps"]] == ["done", "ready"]
    missing = command("workflow", "show", path, "order-8")
    assert missing.code != 0 and "no workflow 'order-8'" in missing.err


def test_a_workflow_over_queues_is_shown(tmp_path: Path, command: CommandLine) -> None:
    with Tasks(tmp_path) as tasks:
        one = tasks.add(lambda: 1, name="one", queue="Web.Site")
        two = tasks.add(lambda: 2, name="two", queue="mail")
        chain(one.s(), two.si()).enqueue(id="order-7")
        tasks.run_pending(limit=1)
    shown = command("workflow", "show", tmp_path / "+web+++site", "order-7")
    assert shown.text.splitlines() == [
        "done   1 one  one in Web.Site",
        "ready  2 two  two in mail  after 1 one",
    ]


def test_a_workflow_over_queues_of_a_broker_is_shown(tmp_path: Path, command: CommandLine) -> None:
    with RunningServer(tmp_path / "data") as running, Tasks(f"{running.url}/shop") as tasks:
        one = tasks.add(lambda: 1, name="one", queue="web")
        two = tasks.add(lambda: 2, name="two", queue="mail")
        chain(one.s(), two.si()).enqueue(id="order-7")
        shown = command("workflow", "show", f"{running.url}/shop/web", "order-7")
    assert shown.text.splitlines() == [
        "ready    1 one  one in web",
        "blocked  2 two  two in mail  after 1 one",
    ]
