"""Who works on the messages of a queue, and why messages died."""

from pathlib import Path

import penstock
from tests.cli.command_line import CommandLine


def test_consumers_are_shown_with_their_leases(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with penstock.open(path) as queue:
        queue.enqueue_batch([b"x"] * 5)
        assert command("consumers", path).code == 1
        held = queue.lease(3, holder="ann")
        queue.lease(1)
        queue.sync()
        found = command("consumers", path, "--json").json
        assert [(one["holder"], one["leases"]) for one in found["holders"]] == [("ann", 3), ("", 1)]
        assert found["held"][0]["deadline_at"]
        text = command("consumers", path).text
        assert "ann" in text and "(no name)" in text and held[0].id in text


def test_dead_letters_are_shown_by_reason(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with penstock.open(path, max_attempts=1) as queue:
        queue.enqueue_batch([b"x"] * 3)
        for number, leased in enumerate(queue.lease(3)):
            queue.nack(leased, f"no answer in {number} s" if number else "")
    found = command("reasons", path, "--json").json
    assert [(one["reason"], one["messages"]) for one in found["reasons"]] == [
        ("no answer in # s", 2),
        ("", 1),
    ]
    text = command("reasons", path).text
    assert "no answer in # s" in text and "(no reason given)" in text
    assert command("reasons", path, "-g", "main").code == 0
    with penstock.open(path) as queue:
        queue.discard()
    assert command("reasons", path).code == 1


def test_limits_are_shown_with_what_is_used(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with penstock.open(
        path, max_messages=5, max_in_flight=2, tenant_rate_per_s=1e-6, tenant_burst=2
    ) as queue:
        queue.enqueue(b"x", tenant="acme")
        queue.lease()
        queue.sync()
        found = {one["name"]: one for one in command("limits", path, "--json").json["limits"]}
        used = {name: (round(one["used"], 3), one["most"]) for name, one in found.items()}
        assert used["max_messages"] == (1, 5) and used["max_in_flight"] == (1, 2)
        assert used["tenant_burst"] == (1, 2)
        text = command("limits", path).text
        assert "tenant_burst" in text and "'acme'" in text
