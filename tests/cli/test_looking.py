"""The commands that look: what they show, and that they change nothing."""

import shutil
from pathlib import Path

import pytest

import penstock
from penstock.cli.app import app
from penstock.ledger.settings import OnCorruption
from penstock.queue import State
from tests.cli.command_line import CommandLine, listing


def looks(path: Path) -> list[list[object]]:
    """Every command that looks, in every form."""
    with penstock.open(path, read_only=True) as queue:
        (dead, *_) = queue.dead()
    plain: list[list[object]] = [
        ["stats", path],
        ["inspect", path],
        ["inspect", path, "--all-settings"],
        ["peek", path],
        ["tail", path, "--once"],
        ["verify", path],
        ["why", path, dead.id],
        ["history", path, dead.id],
        ["redrive", path, "--all", "--dry-run"],
        *(["peek", path, "--state", state.name.lower()] for state in State),
    ]
    return plain + [[*line, "--json"] for line in plain]


def test_looking_changes_nothing_on_disk(command: CommandLine, lived_in: Path) -> None:
    before = listing(lived_in)
    for line in looks(lived_in):
        assert command(*line).code in (0, 1)
    assert listing(lived_in) == before


@pytest.mark.parametrize("published", [0, 1])
@pytest.mark.parametrize("closed", [False, True])
def test_looking_at_a_queue_with_logs_that_have_no_segment_yet(
    command: CommandLine, tmp_path: Path, published: int, closed: bool
) -> None:
    with penstock.open(tmp_path / "q") as queue:
        for _ in range(published):
            queue.enqueue("a")
        if closed:
            queue.close()
        for name in ("stats", "inspect", "verify", "groups", "top --once", "tail --once"):
            first, *rest = name.split()
            assert command(first, tmp_path / "q", *rest).code == 0, name
        logs = [one["log"] for one in command("inspect", tmp_path / "q", "--json").json["segments"]]
    assert logs == ["messages"] * published


@pytest.mark.parametrize("line", ["top {} --once", "queues list {}", "namespaces list {}"])
@pytest.mark.parametrize("kind", ["missing", "file", "other"])
def test_place_that_is_no_broker_and_no_queue_is_refused(
    command: CommandLine, tmp_path: Path, line: str, kind: str
) -> None:
    place = tmp_path / kind
    if kind == "file":
        place.write_text("not a queue")
    elif kind == "other":
        (place / "documents").mkdir(parents=True)
    answer = command(*(word.format(place) for word in line.split()))
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, b"", 1)
    assert str(place) in answer.err
    assert ("does not exist" if kind == "missing" else "is not") in answer.err


@pytest.mark.parametrize("name", ["queues", "namespaces"])
def test_queue_in_place_of_a_broker_is_named_as_one(
    command: CommandLine, path: Path, name: str
) -> None:
    answer = command(name, "list", path)
    assert (answer.code, answer.out) == (2, b"")
    assert answer.err == f"penstock: {path} is a queue, not a broker's data directory\n"


def test_looking_beside_a_writer(command: CommandLine, lived_in: Path) -> None:
    with penstock.open(lived_in) as writer:
        writer.enqueue(b"now")
        before = listing(lived_in)
        for line in looks(lived_in):
            assert command(*line).code in (0, 1), line
        assert listing(lived_in) == before


def test_looking_at_damage_changes_nothing_and_warns(command: CommandLine, lived_in: Path) -> None:
    damage(first_segment(lived_in))
    before = listing(lived_in)
    for line in looks(lived_in):
        command(*line)
    assert listing(lived_in) == before
    assert "warning: damage: messages/" in command("peek", lived_in, "--state", "done").err


def first_segment(path: Path) -> Path:
    return sorted((path / "messages").glob("*.log"))[0]


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[300] ^= 1
    file.write_bytes(data)


# -- one by one ------------------------------------------------------------------------------------


def test_stats_counts_each_group(command: CommandLine, lived_in: Path) -> None:
    found = command("stats", lived_in, "--json").json
    assert found["published"] == 56
    assert {name: found[name] for name in ("scheduled", "leased", "parked", "dead", "acked")} == {
        "scheduled": 1,
        "leased": 1,
        "parked": 1,
        "dead": 2,
        "acked": 2,
    }
    assert found["groups"]["main"]["dead"] == 2
    assert found["groups"]["audit"]["acked"] == 5
    text = command("stats", lived_in).text
    assert "56 messages" in text
    assert "audit" in text


