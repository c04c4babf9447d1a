"""The same commands, on a queue of a broker."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import AnyQueue
from penstock.cli import targets
from penstock.cli.keys import VerbName
from penstock.client import ClientOptions, connect_broker
from penstock.operations import Verb
from tests.cli.command_line import CommandLine
from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"webhook_allow_private": True}
    with RunningServer(tmp_path_factory.mktemp("server") / "data", broker=settings) as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(server: RunningServer) -> None:
    with connect_broker(server.url) as broker:
        for space in broker.namespaces():
            broker.delete_namespace(space.name, force=True)


@pytest.fixture
def url(server: RunningServer) -> str:
    return f"{server.url}/shop/orders"


@pytest.fixture
def queue(url: str, server: RunningServer) -> Iterator[AnyQueue]:
    with connect_broker(server.url) as broker:
        broker.create_queue("shop/orders", max_attempts=1)
    with penstock.open(url) as queue:
        yield queue


# -- messages --------------------------------------------------------------------------------------


def test_publish_and_take(command: CommandLine, url: str) -> None:
    published = command("publish", url, "hello", "-H", "kind=x", "--json").json
    assert published["duplicate"] is False
    assert command("enqueue", url, "-", "--lines", stdin=b"1\n2\n").code == 0
    assert command("dequeue", url).out == b"hello\n"
    assert command("dequeue", url, "--all").out == b"1\n2\n"
    assert command("dequeue", url).code == 1


def test_lease_ack_and_nack(command: CommandLine, url: str, queue: AnyQueue) -> None:
    queue.enqueue_batch([b"1", b"2", b"3"])
    first, second, third = command("lease", url, "-n", 3, "--for", "1m", "--json").json_lines
    assert (first["payload"], first["attempt"], first["group"]) == ("1", 1, "main")
    assert command("ack", url, first["receipt"]).text == "1 message acked.\n"
    assert command("nack", url, second["receipt"], "-r", "no", "--json").json == {"nacked": 1}
    assert command("nack", url, third["receipt"], "--release", "--json").json == {"released": 1}
    assert command("nack", url, second["receipt"]).code == 1
    assert [letter.reason for letter in queue.dead()] == ["no"]
    (again,) = command("lease", url, "--json").json_lines
    assert (again["payload"], again["attempt"]) == ("3", 1)
    assert command("lease", url).code == 1
    (dead,) = command("lease", url, "--dead", "--json").json_lines
    assert dead["payload"] == "2"
    assert "2" in command("peek", url, "--state", "leased").text


def test_lease_ack_and_nack_in_a_directory(command: CommandLine, path: Path) -> None:
    with penstock.open(path) as queue:
        queue.enqueue_batch([b"1", b"2"])
    first, second = command("lease", path, "-n", 2, "--json").json_lines
    assert command("ack", path, first["receipt"], "--json").json == {"acked": 1}
    assert command("nack", path, second["receipt"], "--delay", "1h").code == 0
    assert command("stats", path, "--json").json["scheduled"] == 1
    assert command("ack", path, first["receipt"]).code == 1
    assert command("lease", path).code == 1


def test_looking(command: CommandLine, url: str, queue: AnyQueue) -> None:
    id_ = queue.enqueue(b"later", delay=3600)
    queue.enqueue(b"now")
    assert command("stats", url, "--json").json["scheduled"] == 1
    assert "now" in command("peek", url).text
    assert command("why", url, id_, "--json").json["code"] == "delayed"
    assert command("history", url, id_, "--json").json_lines[0]["event"] == "published"


def test_operating(command: CommandLine, url: str, queue: AnyQueue) -> None:
    queue.enqueue_batch([b"1", b"2"])
    queue.nack(queue.lease(), "no")
    (letter,) = command("redrive", url, "--all", "--dry-run", "--json").json_lines
    assert letter["reason"] == "no"
    assert command("redrive", url, "--all", "--json").json["redriven"] == 1
    assert command("seek", url, "--to", "end", "--json").json["ready"] == 0
    assert command("compact", url, "--json").code == 0


def test_tail_shows_what_came_and_leaves_no_group(
    command: CommandLine, url: str, queue: AnyQueue
) -> None:
    queue.enqueue_batch([b"%d" % n for n in range(20)])
    queue.dequeue_batch(20)
    lines = command("tail", url, "--once", "-n", 3, "--json").json_lines
    assert [line["payload"] for line in lines] == ["17", "18", "19"]
    assert len(command("tail", url, "-n", 5, "--count", 4, "--json").json_lines) == 4
    assert list(queue.groups) == ["main"]


@pytest.mark.parametrize("name", ["inspect", "verify"])
def test_what_reads_files_wants_a_directory(command: CommandLine, url: str, name: str) -> None:
    answer = command(name, url)
    assert answer.code == 2
    assert "give a directory" in answer.err


# -- what is in the way ----------------------------------------------------------------------------


def test_no_such_queue_is_exit_code_1(command: CommandLine, url: str) -> None:
    answer = command("stats", url)
    assert (answer.code, answer.err.count("\n")) == (1, 1)


def test_a_refused_key_is_exit_code_2_and_a_good_one_is_sent(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningServer(tmp_path / "data") as server:
        made = command("keys", "create", tmp_path / "data", "-v", "publish", "--json").json
        server.call(server.server.service.keys.load())
        url = f"{server.url}/shop/orders"
        monkeypatch.delenv("PENSTOCK_KEY", raising=False)
        refused = command("publish", url, "x")
        assert refused.code == 2
        assert "set PENSTOCK_KEY" in refused.err
        monkeypatch.setenv("PENSTOCK_KEY", "psk_wrong")
        assert "is wrong or was revoked" in command("publish", url, "x").err
        monkeypatch.setenv("PENSTOCK_KEY", made["key"])
        assert command("publish", url, "x").code == 0
        refused = command("dequeue", url)
        assert refused.code == 2
        assert made["key"] not in refused.err


@pytest.mark.parametrize("wrong", ["http://127.0.0.1:1", "http://u:p@h/q", "http://h/Q+"])
def test_a_url_that_names_no_queue_is_exit_code_2(command: CommandLine, wrong: str) -> None:
    answer = command("stats", wrong)
    assert (answer.code, answer.err.count("\n")) == (2, 1)


# -- the broker ------------------------------------------------------------------------------------


def test_queues_and_namespaces(command: CommandLine, server: RunningServer) -> None:
    assert command("queues", server.url).code == 1
    assert command("namespaces", server.url).code == 1
    line = ["queues", "create", server.url, "shop/orders", "-s", "lease_s=60"]
    assert command(*line, "--json").json["settings"]["lease_s"] == 60
    assert command(*line).code == 0
    assert command("queues", "create", server.url, "shop/orders", "-s", "lease_s=61").code == 1
    changed = command("queues", "change", server.url, "shop/orders", "-s", "lease_s=61", "--json")
    assert changed.json["settings"]["lease_s"] == 61
    assert command("queues", "change", server.url, "shop/orders").code == 2
    made = command("namespaces", "create", server.url, "mail", "--max-queues", 3, "--json").json
    assert (made["name"], made["max_queues"]) == ("mail", 3)
    (listed,) = command("queues", "list", server.url, "-n", "shop", "--json").json_lines
    assert (listed["queue"], listed["stats"]["ready"]) == ("shop/orders", 0)
    assert "shop/orders" in command("queues", server.url).text
    assert "shop/orders" in command("queues", server.data).text
    spaces = command("namespaces", server.url, "--json").json_lines
    assert [(one["name"], one["queues"]) for one in spaces] == [("mail", 0), ("shop", 1)]
    assert [one["name"] for one in command("namespaces", server.data, "--json").json_lines] == [
        "mail",
        "shop",
    ]
    assert command("namespaces", "delete", server.url, "shop").code == 1
    assert command("queues", "delete", server.url, "shop/orders", "--yes", "--json").json["deleted"]
    assert command("namespaces", "delete", server.url, "shop", "--force", "-y").code == 0


def test_queues_with_escaped_directories_are_read_from_the_data_directory(
    command: CommandLine, server: RunningServer
) -> None:
    with connect_broker(server.url) as broker:
        broker.queue("Shop/my.Orders").enqueue(b"x")
    for line in (["queues", "list"], ["top", "--once"]):
        (row,) = command(*line, server.data, "--json").json_lines
        assert (row["queue"], row["problem"]) == ("Shop/my.Orders", None)
        assert row["stats"]["ready"] == 1


def test_a_setting_that_is_none_is_refused_with_the_one_that_was_meant(
    command: CommandLine, server: RunningServer
) -> None:
    answer = command("queues", "create", server.url, "shop/misspelt", "-s", "lease_sec=60")
    assert answer.code == 2
    assert "no setting 'lease_sec'; did you mean lease_s?" in answer.err
    assert "shop/misspelt" not in command("queues", server.url).text


def test_a_long_name_does_not_cut_the_heads_of_numbers(
    command: CommandLine, server: RunningServer, queue: AnyQueue
) -> None:
    queue.groups.create("g" * 64)
    shown = command("stats", f"{server.url}/shop/orders").text
    assert "oldest ready" in shown
    assert "cancelled" in shown


def test_changing_needs_a_running_broker(command: CommandLine, server: RunningServer) -> None:
    answer = command("queues", "create", server.data, "shop/orders")
    assert answer.code == 2
    assert "needs a running broker" in answer.err


def test_change_of_a_webhook_says_what_changed(
    command: CommandLine, server: RunningServer, queue: AnyQueue
) -> None:
    place = (server.url, "shop/orders")
    made = command("webhooks", "create", *place, "http://127.0.0.1:9/", "--json").json
    change = ("webhooks", "change", server.url, made["id"])
    none = command(*change)
    assert (none.code, none.out) == (2, b"")
    assert "--url" in none.err and "--rotate-secret" in none.err and "--disable" in none.err
    assert command(*change, "--disable").text == f"Webhook {made['id']} is disabled.\n"
    assert command(*change, "--enable").text == f"Webhook {made['id']} is enabled.\n"
    both = command(*change, "--url", "http://127.0.0.1:10/", "--disable").text
    assert both == (
        f"Webhook {made['id']} pushes shop/orders to http://127.0.0.1:10/.\n"
        f"Webhook {made['id']} is disabled.\n"
    )
    rotated = command(*change, "--rotate-secret").text
    assert rotated.startswith("Its secret, shown only now: whsec_")


def test_webhooks(command: CommandLine, server: RunningServer, queue: AnyQueue) -> None:
    place = [server.url, "shop/orders"]
    assert command("webhooks", *place).code == 1
    made = command("webhooks", "create", *place, "http://127.0.0.1:9/", "--json").json
    assert made["secret"].startswith("whsec_")
    assert f"{made['id']}  pushing" in command("webhooks", *place).text
    changed = command("webhooks", "change", server.url, made["id"], "--disable", "--json").json
    assert changed["enabled"] is False
    assert "disabled" in command("webhooks", *place).text
    rotated = command("webhooks", "change", server.url, made["id"], "--rotate-secret")
    assert "Its secret, shown only now: whsec_" in rotated.text
    assert command("webhooks", "deliveries", server.url, made["id"]).code == 1
    assert command("webhooks", "delete", server.url, made["id"]).code == 0
    assert command("webhooks", "delete", server.url, made["id"]).code == 1


def test_top_shows_the_busiest_first(
    command: CommandLine, server: RunningServer, queue: AnyQueue, path: Path
) -> None:
    with connect_broker(server.url) as broker:
        broker.queue("shop/busy").enqueue_batch([b"%d" % n for n in range(9)])
    rows = command("top", server.url, "--once", "--json").json_lines
    assert [(row["queue"], row["stats"]["ready"]) for row in rows] == [
        ("shop/busy", 9),
        ("shop/orders", 0),
    ]
    assert len(command("top", server.data, "--once", "-n", 1, "--json").json_lines) == 1
    assert "shop/busy" in command("top", server.url, "--once").text
    assert command("top", path, "--once", "--json").json["queue"] == str(path)
    assert "oldest ready" in command("top", path, "--once").text
    assert command("top", f"{server.url}/shop/busy", "--once", "--json").json["stats"]["ready"] == 9


def test_bench_of_a_broker_leaves_nothing_behind(
    command: CommandLine, server: RunningServer
) -> None:
    found = command("bench", server.url, "-n", 20, "-c", 2, "--batch", 3, "--json").json
    assert found["publish"]["messages_per_s"] > 0
    assert found["lease_and_ack"]["p99_s"] > 0
    assert command("bench", server.url, "-n", 2).text.count("\n") >= 4
    with connect_broker(server.url) as broker:
        assert broker.queues() == []


def test_bench_of_a_machine_compares_each_rate_with_its_limits(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.bench.ROW_S", 0.02)
    found = command("bench", tmp_path, "--json").json
    limits = {one["name"]: one for one in found["limits"]}
    assert list(limits) == ["write", "fdatasync", "disk", "checksum", "loopback"]
    rows = {row["name"]: row for row in found["rows"]}
    assert all(row["messages_per_s"] > 0 for row in rows.values())
    assert {"publish", "publish, durable", "scan, every checksum", "broker: publish"} <= set(rows)
    durable = rows["publish, durable"]
    expected = durable["messages_per_s"] / limits["fdatasync"]["per_s"]
    assert durable["share"] == pytest.approx(expected)
    text = command("bench", tmp_path).text
    assert "limit of this machine" in text
    assert list(tmp_path.iterdir()) == []


def test_bench_refuses_what_it_cannot_use(command: CommandLine, tmp_path: Path) -> None:
    assert command("bench", tmp_path / "nowhere").code == 2
    answer = command("bench", tmp_path, "--batch", 10)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "--batch is for the URL of a broker" in answer.err


# -- keys ------------------------------------------------------------------------------------------


def test_keys_are_made_listed_and_revoked(command: CommandLine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningServer(data):
        pass  # makes the directory
    assert command("keys", data).code == 1
    line = ["keys", "create", data, "-l", "shop", "-v", "publish", "-v", "read", "-n", "shop"]
    made = command(*line)
    assert made.text.startswith("psk_")
    assert "shown only now" in made.err
    (listed,) = command("keys", "list", data, "--json").json_lines
    assert (listed["label"], listed["verbs"], listed["namespaces"]) == (
        "shop",
        ["publish", "read"],
        ["shop"],
    )
    assert made.text.strip().rpartition("_")[2] not in command("keys", data, "--json").text
    assert command("keys", "revoke", data, listed["id"], "--json").json["revoked_at"] > 0
    assert command("keys", "revoke", data, "nobody").code == 2
    assert "psk_" not in command("keys", data).text
    assert command("keys", "create", data, "-n", "Not A Name").code == 2
    assert command("keys", "list", "http://127.0.0.1:1").code == 2


def test_a_key_that_clients_have_is_taken(command: CommandLine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningServer(data) as server:
        taken = command("keys", "create", data, "--value", "short", "-v", "read")
        assert (taken.code, "short" in taken.text) == (0, False)
        assert "can be guessed" in taken.err
        long = b"a-key-that-clients-have-had-for-years\n"
        made = command("keys", "create", data, "--value", "-", "--json", stdin=long)
        assert (made.err, "key" in made.json) == ("", False)
        server.call(server.server.service.keys.load())
        for key, status in (("short", 200), (long.decode().strip(), 200), ("other", 401)):
            with server.client(headers={"X-Api-Key": key}) as http:
                assert http.get("/api/v1/namespaces").status_code == status
        assert command("keys", "create", data, "--value", "short").code == 1
        assert command("keys", "create", data, "--value", "a b").code == 2


def test_the_verbs_are_those_of_the_broker() -> None:
    assert [verb.value for verb in VerbName] == [verb.value for verb in Verb]


@pytest.mark.parametrize("verb", ["dequeue", "lease"])
def test_taking_from_a_queue_that_is_not_there_says_so_and_makes_none(
    command: CommandLine, server: RunningServer, verb: str
) -> None:
    answer = command(verb, f"{server.url}/shop/ordrs")
    assert answer.code == 1
    assert "no queue shop/ordrs" in answer.err
    assert "ordrs" not in command("queues", server.url, "--json").text


# -- hints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "stats {}/default/q",
        "tail {}/default/q --once",
        "queues {}",
        "namespaces {}",
        "webhooks {} q",
    ],
)
def test_looking_gives_up_soon_where_nobody_answers(
    command: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    line: str,
) -> None:
    assert ClientOptions().retry_s > targets.READ_RETRY_S
    monkeypatch.setattr(targets, "READ_RETRY_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    answer = command(*line.format(f"http://127.0.0.1:{port}").split())
    assert (answer.code, caplog.messages) == (2, [])  # else it says that it tries again
    assert "no connection to" in answer.err


def test_hints_name_commands(command: CommandLine, server: RunningServer, queue: AnyQueue) -> None:
    url = f"{server.url}/shop/orders"
    assert "penstock groups create" in command("peek", url, "-g", "audit").err
    change = ("queues", "create", server.url, "shop/orders", "--set", "max_attempts=7")
    answer = command(*change)
    assert answer.code == 1
    assert "penstock queues change" in answer.err
    assert "PATCH" not in answer.err
    answer = command("stats", server.url)
    assert "names no queue: write" in answer.err
    assert "queue=" not in answer.err


# -- worker ----------------------------------------------------------------------------------------

TASKS = """
def handle(job):
    print("handled", job.payload.decode())

