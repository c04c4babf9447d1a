"""Arguments of a wrong kind: one tree of errors, and nothing is changed."""

import asyncio
import ssl
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.broker.stores import open_store
from penstock.client import connect
from penstock.errors import InvalidInput
from penstock.model import NewMessage
from penstock.queue import Queue
from penstock.queue.streaming import Stopper
from penstock.worker import Worker

URL = "http://127.0.0.1:9/a/b"
HUGE = 10**400
BEYOND_TEXT = 10**5000  # Python does not write so many digits

CALLS: dict[str, Callable[[Any], Any]] = {
    "huge delay": lambda q: q.enqueue(b"x", delay=HUGE),
    "delay beyond text": lambda q: q.enqueue(b"x", delay=BEYOND_TEXT),
    "priority beyond text": lambda q: q.enqueue(b"x", priority=BEYOND_TEXT),
    "huge ttl": lambda q: q.enqueue(b"x", ttl=HUGE),
    "huge deliver_at": lambda q: q.enqueue(b"x", deliver_at=HUGE),
    "huge wait": lambda q: q.lease(wait_s=HUGE),
    "huge lease": lambda q: q.lease(lease_s=HUGE),
    "no batch": lambda q: q.enqueue_batch(None),
    "number as batch": lambda q: q.enqueue_batch(5),
    "message as batch": lambda q: q.enqueue_batch(NewMessage(payload=b"x")),
    "endless batch": lambda q: q.enqueue_batch(repeat(b"x")),
    "publish of text": lambda q: q.publish(["x"]),
    "publish of a number": lambda q: q.publish(5),
    "stopper": lambda q: q.lease(wait_s=1, stopper=5),
    "stopper of a stream": lambda q: q.stream(print, idle_s=0, stopper=5),
    "window without id": lambda q: q.enqueue(b"x", dedup_window_s=5),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@each_call
def test_a_bad_argument_is_refused(queue: Queue, call: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidInput):
        call(queue)
    assert queue.stats().published == 0


@each_call
def test_a_bad_argument_is_refused_in_a_task(tmp_path: Path, call: Callable[[Any], Any]) -> None:
    async def main() -> None:
        async with await penstock.aio.open(tmp_path / "queue", min_free_bytes=0) as queue:
            with pytest.raises(InvalidInput):
                await call(queue)
            assert (await queue.stats()).published == 0

    asyncio.run(main())


@each_call
def test_a_bad_argument_is_refused_before_a_request_is_sent(call: Callable[[Any], Any]) -> None:
    with connect(URL) as queue, pytest.raises(InvalidInput):
        call(queue)


@pytest.mark.parametrize("name", ["memory:foo", "memory:x/y", "memory: "])
def test_a_queue_in_memory_has_no_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: penstock.open(name),
        lambda: penstock.open(Path(name)),
        lambda: penstock.open(name, read_only=True),
        lambda: asyncio.run(penstock.aio.open(name)),
        lambda: open_store(name),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="memory: by itself is a queue in memory"):
            call()
    assert list(tmp_path.iterdir()) == []
    penstock.open(f"./{name}").close()  # a directory, if it is meant


def test_a_follow_up_that_is_not_in_a_list_is_refused(queue: Queue) -> None:
    queue.enqueue(b"x")
    (job,) = queue.lease()
    with pytest.raises(InvalidInput, match="list"):
        queue.ack(job, emit=NewMessage(payload=b"y"))  # type: ignore[arg-type]
    assert queue.stats().leased == 1


def test_a_batch_may_be_anything_that_can_be_gone_through(queue: Queue) -> None:
    payloads = [b"a", b"b"]
    assert len(queue.enqueue_batch(payload for payload in payloads)) == 2
    assert len(queue.enqueue_batch(dict.fromkeys(payloads).keys())) == 2
    assert len(queue.publish(NewMessage(payload=payload) for payload in payloads)) == 2
    assert [message.payload for message in queue.dequeue_batch(9)] == payloads * 3


@pytest.mark.parametrize(
    "options",
    [
        {"key": 5},
        {"batching": True},
        {"verify": "no"},
        {"verify": None},
        {"timeout_s": HUGE},
    ],
    ids=str,
)
def test_a_bad_option_of_a_client_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        penstock.open(URL, **options)
    penstock.open(URL, verify=ssl.create_default_context()).close()


def test_a_path_may_be_bytes(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with penstock.open(bytes(path)) as queue:  # type: ignore[call-overload]
        assert queue.path == str(path)
    Worker(bytes(path), print)  # type: ignore[arg-type]

    async def main() -> None:
        async with await penstock.aio.open(bytes(path)) as queue:  # type: ignore[call-overload]
            assert queue.path == str(path)

    asyncio.run(main())


@pytest.mark.parametrize("path", ["\0", b"a\0", "", b"", 5, None], ids=repr)
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(InvalidInput):
        penstock.open(path)
    with pytest.raises(InvalidInput):
        asyncio.run(penstock.aio.open(path))
    with pytest.raises(InvalidInput):
        Worker(path, print)


def test_options_of_a_worker_that_are_none_are_refused(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="WorkerOptions"):
        Worker(queue, print, options={})  # type: ignore[arg-type]


def test_settings_are_refused_where_they_would_not_be_stored(tmp_path: Path) -> None:
    penstock.open(tmp_path / "queue").close()
    with pytest.raises(InvalidInput, match="read_only"):
        penstock.open(tmp_path / "queue", read_only=True, max_attempts=3)
    with pytest.raises(InvalidInput, match="read_only"):
        asyncio.run(penstock.aio.open(tmp_path / "queue", read_only=True, max_attempts=3))


def test_a_lease_whose_stopper_is_stopped_leases_nothing(queue: Queue, tmp_path: Path) -> None:
    stopper = Stopper()
    stopper.stop()
    queue.enqueue(b"x")
    assert queue.lease(wait_s=1, stopper=stopper) == []
    assert queue.lease(stopper=stopper) == []
    with connect(URL) as remote:
        assert remote.lease(wait_s=1, stopper=stopper) == []

    async def main() -> None:
        async with await penstock.aio.open(tmp_path / "async") as tasks:
            await tasks.enqueue(b"x")
            assert await tasks.lease(wait_s=1, stopper=stopper) == []

    asyncio.run(main())