def test_stats_sees_what_has_become_due_since_the_writer_left(
    command: CommandLine, path: Path
) -> None:
    with penstock.open(path) as queue:
        queue.enqueue(b"soon", delay=0.001)
        queue.enqueue(b"keyed", key="k")
    found = command("stats", path, "--json").json
    assert (found["ready"], found["scheduled"]) == (2, 0)


def test_peek_shows_what_comes_next(command: CommandLine, lived_in: Path) -> None:
    (first, second) = command("peek", lived_in, "-n", 2, "--json").json_lines
    assert [first["payload"], second["payload"]] == ["plain 2", "plain 3"]
    assert first["payload_encoding"] == "utf-8"


def test_peek_by_state(command: CommandLine, lived_in: Path) -> None:
    def payloads(state: str) -> list[str]:
        lines = command("peek", lived_in, "--state", state, "--json").json_lines
        return [line["payload"] for line in lines]

    assert payloads("scheduled") == ["later"]
    assert payloads("leased") == ["first of a key"]
    assert payloads("parked") == ["second of a key"]
    assert payloads("expired") == ["gone"]
    assert payloads("cancelled") == []
    assert payloads("dead") == ["plain 0", "plain 1"]


def test_binary_payload_is_base64_in_json(command: CommandLine, lived_in: Path) -> None:
    lines = command("peek", lived_in, "--state", "done", "--json", "-n", 100).json_lines
    (binary,) = [line for line in lines if line["payload_encoding"] == "base64"]
    assert binary["payload"] == "/wA="
    assert binary["headers"] == {"kind": "binary"}


def test_what_is_shown_is_harmless_to_a_terminal(command: CommandLine, lived_in: Path) -> None:
    for line in (
        ["peek", lived_in, "--state", "done", "-n", 100],
        ["tail", lived_in, "--once", "-n", 100],
    ):
        text = command(*line).text
        assert "\x1b" not in text
        assert "umlauts: ä" in text


def test_nothing_to_peek_at_is_exit_code_1(command: CommandLine, path: Path) -> None:
    answer = command("peek", path)
    assert (answer.code, answer.out) == (1, b"")
    assert answer.err == "penstock: no message is ready in group 'main'\n"


def test_dead_letters_tell_their_reason(command: CommandLine, lived_in: Path) -> None:
    first, second = command("peek", lived_in, "--state", "dead", "--json").json_lines
    assert (first["reason"], first["attempts"], first["cause"]) == (
        "ConnectionError: refused",
        1,
        "nack",
    )
    assert second["headers"]["dlq.failure_reason"] == "ValueError: not a number"
    assert "ConnectionError: ref" in command("peek", lived_in, "--state", "dead").text


def test_why_and_history_of_a_dead_letter(command: CommandLine, lived_in: Path) -> None:
    (first, *_) = command("peek", lived_in, "--state", "dead", "--json").json_lines
    why = command("why", lived_in, first["id"], "--json").json
    assert (why["state"], why["code"]) == ("dead", "dead")
    assert why["details"]["attempts"] == 1
    assert "dead letter after 1 attempt" in command("why", lived_in, first["id"]).text
    tried = command("retries", lived_in, first["id"], "--json").json
    assert (tried["attempts"], tried["max_attempts"], tried["state"]) == (1, 1, "dead")
    assert tried["reason"] == first["reason"]
    assert "1 of 1" in command("retries", lived_in, first["id"]).text
    events = command("history", lived_in, first["id"], "--json").json_lines
    in_main = [event["event"] for event in events if event["group"] in ("main", None)]
    assert in_main == ["published", "leased", "dead"]
    assert len(command("history", lived_in, first["id"], "-g", "audit", "--json").json_lines) == 2
    assert "refused" in command("history", lived_in, first["id"]).text


def test_inspect_tells_of_files_segments_groups_and_settings(
    command: CommandLine, lived_in: Path
) -> None:
    found = command("inspect", lived_in, "--json").json
    assert found["settings"]["max_attempts"] == 1
    assert set(found["groups"]) == {"main", "audit"}
    segments = [segment for segment in found["segments"] if segment["log"] == "messages"]
    assert len(segments) > 1
    assert [segment["sealed"] for segment in segments][-2:] == [True, False]
    assert segments[0]["last_seq"] == segments[1]["first_seq"] - 1
    on_disk = {str(p.relative_to(lived_in)) for p in lived_in.rglob("*") if p.is_file()}
    assert {file["file"] for file in found["files"]} == on_disk
    assert {snapshot["file"] for snapshot in found["snapshots"]} <= on_disk
    text = command("inspect", lived_in).text
    assert all(word in text for word in ("max_attempts", "segment_bytes", "audit", "queue.json"))
    assert "lease_s" not in text
    assert "lease_s" in command("inspect", lived_in, "--all-settings").text


