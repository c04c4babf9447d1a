"""`penstock schedules`: list, add, remove, pause, resume and next, by path and by URL."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client import connect_broker
from tests.cli.command_line import CommandLine
from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(params=["path", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "path":
        place = str(tmp_path / "orders")
        penstock.open(place).close()
        return place
    server: RunningServer = request.getfixturevalue("server")
    with connect_broker(server.url) as broker:
        if any(space.name == "shop" for space in broker.namespaces()):
            broker.delete_namespace("shop", force=True)
        broker.create_queue("shop/orders")
    return f"{server.url}/shop/orders"


def test_a_schedule_is_added_listed_paused_resumed_and_removed(
    command: CommandLine, place: str
) -> None:
    added = command(
        *("schedules", "add", place, "night", "payload", "--cron", "30 2 * * *"),
        *("--time-zone", "Europe/Berlin", "-H", "kind=report", "--misfire", "all", "--json"),
    )
    assert added.code == 0, added.err
    assert (added.json["cron"], added.json["misfire"]) == ("30 2 * * *", "all")
    assert added.json["next_at"] > 0
    assert command("schedules", "add", place, "beat", "x", "--every", "10m").code == 0
    listed = command("schedules", place, "--json").text.splitlines()
    assert [json.loads(line)["name"] for line in listed] == ["beat", "night"]
    assert "every 10 m 0 s" in command("schedules", "list", place).text
    with penstock.open(place) as queue:
        assert queue.schedule("night").message.headers == {"kind": "report"}
        assert queue.schedule("night").message.payload == b"payload"
    assert command("schedules", "pause", place, "night", "--json").json["paused"] is True
    assert "paused" in command("schedules", "list", place).text
    refused = command("schedules", "next", place, "night")
    assert (refused.code, refused.text) == (1, "")
    assert "paused" in refused.err
    assert command("schedules", "resume", place, "night", "--json").json["paused"] is False
    assert command("schedules", "remove", place, "night").code == 2  # it asks
    removed = command("schedules", "remove", place, "night", "--yes", "--json")
    assert removed.json == {"name": "night", "removed": True}
    missing = command("schedules", "remove", place, "night", "--yes")
    assert missing.code == 1
    assert "no schedule 'night'" in missing.err


def test_the_next_times_are_shown_in_the_zone_of_the_schedule(
    command: CommandLine, place: str
) -> None:
    command(
        *("schedules", "add", place, "leap", "x", "--cron", "0 12 29 2 *"),
        *("--time-zone", "Asia/Kolkata"),
    )
    lines = command("schedules", "next", place, "leap").text.splitlines()
    assert len(lines) == 10
    assert all("-02-29 12:00:00 IST (+0530)" in line for line in lines)
    document = command("schedules", "next", place, "leap", "-n", "3", "--json").json
    assert len(document["next_times"]) == 3
    assert document["next_times"][0] == document["next_at"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cron", "61 * * * *"), "cron is '61 * * * *'"),
        (("--cron", "1 * * * *", "--time-zone", "Mars/Base"), "time_zone is 'Mars/Base'"),
        (("--every", "0"), "every_s is 0"),
        ((), "give cron or every_s"),
        (("--every", "1m", "--cron", "1 * * * *"), "give cron or every_s"),
    ],
)
def test_a_bad_schedule_is_refused_in_one_sentence(
    command: CommandLine, place: str, options: tuple[str, ...], message: str
) -> None:
    refused = command("schedules", "add", place, "a", "x", *options)
    assert refused.code == 2
    assert message in refused.err
    assert command("schedules", "list", place, "--json").text == ""
