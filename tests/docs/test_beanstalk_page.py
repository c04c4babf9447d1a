"""The beanstalk page matches the code: commands, priorities, limits and metrics."""

import re
from pathlib import Path

from penstock.server.beanstalk import tubes
from penstock.server.beanstalk.commands import NAMES
from penstock.server.beanstalk.listener import series
from penstock.server.beanstalk.mapping import PRI_HEADER, headers_of, priority_of
from tests.docs.pages import DOCS, quantity, rows_with, unquoted
from tests.server.beanstalk.wire import beanstalk_server, listener_of

TEXT = re.sub(r"\s+", " ", (DOCS / "beanstalk.md").read_text())


def test_every_command_is_named() -> None:
    listed = TEXT.partition("All commands of the protocol")[2].partition("`tests/")[0]
    assert set(re.findall(r"`([a-z-]+)`", listed)) == set(NAMES)


def test_every_step_of_priorities_is_as_it_is_told() -> None:
    rows = rows_with("beanstalk.md", "beanstalk", "usual")
    assert len(rows) == 10
    for row in rows:
        bounds = re.findall(r"[\d,]+", row["beanstalk"])
        first, last = (int(quantity(bounds[index])) for index in (0, -1))
        assert priority_of(first) == priority_of(last) == int(row["queue"])
        assert first == 0 or priority_of(first - 1) == int(row["queue"]) + 1
        assert PRI_HEADER not in (headers_of(int(quantity(row["usual"])), 60) or {})


def test_the_settings_of_new_tubes_are_told() -> None:
    for name in tubes.SETTINGS:
        assert f"`{name}`" in TEXT


def test_every_series_is_listed_with_its_labels() -> None:
    found = {}
    for family in series({"put": 1}, {"NOT_FOUND": 1}, connections=0, reserved=0, waiting=0):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = set(family.samples[0].labels)
    stated = {
        unquoted(row["series"]): {one for one in unquoted(row["labels"]).split(", ") if one}
        for row in rows_with("beanstalk.md", "series", "labels")
    }
    assert stated == found


def test_the_example_runs(tmp_path: Path) -> None:
    page = (DOCS / "beanstalk.md").read_text()
    (example,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with beanstalk_server(tmp_path / "data") as server:
        names: dict[str, object] = {}
        exec(example.replace("11300", str(listener_of(server).port)), names)
        assert "job" in names