# -- verify ----------------------------------------------------------------------------------------


def test_verify_a_sound_queue(command: CommandLine, lived_in: Path) -> None:
    report = command("verify", lived_in, "--json").json
    assert report["sound"] is True
    assert report["problems"] == []
    assert report["entries"] > 56
    assert "is sound" in command("verify", lived_in).text


@pytest.mark.parametrize("on_corruption", ["quarantine", "stop"])
def test_verify_says_what_is_wrong_where(
    command: CommandLine, lived_in: Path, on_corruption: OnCorruption
) -> None:
    penstock.open(lived_in, on_corruption=on_corruption).close()
    for file in sorted((lived_in / "messages").glob("*.log"))[:2]:
        damage(file)
    answer = command("verify", lived_in, "--json")
    assert (answer.code, answer.json["sound"]) == (1, False)
    problems = answer.json["problems"]
    assert len(problems) == 2
    assert problems[0]["file"] == f"messages/{first_segment(lived_in).name}"
    assert 200 < problems[0]["offset"] <= 300
    assert problems[0]["first_lost_seq"] == problems[0]["last_lost_seq"]
    said = command("verify", lived_in)
    assert said.code == 1
    assert "2 problems" in said.text


def test_verify_and_stats_say_which_messages_went_with_a_missing_file(
    command: CommandLine, lived_in: Path
) -> None:
    for path in (lived_in / "messages").glob("*.log"):
        path.unlink()
    answer = command("verify", lived_in, "--json")
    assert (answer.code, answer.json["sound"]) == (1, False)
    lost = [p for p in answer.json["problems"] if p["file"].startswith("messages/")]
    assert lost[0]["first_lost_seq"] == 1
    assert not lost[0]["torn"]
    assert "lost" in command("stats", lived_in).err


def test_verify_knows_the_largest_payload_of_the_queue(
    command: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    with penstock.open(path, max_payload_bytes=64 << 20) as queue:
        queue.enqueue(b"small")
        queue.enqueue(bytes(40 << 20))
    assert command("verify", path).code == 0


# -- tables ----------------------------------------------------------------------------------------


def test_tables_fit_into_80_columns(command: CommandLine, lived_in: Path) -> None:
    for line in looks(lived_in):
        if "--json" not in line and line[0] not in ("tail", "verify", "why"):
            answer = command(*line)
            assert max((len(row) for row in answer.text.splitlines()), default=0) <= 80, line


# -- what is not there -----------------------------------------------------------------------------

NOT_OF_ONE_QUEUE = {
    *("serve", "worker", "top", "bench", "migrate", "migrate-store", "doctor"),
    *("demo", "torture"),
}
COMMANDS = sorted(
    {info.name or info.callback.__name__ for info in app.registered_commands if info.callback}
    - NOT_OF_ONE_QUEUE
)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_queue_there_is_one_sentence(command: CommandLine, tmp_path: Path, name: str) -> None:
    more: dict[str, list[str | Path]] = {
        "enqueue": ["x"],
        "publish": ["x"],
        "ack": ["receipt"],
        "nack": ["receipt"],
        "seek": ["--to", "end"],
        "redrive": ["--all"],
        "discard": ["--all", "--yes"],
        "cancel": ["0" * 26],
        "why": ["0" * 26],
        "retries": ["0" * 26],
        "history": ["0" * 26],
        "backup": [tmp_path / "backups"],
        "restore": [tmp_path / "restored"],
    }
    answer = command(name, tmp_path / "nowhere", *more.get(name, []))
    assert answer.code == 2
    assert answer.err.startswith(f"penstock: {tmp_path / 'nowhere'} does not exist")
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["why", "retries", "history"])
def test_no_such_message_is_exit_code_1(
    command: CommandLine, path: Path, lived_in: Path, name: str
) -> None:
    (message, *_) = command("peek", lived_in, "--json").json_lines
    answer = command(name, path, message["id"])
    assert answer.code == 1
    assert "another queue" in answer.err


def test_no_such_group_is_exit_code_1(command: CommandLine, lived_in: Path) -> None:
    answer = command("peek", lived_in, "-g", "nobody")
    assert answer.code == 1
    assert "there is no group 'nobody'" in answer.err


def test_a_copy_of_a_queue_can_be_looked_at(
    command: CommandLine, lived_in: Path, tmp_path: Path
) -> None:
    shutil.copytree(lived_in, tmp_path / "copy")
    assert command("stats", tmp_path / "copy", "--json").json["published"] == 56
