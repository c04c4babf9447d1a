"""What `penstock.open(path, shared=True)` gives, and when it is refused."""

import asyncio
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.client import Batching
from penstock.errors import (
    InvalidInput,
    LedgerClosed,
    LedgerError,
    LedgerLocked,
    NotALedger,
    PenstockError,
    ReceiptInvalid,
)
from penstock.model import NewMessage
from penstock.queue import opening
from penstock.shared.place import place_of
from penstock.tasks import Tasks
from tests.server.running import RunningServer
from tests.shared.processes import sharing

# -- the same queue --------------------------------------------------------------------------------


def test_a_shared_queue_is_the_same_directory_as_one_opened_alone(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", max_attempts=3) as queue:
        id_ = queue.enqueue("before")
    with penstock.open(tmp_path / "q", shared=True) as shared:
        assert shared.get(id_).payload == b"before"
        assert shared.details().settings.max_attempts == 3
        shared.enqueue("shared")
    with penstock.open(tmp_path / "q") as queue:
        assert [message.payload for message in queue.browse()] == [b"before", b"shared"]
    assert not {"SOCKET", "SOCKET.lock", "_broker"} & set(os.listdir(tmp_path / "q"))


def test_a_new_queue_has_the_settings_of_one_opened_alone(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "alone") as queue:
        alone = queue.settings
    with penstock.open(tmp_path / "shared", shared=True) as shared:
        assert shared.details().settings == alone


def test_settings_of_any_opener_are_stored(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path / "q", shared=True, max_attempts=3) as first,
        sharing(tmp_path / "q", max_attempts=4, lease_s=9) as other,
    ):
        assert first.details().settings.max_attempts == 4
        first.enqueue("by the reopened queue")
        other.ask("enqueue", "by a client")
        with sharing(tmp_path / "q") as third:
            assert third.ask("details").settings.lease_s == 9
            assert third.ask("peek", 5) == ["by the reopened queue", "by a client"]
    with penstock.open(tmp_path / "q") as queue:
        assert (queue.settings.max_attempts, queue.settings.lease_s) == (4, 9)


@pytest.mark.parametrize("sync", ["interval", "always"])
def test_calls_of_the_holder_go_on_while_its_settings_change(tmp_path: Path, sync: Any) -> None:
    """A change reopens the queue. Publishes beside it are neither lost nor doubled."""
    changed = threading.Event()
    with penstock.open(tmp_path / "q", shared=True, sync=sync) as queue:

        def publish(name: int) -> list[str]:
            found, number = [], 0
            while not changed.is_set() and number < 100_000:
                found.append(queue.enqueue(f"{name}-{number}".encode()))
                number += 1
            return found

        with ThreadPoolExecutor(3) as threads:
            futures = [threads.submit(publish, name) for name in range(3)]
            for attempts in range(2, 8):
                penstock.open(tmp_path / "q", shared=True, max_attempts=attempts).close()
            changed.set()
            ids = [id_ for future in futures for id_ in future.result()]
        assert len(set(ids)) == len(ids) == queue.stats().published


@pytest.mark.parametrize("role", ["holder", "client"])
def test_every_kind_of_call_works_in_both_roles(tmp_path: Path, role: str) -> None:
    with sharing(tmp_path / "q", lease_s=50) as other:
        if role == "holder":
            other.finish()
        with penstock.open(tmp_path / "q", shared=True) as queue:
            assert queue.role == role
            queue.enqueue("plain", priority=7, headers={"a": "b"})
            queue.enqueue({"json": 1})
            queue.enqueue_batch([b"x", NewMessage(payload=b"y", delay=100)])
            assert queue.publish([NewMessage(payload=b"z", dedup_id="d")])[0].duplicate is False
            assert queue.publish([NewMessage(payload=b"z", dedup_id="d")])[0].duplicate is True
            with queue.lease_one(wait_s=1) as job:
                assert job is not None and job.payload == b"plain"
            jobs = queue.lease(2)
            queue.extend(jobs[0], 60)
            queue.nack(jobs[0], "no", delay=0)
            assert queue.ack(jobs[1], emit=[b"next"])
            with pytest.raises(ReceiptInvalid):
                queue.ack(jobs[0])
            message = queue.dequeue()
            assert message is not None
            assert queue.history(message.id)[0].event == "published"
            queue.groups.create("audit", to="beginning")
            assert "audit" in queue.groups
            assert len(queue.lease(1, group="audit")) == 1
            handled: list[bytes] = []
            queue.stream(lambda job: handled.append(job.payload), idle_s=0.1)
            assert sorted([*handled, message.payload]) == [b"next", b"z", b'{"json":1}']
            queue.pause()
            assert queue.stats().paused
            queue.resume()
            assert queue.purge() > 0
            assert queue.metrics()


