"""`penstock placement simulate`."""

import json
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine


def test_it_compares_a_table_with_a_hash(command: CommandLine) -> None:
    lines = command("placement", "simulate", "--queues", "1000", "--clusters", "9").text
    assert "table, evened out                100    10%" in lines
    assert "1,000 queues on 9 clusters, then 10: 100 to 100 queues" in lines


def test_a_table_is_read_and_the_new_one_is_in_the_json(
    command: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "table.json"
    file.write_text('{"shop/orders": "east", "shop/mail": "east"}')
    found = json.loads(command("placement", "simulate", "--table", file, "--json").text)
    assert found["clusters"] == ["east"]
    assert found["moves"] == [{"queue": "shop/mail", "source": "east", "target": "cluster-1"}]
    assert found["table"] == {"shop/orders": "east", "shop/mail": "cluster-1"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("nonsense", "is not JSON"),
        ("{}", "has no queues"),
        ('{"q": 1}', "the cluster of 'q' is not text"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(
    command: CommandLine, tmp_path: Path, content: str, reason: str
) -> None:
    file = tmp_path / "table.json"
    file.write_text(content)
    answer = command("placement", "simulate", "--table", file)
    assert answer.code == 2
    assert reason in answer.err