def fail(job):
    raise ValueError("no")

async def later(job):
    print("later", job.payload.decode())

class Things:
    @staticmethod
    def handle_all(jobs):
        print("together", len(jobs))

number = 7
"""


@pytest.fixture
def _tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "tasks_of_test.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("tasks_of_test", None)


@pytest.mark.usefixtures("_tasks")
def test_a_worker_calls_the_function(command: CommandLine, url: str, queue: AnyQueue) -> None:
    queue.enqueue_batch([b"1", b"2", b"3"])
    line = ["-q", url, "--idle", "0", "--json"]
    answer = command("worker", "tasks_of_test:handle", *line, "-c", 2)
    assert sorted(answer.text.splitlines()[:3]) == ["handled 1", "handled 2", "handled 3"]
    assert '"done": 3' in answer.text
    queue.enqueue(b"4")
    assert "later 4" in command("worker", "tasks_of_test:later", *line).text
    queue.enqueue_batch([b"5", b"6"])
    grouped = command("worker", "tasks_of_test:Things.handle_all", *line, "--batch", 5)
    assert "together 2" in grouped.text
    queue.enqueue(b"7")
    failed = command("worker", "tasks_of_test:fail", "-q", url, "--idle", "0")
    assert "0 done, 1 failed, 0 handed back, 0 lost." in failed.text
    assert "ValueError: no" in failed.err
    assert f"working on {url}, group main, 1 at a time" in failed.err
    id_ = queue.enqueue(b"8")
    told = command("worker", "tasks_of_test:later", *line, "-v").err
    assert f"{id_} done in" in told
    assert f"{id_} done in" not in failed.err


@pytest.mark.usefixtures("_tasks")
def test_a_worker_on_a_directory(command: CommandLine, path: Path) -> None:
    with penstock.open(path) as queue:
        queue.enqueue(b"1")
    answer = command("worker", "tasks_of_test:handle", "-q", path, "--idle", "0")
    assert answer.text.startswith("handled 1\n1 done")
    nowhere = command("worker", "tasks_of_test:handle", "-q", path / "nowhere", "--idle", "0")
    assert nowhere.code == 2
    assert not (path / "nowhere").exists()


@pytest.mark.usefixtures("_tasks")
@pytest.mark.parametrize(
    "wrong",
    [
        "tasks_of_test",
        "tasks_of_test:",
        ":handle",
        "no_such_module:x",
        "tasks_of_test:nothing",
        "tasks_of_test:number",
    ],
)
def test_what_is_no_function_is_refused(command: CommandLine, path: Path, wrong: str) -> None:
    answer = command("worker", wrong, "-q", path, "--idle", "0")
    assert answer.code == 2
    assert "(see penstock worker --help)" in answer.err


def test_stats_show_readers_of_a_broker(
    command: CommandLine, queue: AnyQueue, url: str, server: RunningServer
) -> None:
    queue.enqueue_batch([b"x"] * 4)
    assert command("stats", url, "--json").json["readers"] == []
    assert "reader" not in command("stats", url).text
    with connect_broker(server.url) as broker:
        broker.report_reader("shop/orders", "copy", 2, rows_per_s=7.25)
    (found,) = command("stats", url, "--json").json["readers"]
    assert (found["name"], found["lag"]) == ("copy", 3)
    (row,) = [line for line in command("stats", url).text.splitlines() if "copy" in line]
    assert row.split()[:4] == ["copy", "3", "2", "7.2"]