def test_a_consumer_in_a_client_is_woken_by_the_holder(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path / "q", shared=True) as queue,
        sharing(tmp_path / "q") as client,
    ):
        queue.enqueue("warm")  # from now on the holder uses its open queue
        assert client.ask("dequeue") == "warm"
        for call in ("publish", "nack", "delay"):
            client.begin("dequeue", wait_s=50)
            if call == "publish":
                queue.enqueue(call)
            elif call == "delay":
                queue.enqueue(call, delay=0.2)
            else:
                queue.enqueue(call, delay=0)
            assert client.end() == call


def test_the_end_of_a_lease_of_the_holder_wakes_a_client(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path / "q", shared=True, backoff_base_s=0, backoff_max_s=0) as queue,
        sharing(tmp_path / "q") as client,
    ):
        queue.enqueue("one")
        assert len(queue.lease(1, lease_s=0.3)) == 1
        assert client.ask("dequeue", wait_s=50) == "one"


def test_a_consumer_in_the_holder_is_woken_by_a_client(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path / "q", shared=True) as queue,
        sharing(tmp_path / "q") as client,
    ):
        queue.stats()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(queue.dequeue, wait_s=50)
            client.ask("enqueue", "one")
            found = waiting.result()
        assert found is not None and found.payload == b"one"


def test_handles_of_one_process_share_one_membership(tmp_path: Path) -> None:
    first = penstock.open(tmp_path / "q", shared=True)
    second = penstock.open(str(tmp_path / "q"), shared=True)
    assert (first.role, second.role) == ("holder", "holder")
    first.close()
    first.close()
    with pytest.raises(LedgerClosed):
        first.enqueue("x")
    second.enqueue("y")
    assert second.role == "holder"
    second.close()
    with penstock.open(tmp_path / "q") as queue:
        assert queue.stats().ready == 1


def test_tasks_share_as_threads_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            await penstock.aio.open(tmp_path / "q", shared=True) as first,
            await penstock.aio.open(tmp_path / "q", shared=True) as second,
        ):
            await asyncio.gather(*(first.enqueue(f"{number}") for number in range(20)))
            jobs = await second.lease(20, wait_s=5)
            before = (await first.stats()).acked
            await second.ack(jobs)
            assert (await first.stats()).acked - before == 20
            waiting = asyncio.create_task(second.lease(wait_s=50))
            await first.enqueue("late")
            (late,) = await waiting
            assert late.payload == b"late"
            await first.ack(late)
        with pytest.raises(LedgerClosed):
            await first.enqueue("x")

    with sharing(tmp_path / "q"):
        asyncio.run(main())  # as a client
    asyncio.run(main())  # as the holder


def test_the_view_for_tasks_of_a_shared_queue(tmp_path: Path) -> None:
    async def main(queue: penstock.AnyQueue) -> None:
        async with queue.for_tasks() as view:
            await view.enqueue("from a task")

    with penstock.open(tmp_path / "q", shared=True) as queue:
        asyncio.run(main(queue))
        asyncio.run(main(queue))  # in another loop
        assert queue.stats().ready == 2


def test_options_of_a_client_and_a_collector_apply(tmp_path: Path) -> None:
    times = penstock.OperationTimes()
    batching = Batching(linger_s=0.001)
    with penstock.open(
        tmp_path / "q", shared=True, metrics=times, timeout_s=5, retry_s=20, batching=batching
    ) as queue:
        queue.enqueue("x")
        assert times.snapshot()


# -- several queues --------------------------------------------------------------------------------


def test_the_holder_follows_messages_of_other_queues_as_clients_do(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path, shared=True, queue="shop/first") as first,
        penstock.open(tmp_path, shared=True, queue="shop/second") as second,
    ):
        for call in ("enqueue", "publish"):
            second.enqueue("opens the queue in this process")
            assert second.dequeue(wait_s=20) is not None
            earlier = first.enqueue("1")
            if call == "enqueue":
                later = second.enqueue("2", after=[earlier])
            else:
                later = second.publish([NewMessage(payload="2", after=[earlier])])[0].id
            assert first.dequeue(wait_s=20) is not None
            found = second.dequeue(wait_s=20)
            assert found is not None and found.id == later
    with penstock.open(tmp_path / "one", shared=True) as alone:
        alone.enqueue("opens the queue in this process")
        assert alone.dequeue(wait_s=20) is not None
        for _ in range(2):
            with pytest.raises(PenstockError, match="of no queue here|another queue"):
                alone.enqueue("2", after=[earlier])


