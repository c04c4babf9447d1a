"""`penstock enqueue`."""

from pathlib import Path

import pytest

import penstock
from tests.cli.command_line import CommandLine


def test_payload_from_the_argument_and_id_on_stdout(command: CommandLine, path: Path) -> None:
    answer = command("enqueue", path, "hello")
    assert answer.code == 0
    with penstock.open(path) as queue:
        assert queue.get(answer.text.strip()).payload == b"hello"


def test_payload_from_stdin_byte_for_byte(command: CommandLine, path: Path) -> None:
    payload = b"\x00\xff\r\n\n"
    assert command("enqueue", path, "-", stdin=payload).code == 0
    with penstock.open(path) as queue:
        assert [message.payload for message in queue.browse()] == [payload]


def test_payload_from_a_file(command: CommandLine, path: Path, tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(b"\x00from a file")
    assert command("enqueue", path, "--file", tmp_path / "payload").code == 0
    with penstock.open(path) as queue:
        assert [message.payload for message in queue.browse()] == [b"\x00from a file"]


def test_each_line_is_a_message(command: CommandLine, path: Path) -> None:
    lines = [b"%d" % n for n in range(2500)]
    answer = command("enqueue", path, "-", "--lines", "-p", 7, stdin=b"\n".join(lines))
    assert len(answer.text.splitlines()) == 2500
    with penstock.open(path) as queue:
        assert [(m.payload, m.priority) for m in queue.browse()] == [(line, 7) for line in lines]


def test_every_option_reaches_the_message(command: CommandLine, path: Path) -> None:
    answer = command(
        *("enqueue", path, "x" * 5000, "--priority", 9, "--delay", "2h", "--ttl", "1d"),
        *("-H", "kind=order", "-H", "note=a=b", "--key", "customer-7", "--max-attempts", 3),
        *("--content-type", "text/plain", "--compression", "gzip", "--json"),
    )
    with penstock.open(path) as queue:
        message = queue.get(answer.json["id"])
        assert queue.stats().storage.message_log_bytes < 1000
    assert message.payload == b"x" * 5000
    assert message.priority == 9
    assert message.deliver_at == pytest.approx(message.published_at + 7200)
    assert message.expires_at == pytest.approx(message.published_at + 7200 + 86400)
    assert message.headers == {"kind": "order", "note": "a=b"}
    assert message.key == "customer-7"
    assert message.max_attempts == 3
    assert message.content_type == "text/plain"


def test_delivery_at_a_time(command: CommandLine, path: Path) -> None:
    answer = command("enqueue", path, "x", "--deliver-at", "2099-01-01T00:00:00Z")
    with penstock.open(path) as queue:
        assert queue.get(answer.text.strip()).deliver_at == 4070908800


def test_duplicate_is_answered_with_the_first_id(command: CommandLine, path: Path) -> None:
    dedup = ("--dedup-id", "order-7", "--dedup-window", "10m")
    first = command("enqueue", path, "once", *dedup, "--json").json
    again = command("enqueue", path, "twice", *dedup, "--json").json
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert again["id"] == first["id"]
    said = command("enqueue", path, "thrice", *dedup)
    assert (said.code, said.text.strip()) == (0, first["id"])
    assert "seen before" in said.err


def test_queue_is_made_only_when_asked_to(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "new"
    answer = command("enqueue", path, "hello")
    assert (answer.code, path.exists()) == (2, False)
    assert "--create" in answer.err
    assert command("enqueue", path, "hello", "--create").code == 0
    assert command("dequeue", path).out == b"hello\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give the payload"),
        (["x", "--file", "y"], "given twice"),
        (["x", "--header", "nothing"], "NAME=VALUE"),
        (["x", "--delay", "soon"], "not a duration"),
        (["x", "--deliver-at", "soon"], "not a time"),
        (["x", "--priority", "10"], "0 to 9"),
        (["x", "--compression", "rar"], "rar"),
        (["x", "--delay", "1", "--deliver-at", "4070908800"], "not both"),
        (["x", "--lines", "--dedup-id", "a"], "--dedup-id"),
    ],
)
def test_wrong_usage_publishes_nothing(
    command: CommandLine, path: Path, arguments: list[str], says: str
) -> None:
    answer = command("enqueue", path, *arguments)
    assert answer.code == 2
    assert says in " ".join(answer.err.replace("│", " ").split())
    with penstock.open(path) as queue:
        assert queue.stats().published == 0


def test_missing_file_is_one_sentence(command: CommandLine, path: Path, tmp_path: Path) -> None:
    answer = command("enqueue", path, "--file", tmp_path / "nowhere")
    assert answer.code == 2
    assert answer.err == f"penstock: {tmp_path / 'nowhere'}: No such file or directory\n"


def test_a_message_comes_after_others(command: CommandLine, path: Path) -> None:
    first = command("enqueue", path, "1").text.strip()
    answer = command("enqueue", path, "2", "--after", first, "--after-failed", "run")
    with penstock.open(path) as queue:
        assert queue.state(answer.text.strip()) == "blocked"
        queue.cancel(first)
        assert queue.state(answer.text.strip()) == "ready"
