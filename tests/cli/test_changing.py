"""`penstock redrive`, `seek` and `compact`."""

from pathlib import Path

import pytest

import penstock
from tests.cli.command_line import CommandLine


def dead_ids(path: Path) -> list[str]:
    with penstock.open(path, read_only=True) as queue:
        return [letter.id for letter in queue.dead()]


# -- redrive ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chosen",
    [
        ["--all"],
        ["--reason", "Connection"],
        ["--reason", "Value"],
        ["--since", "2020-01-01"],
        ["--until", "2020-01-01"],
        ["--since", "2099-01-01"],
        ["--all", "--limit", "1"],
    ],
)
def test_dry_run_names_what_is_redriven_then(
    command: CommandLine, lived_in: Path, chosen: list[str]
) -> None:
    before = dead_ids(lived_in)
    dry = command("redrive", lived_in, *chosen, "--dry-run", "--json")
    assert dead_ids(lived_in) == before
    real = command("redrive", lived_in, *chosen, "--json")
    named = [line["id"] for line in dry.json_lines]
    assert real.json["redriven"] == len(named)
    assert dead_ids(lived_in) == [id_ for id_ in before if id_ not in named]
    assert dry.code == real.code == (0 if named else 1)


def test_redrive_by_id(command: CommandLine, lived_in: Path) -> None:
    first, second = dead_ids(lived_in)
    assert command("redrive", lived_in, second, "--dry-run", "--json").json_lines[0]["id"] == second
    answer = command("redrive", lived_in, second)
    assert (answer.code, answer.text) == (0, "1 redriven: ready again in group 'main'.\n")
    assert dead_ids(lived_in) == [first]


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_redrive_of_what_is_not_dead_is_refused(
    command: CommandLine, lived_in: Path, dry_run: list[str]
) -> None:
    (ready, *_) = command("peek", lived_in, "--json").json_lines
    answer = command("redrive", lived_in, *dead_ids(lived_in), ready["id"], *dry_run)
    assert answer.code == 1
    assert "is not a dead letter" in answer.err
    assert len(dead_ids(lived_in)) == 2


@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_a_dry_run_without_a_choice_shows_all(
    command: CommandLine, lived_in: Path, verb: str
) -> None:
    dry = command(verb, lived_in, "--dry-run", "--json")
    assert [line["id"] for line in dry.json_lines] == dead_ids(lived_in)
    assert dry.code == 0
    limited = command(verb, lived_in, "--dry-run", "--limit", 1, "--json")
    assert [line["id"] for line in limited.json_lines] == dead_ids(lived_in)[:1]


@pytest.mark.parametrize("arguments", [[], ["--all", "--reason", "x"], ["--limit", "0", "--all"]])
def test_redrive_wants_to_know_which(
    command: CommandLine, lived_in: Path, arguments: list[str]
) -> None:
    assert command("redrive", lived_in, *arguments).code == 2
    assert len(dead_ids(lived_in)) == 2


# -- seek ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "ready"),
    [
        (["--to", "beginning"], 3),
        (["--to", "end"], 0),
        (["--seq", "2"], 2),
        (["--time", "2020-01-01"], 3),
        (["--time", "2099-01-01T00:00:00Z"], 0),
    ],
)
def test_seek(command: CommandLine, path: Path, place: list[str], ready: int) -> None:
    with penstock.open(path) as queue:
        queue.enqueue_batch([b"a", b"b", b"c"])
        queue.dequeue_batch(2)
    answer = command("seek", path, *place, "--json")
    assert answer.json == {"group": "main", "seq": 4 - ready, "ready": ready}
    with penstock.open(path) as queue:
        assert queue.stats().ready == ready


def test_seek_to_an_id(command: CommandLine, path: Path) -> None:
    with penstock.open(path) as queue:
        _, second, _ = queue.enqueue_batch([b"a", b"b", b"c"])
    answer = command("seek", path, "--id", second)
    assert answer.text == "Group 'main' continues at message 2; 2 ready.\n"
    assert command("dequeue", path).out == b"b\n"


@pytest.mark.parametrize("place", [[], ["--to", "end", "--seq", "1"], ["--to", "nowhere"]])
def test_seek_wants_one_place(command: CommandLine, path: Path, place: list[str]) -> None:
    assert command("seek", path, *place).code == 2


# -- compact ---------------------------------------------------------------------------------------


def test_compact_gives_space_back(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with penstock.open(path, segment_bytes=4096) as queue:
        for _ in range(500):
            queue.enqueue(bytes(100))
        queue.dequeue_batch(499)
    size = sum(file.stat().st_size for file in (path / "messages").iterdir())
    answer = command("compact", path, "--json")
    after = sum(file.stat().st_size for file in (path / "messages").iterdir())
    assert answer.code == 0
    assert answer.json["segments_removed"] > 5
    assert 0 < answer.json["bytes_freed"] <= size - after
    assert "0 B freed" in command("compact", path).text
    assert command("dequeue", path, "--all", "--json").json_lines[0]["seq"] == 500


# -- the one writer --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [["enqueue", "x"], ["dequeue"], ["redrive", "--all"], ["seek", "--to", "end"], ["compact"]],
    ids=lambda line: line[0],
)
def test_second_writer_is_told_of_the_first(
    command: CommandLine, path: Path, line: list[str]
) -> None:
    with penstock.open(path):
        answer = command(line[0], path, *line[1:])
    assert answer.code == 2
    assert "is being written by process" in answer.err
    assert answer.err.count("\n") == 1