def test_a_directory_of_several_queues(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path / "data", shared=True, queue="mail") as mail,
        penstock.open(tmp_path / "data", shared=True, queue="shop/orders", lease_s=9) as orders,
        sharing(tmp_path / "data", queue="shop/orders") as other,
    ):
        mail.enqueue("a letter")
        orders.enqueue("an order")
        orders.enqueue("another")
        assert other.ask("peek", 5) == ["an order", "another"]
        assert (mail.role, orders.role) == ("holder", "holder")
    with penstock.open(tmp_path / "data" / "shop" / "orders") as queue:
        assert (queue.settings.lease_s, queue.settings.storage.sync) == (9, "always")
        assert queue.stats().ready == 2


def test_a_broker_on_the_same_directory_serves_the_openers(tmp_path: Path) -> None:
    with (
        RunningServer(tmp_path / "data") as server,
        penstock.open(tmp_path / "data", shared=True, queue="shop/orders") as queue,
    ):
        assert queue.role == "client"
        queue.enqueue("over its port")
        found = penstock.connect(f"http://127.0.0.1:{server.server.port}/shop/orders")
        assert [message.payload for message in found.peek(5)] == [b"over its port"]
        found.close()
        server.stop()
        queue.enqueue("as the holder")
        assert queue.role == "holder"
        assert queue.stats().ready == 2


def test_keys_of_a_broker_are_not_asked_for_by_a_process(tmp_path: Path) -> None:
    """Who may open the files may do everything."""
    with RunningServer(tmp_path / "data") as server:
        server.new_key("publish")
    with (
        penstock.open(tmp_path / "data", shared=True, queue="shop/orders") as queue,
        sharing(tmp_path / "data", queue="shop/orders") as other,
    ):
        other.ask("enqueue", "x")
        assert queue.stats().ready == 1


# -- where it is -----------------------------------------------------------------------------------


def test_a_deep_directory(tmp_path: Path) -> None:
    path = tmp_path / "/".join(["directory" * 5] * 6)
    assert len(str(path)) > 200
    with (
        penstock.open(path, shared=True) as queue,
        sharing(path) as other,
    ):
        other.ask("enqueue", "x")
        assert (queue.role, other.ask("role")) == ("holder", "client")
        assert queue.stats().ready == 1
        queue.close()
        other.ask("enqueue", "y")
        assert other.ask("role") == "holder"


def test_a_socket_that_a_dead_holder_left_is_replaced(tmp_path: Path) -> None:
    penstock.open(tmp_path / "q").close()
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "q" / "SOCKET"))
    with penstock.open(tmp_path / "q", shared=True) as queue, sharing(tmp_path / "q") as other:
        other.ask("enqueue", "x")
        assert queue.stats().ready == 1


def test_only_its_user_can_connect(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", shared=True):
        assert (tmp_path / "q" / "SOCKET").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "q").stat().st_mode & 0o777 == 0o700


# -- refusals --------------------------------------------------------------------------------------


def test_a_writer_that_does_not_share_is_named(tmp_path: Path) -> None:
    refused = pytest.raises(LedgerLocked, match=r"q is in use by another process.*shared=True")
    with penstock.open(tmp_path / "q"), refused:
        penstock.open(tmp_path / "q", shared=True)
    penstock.open(tmp_path / "q", shared=True).close()


