"""Every Spark example runs, and prints what it is there to show."""

import runpy
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "spark"

PRINTS = {
    "archive_and_restore": [
        "archived some, not what is being written: True",
        "sound: True",
        "still in the live log: less than before: True",
        "live and archive together: 1000",
        "restored: 100 first: order 0 0",
    ],
    "follow_a_queue": ["after monday: 50 messages", "after tuesday: 100 messages"],
    "read_a_queue": [
        "messages: 100",
        "urgent: 10",
        "first: ['order 0', 'order 1']",
        "done: 30",
        "ready: 70",
    ],
    "redrive_dead_letters": [
        "1 tried again, 2 left",
        "2 mended, 0 left",
        "ready: ['amount=1', 'amount=3', 'amount=5']",
    ],
    "report_on_a_queue": [
        "done: 96 dead: 4",
        "why: no such customer 4",
        "a page by itself: True",
    ],
    "write_once": [
        "first run: 1000 messages",
        "again, after a crash, say: 1000 messages",
        "most urgent first: 9 invoice ",
    ],
}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_prints_what_it_shows(
    example: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # the tests go on with it
    out = StringIO()
    with redirect_stdout(out):
        runpy.run_path(str(example), run_name="__main__")
    assert out.getvalue().splitlines() == PRINTS[example.stem]


def test_every_example_is_known() -> None:
    assert sorted(PRINTS) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
