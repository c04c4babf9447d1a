"""`penstock backup` and `penstock restore`: queues, and the data directory of a running broker."""

import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import penstock
from tests.cli.command_line import CommandLine, listing
from tests.cli.test_serve import serving


def test_a_queue_is_saved_listed_and_restored(command: CommandLine, lived_in: Path) -> None:
    backups, target = lived_in.parent / "b", lived_in.parent / "again"
    before = listing(lived_in)
    first = command("backup", lived_in, backups)
    assert first.code == 0, first.err
    assert "1 queue in" in first.text
    assert command("backup", lived_in, backups, "--json").json["copied_bytes"] == 0
    assert listing(lived_in) == before
    rows = command("restore", backups, "--list", "--json").json_lines
    assert [row["queues"] for row in rows] == [1, 1]
    assert rows[0]["name"] in command("restore", backups, "--list").text
    done = command("restore", backups, target)
    assert done.code == 0, done.err
    assert "all checksums match" in done.text
    assert command("stats", target, "--json").json["published"] == 56
    again = command("restore", backups, target)
    assert (again.code, "not empty" in again.err) == (2, True)


def test_damage_in_the_backups_is_named_repaired_and_told_by_the_exit_code(
    command: CommandLine, lived_in: Path
) -> None:
    backups, target = lived_in.parent / "b", lived_in.parent / "again"
    assert command("backup", lived_in, backups).code == 0
    for one in (backups / "objects").iterdir():
        one.write_bytes(b"damaged")
    broken = command("restore", backups, target)
    assert (broken.code, target.exists()) == (2, False)
    found = command("backup", lived_in, backups, "--verify")
    assert found.code == 1
    assert "was damaged; it is repaired: queue.json (backup " in found.err
    assert "restored" not in found.err
    assert command("backup", lived_in, backups, "--verify").code == 0
    for one in (backups / "objects").iterdir():
        one.write_bytes(b"damaged")
    pruned = command("backup", lived_in, backups, "--verify", "--keep", "1")
    assert (pruned.code, "its backup was removed, being old: queue.json" in pruned.err) == (1, True)
    assert command("restore", backups, target).code == 0


def test_backups_that_are_not_there_are_told_apart(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place, code, text in (("missing", 2, "does not exist"), ("empty", 1, "has no backups")):
        listed = command("restore", tmp_path / place, "--list")
        assert (listed.code, text in listed.err) == (code, True)
        assert command("restore", tmp_path / place, tmp_path / "again").code == 2


def test_what_cannot_be_saved_is_refused_with_what_to_do(command: CommandLine, path: Path) -> None:
    database = command("backup", "postgresql://db/penstock", path.parent / "b")
    assert database.code == 2
    assert "pg_basebackup" in database.err
    assert "migrate-store" in database.err
    assert "data directory" in command("backup", "http://127.0.0.1:1/", path.parent / "b").err
    assert command("restore", path).code == 2
    assert not (path.parent / "b").exists()


def test_a_running_broker_is_saved_with_keys_webhooks_and_namespaces(tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        line = [sys.executable, "-m", "penstock", *map(str, arguments)]
        return subprocess.run(
            line, check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()

    data, backups, again = tmp_path / "data", tmp_path / "b", tmp_path / "again"
    with serving(data) as (url, _):
        run("namespaces", "create", url, "shop", "--max-queues", "7")
        run("webhooks", "create", url, "shop/orders", "https://example.com/hook")
        published: list[str] = []
        acked: list[str] = []
        started: list[str] = []
        stop = Event()

        def work() -> None:
            with penstock.open(f"{url}/shop/orders") as queue:
                while not stop.is_set():
                    published.extend(queue.enqueue_batch([b"x" * 300] * 20))
                    leased = queue.lease(15)
                    started.extend(one.message.id for one in leased)
                    queue.ack(leased)
                    acked.extend(one.message.id for one in leased)

        worker = Thread(target=work)
        worker.start()
        try:
            for _ in range(3):
                before = set(published), set(acked)
                run("backup", data, backups)
                after = set(started)
        finally:
            stop.set()
            worker.join()
    run("restore", backups, again)
    with serving(again) as (url, process):
        with penstock.open(f"{url}/shop/orders") as queue:
            live = {message.id for message in queue.browse()}
        assert before[0] - after <= live
        assert not live & before[1]
        assert "https://example.com/hook" in run("webhooks", "list", url, "shop/orders", "--json")
        assert '"max_queues":7' in run("namespaces", "list", url, "--json").replace(" ", "")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