def test_an_opener_that_does_not_share_is_refused(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", shared=True) as queue:
        queue.enqueue("x")
        with pytest.raises(LedgerLocked, match=r"open both with shared=True"):
            penstock.open(tmp_path / "q")
        with penstock.open(tmp_path / "q", read_only=True) as reader:
            assert reader.stats().ready == 1


def test_the_other_kind_of_directory_is_refused(tmp_path: Path) -> None:
    penstock.open(tmp_path / "q").close()
    penstock.open(tmp_path / "data", shared=True, queue="mail").close()
    with pytest.raises(InvalidInput, match=r"q is one queue, so queue='mail' is not in it"):
        penstock.open(tmp_path / "q", shared=True, queue="mail")
    with pytest.raises(InvalidInput, match=r"data has several queues: name one"):
        penstock.open(tmp_path / "data", shared=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotALedger, match=r"file is a file"):
        penstock.open(tmp_path / "file", shared=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.jpg").write_text("")
    with pytest.raises(NotALedger, match=r"photo.jpg"):
        penstock.open(tmp_path / "other", shared=True)
    assert os.listdir(tmp_path / "other") == ["photo.jpg"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"read_only": True}, "read_only needs no shared=True"),
        ({"retry_policy": lambda attempt: 1}, "retry_policy is a function of one process"),
        ({"max_attempt": 3}, "max_attempts"),
        ({"lease_s": -1}, "lease_s"),
        ({"queue": "no/such/name"}, "no/such"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        penstock.open(tmp_path / "q", shared=True, **options)
    assert not (tmp_path / "q").exists()


def test_a_url_and_memory_are_not_shared(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="shared is for directories"):
        penstock.open("http://127.0.0.1:1/a/b", shared=True)
    with pytest.raises(InvalidInput, match="memory:"):
        penstock.open("memory:", shared=True)


def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("no", name="msgspec")

    monkeypatch.setattr(opening, "import_module", missing)
    with pytest.raises(PenstockError, match=r"'msgspec'.*pip install '\.\[server\]'"):
        penstock.open(tmp_path / "q", shared=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_the_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q"
    path.mkdir()
    os.chown(path, 12345, 12345)
    with pytest.raises(LedgerError, match=r"belongs to user 12345, and this process runs as user"):
        penstock.open(path, shared=True)
    assert os.listdir(path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q"
    path.mkdir(mode=0o500)
    with pytest.raises(PenstockError, match=r"q"):
        penstock.open(path, shared=True)


def test_the_queue_of_a_task_is_not_mistaken_for_one_of_a_broker(tmp_path: Path) -> None:
    """`Tasks` has a queue in each directory, others have namespaces between."""
    with Tasks(tmp_path / "tasks") as tasks:
        tasks.add(lambda: None, name="send", queue="mail").enqueue()
    with pytest.raises(InvalidInput, match="as Tasks makes it"):
        penstock.open(tmp_path / "tasks", shared=True, queue="mail")
    assert sorted(os.listdir(tmp_path / "tasks")) == ["mail"]
    with penstock.open(tmp_path / "tasks" / "mail", shared=True) as queue:
        assert queue.stats().ready == 1

    penstock.open(tmp_path / "data", shared=True, queue="mail").close()
    with Tasks(tmp_path / "data") as tasks, pytest.raises(InvalidInput, match="of a broker"):
        tasks.add(lambda: None, name="send", queue="mail").enqueue()
    assert "mail" not in os.listdir(tmp_path / "data")

    inside = pytest.raises(InvalidInput, match="default is a namespace in .*data, the data direct")
    with Tasks(tmp_path / "data" / "default") as tasks, inside:
        tasks.add(lambda: None, name="send", queue="new").enqueue()
    assert "new" not in os.listdir(tmp_path / "data" / "default")


def test_a_file_in_the_place_of_the_socket_is_named(tmp_path: Path) -> None:
    (tmp_path / "SOCKET").mkdir()
    place, _ = place_of(str(tmp_path), None)
    assert "SOCKET, and that is not a socket: remove it" in str(place.refusal("no answer"))


def test_a_path_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not UTF-8"):
        penstock.open(os.fsdecode(bytes(tmp_path) + b"/\xff"), shared=True)


def test_a_directory_that_only_another_user_may_read_is_refused_with_both_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock.open(tmp_path / "q", shared=True).close()
    owner = os.geteuid()

    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("penstock.shared.place.is_made", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(LedgerError, match=f"belongs to user {owner}, .* as user {owner + 1}"):
        penstock.open(tmp_path / "q", shared=True)
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    with pytest.raises(LedgerError, match="opening failed: .*Permission denied"):
        penstock.open(tmp_path / "q", shared=True)


@pytest.mark.parametrize("is_deep", [False, True])
def test_a_removed_socket_is_made_again(tmp_path: Path, is_deep: bool) -> None:
    """A clean-up of *.sock and the like takes it away under a live holder."""
    path = tmp_path / ("deep" * 30 if is_deep else "") / "q"
    with sharing(path) as holder, sharing(path) as client:
        client.ask("enqueue", b"1")
        for _ in range(2):
            (path / "SOCKET").unlink()
            with sharing(path) as third:  # it waits until it can connect
                assert third.ask("role") == "client"
                third.ask("enqueue", b"2")
            client.ask("enqueue", b"3")
        assert holder.ask("role") == "holder"
        assert holder.ask("stats").ready == 5
    assert not (path / "SOCKET").exists()
    with penstock.open(path) as queue:
        assert queue.stats().ready == 5
