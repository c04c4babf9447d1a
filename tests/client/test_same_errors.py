"""Wrong arguments raise the same error on every kind of queue, and nothing is changed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.client import connect_broker
from penstock.errors import InvalidInput, NoSuchGroup, PenstockError, ReceiptInvalid, TooLarge
from penstock.model import NewMessage
from penstock.operations import (
    Browse,
    CancelDeliverable,
    LeaseMessage,
    ListDead,
    ListHistory,
    Operation,
    ReleaseHolder,
    Verb,
)
from penstock.operations.answers import nothing
from tests.server.running import RunningServer

Call = Callable[[Any], Any]
KINDS = (
    *("directory", "memory", "directory, asyncio", "broker", "broker, asyncio"),
    *("broker over gRPC", "broker over gRPC, asyncio"),
)
_numbers = count(1)


class Opened:
    """An open queue of any kind, used from a plain test."""

    def __init__(self, kind: str, place: Path, server: RunningServer) -> None:
        self._runner = asyncio.Runner()
        number = next(_numbers)
        if kind.startswith("broker"):
            with connect_broker(server.url) as broker:
                broker.create_queue(f"errors/q{number}")
        url = f"{server.url}/errors/q{number}"
        rpc_url = f"{server.server.urls[-1]}/errors/q{number}"
        path = place / f"q{number}"
        opens: dict[str, Callable[[], Any]] = {
            "directory": lambda: penstock.open(path),
            "memory": lambda: penstock.open("memory:"),
            "directory, asyncio": lambda: self._runner.run(penstock.aio.open(path)),
            "broker": lambda: penstock.connect(url, retry_s=0),
            "broker, asyncio": lambda: penstock.aio.connect(url, retry_s=0),
            "broker over gRPC": lambda: penstock.connect(rpc_url, retry_s=0),
            "broker over gRPC, asyncio": lambda: penstock.aio.connect(rpc_url, retry_s=0),
        }
        self.queue: Any = opens[kind]()

    def do(self, call: Call) -> Any:
        """Call a method to its end: an awaitable is awaited, an iterator is read."""
        found = call(self.queue)
        if isawaitable(found):
            return self._runner.run(_awaited(found))
        if isinstance(found, AsyncIterator):
            return self._runner.run(_read(found))
        return list(found) if isinstance(found, Iterator) else found

    def close(self) -> None:
        self.do(lambda queue: queue.close())
        self._runner.close()


async def _awaited(found: Any) -> Any:
    return await found


async def _read(found: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in found]


@pytest.fixture(params=KINDS, scope="module")
def opened(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    server: RunningServer,
) -> Iterator[Opened]:
    queue = Opened(request.param, tmp_path_factory.mktemp("queues"), server)
    yield queue
    queue.close()


# -- run -------------------------------------------------------------------------------------------

ID = "01M7MCZAARS076KW0000000003"


@dataclass(frozen=True, slots=True)
class Own(Operation[None]):
    """An operation that Penstock does not have."""

    verb = Verb.READ
    answer = nothing()


NOT_RUN: list[tuple[Any, str]] = [
    (5, "not 5"),
    (None, "not None"),
    (Operation(), "run takes an operation"),
    (Operation, "Operation is a class"),
    (Browse, r"Browse is a class: give a value, Browse\(\)"),
    (Browse(), r"Browse is an operation of brokers: use browse\(\)"),
    (ListDead(), r"use dead\(\)"),
    (ListHistory(ID), r"use history\(\)"),
    (ReleaseHolder("ann"), r"use release\(\)"),
    (LeaseMessage(1), r"use lease\(\)"),
    (CancelDeliverable(1), r"use cancel\(\) or purge\(\)"),
    (Own(), "Own"),
]


@pytest.mark.parametrize(("operation", "text"), NOT_RUN, ids=lambda value: str(value)[:30])
def test_what_is_no_operation_of_a_queue_is_not_run(
    opened: Opened, operation: Any, text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        opened.do(lambda queue: queue.run(operation))


# -- arguments of methods --------------------------------------------------------------------------

COUNT = "it must be a whole number from 1 to 10000$"
GROUP = "is not a group name: 1 to 64 of"
NO_ID = "is not a message id: those have 26 characters"
NO_RECEIPT = "^this is not a receipt"
NO_LEASED = "^give a leased message, its receipt, or several of them$"
SECONDS = r"it must be a number from 0 to 3153600000$"
STATES = (
    "it must be one of ready, scheduled, leased, parked, blocked, dead, done, expired, cancelled$"
)

BAD: dict[str, tuple[Call, str]] = {
    # publishing
    "headers=[('a', 'b')]": (
        lambda q: q.enqueue(b"x", headers=[("a", "b")]),
        "headers are a mapping of text to text, not list",
    ),
    "headers=[]": (lambda q: q.enqueue(b"x", headers=[]), "not list"),
    "headers=0": (lambda q: q.enqueue(b"x", headers=0), "not int"),
    "headers='ab'": (lambda q: q.enqueue(b"x", headers="ab"), "not str"),
    "header name 5": (lambda q: q.enqueue(b"x", headers={5: "a"}), "a header name is text"),
    "header value 5": (lambda q: q.enqueue(b"x", headers={"a": 5}), "header 'a' is text, not int"),
    "dedup_window_s=0": (
        lambda q: q.enqueue(b"x", dedup_id="a", dedup_window_s=0),
        r"dedup_window_s is 0; it must be a number from 0.001 to 3153600000$",
    ),
    "dedup_window_s=1e-9": (
        lambda q: q.enqueue(b"x", dedup_id="a", dedup_window_s=1e-9),
        "dedup_window_s is 1e-09; it must be a number from 0.001",
    ),
    "dedup_id=5": (lambda q: q.enqueue(b"x", dedup_id=5), "dedup_id is text, not int"),
    "key=5": (lambda q: q.enqueue(b"x", key=5), "key is text, not int"),
    "key, surrogate": (lambda q: q.enqueue(b"x", key="\ud800"), "key is not valid text"),
    "payload, surrogate": (lambda q: q.enqueue("\ud800"), "payload is not valid text"),
    "payload, number": (lambda q: q.enqueue(5), "a payload is bytes, str, dict or list, not int"),
    "priority=True": (lambda q: q.enqueue(b"x", priority=True), "priority is True"),
    "max_attempts=0": (
        lambda q: q.enqueue(b"x", max_attempts=0),
        "max_attempts is 0; it must be a whole number from 1 to 65535",
    ),
    "max_attempts=1.0": (lambda q: q.enqueue(b"x", max_attempts=1.0), "max_attempts is 1.0;"),
    "content_type=5": (lambda q: q.enqueue(b"x", content_type=5), "content_type is text, not int"),
    "compression='x'": (
        lambda q: q.enqueue(b"x", compression="x"),
        "compression is 'x'; it must be one of none, gzip, zstd$",
    ),
    "compression=5": (lambda q: q.enqueue(b"x", compression=5), "compression is 5;"),
    "delay=True": (lambda q: q.enqueue(b"x", delay=True), "delay is True"),
    "delay and deliver_at": (
        lambda q: q.enqueue(b"x", delay=1, deliver_at=5),
        "^give delay or deliver_at, not both$",
    ),
    "deliver_at as text": (lambda q: q.enqueue(b"x", deliver_at="noon"), "^deliver_at is 'noon'"),
    "deliver_at too late": (lambda q: q.enqueue(b"x", deliver_at=1e11), r"to 4.9\d+e\+09$"),
    "second of a batch": (
        lambda q: q.enqueue_batch([b"x", NewMessage(payload=b"x", priority=11)]),
        "^message 1 of the batch: priority is 11;",
    ),
    "empty batch": (lambda q: q.enqueue_batch([]), "^a batch has 1 to 100000 messages, not 0$"),
    "publish nothing": (lambda q: q.publish([]), "^a batch has 1 to 100000 messages, not 0$"),
    # delivering
    "lease(0)": (lambda q: q.lease(0), f"^n is 0; {COUNT}"),
    "lease(10001)": (lambda q: q.lease(10001), f"^n is 10001; {COUNT}"),
    "lease(True)": (lambda q: q.lease(True), f"^n is True; {COUNT}"),
    "lease(1.0)": (lambda q: q.lease(1.0), f"^n is 1.0; {COUNT}"),
    "lease('1')": (lambda q: q.lease("1"), f"^n is '1'; {COUNT}"),
    "lease(holder=None)": (lambda q: q.lease(holder=None), "^holder is text, not NoneType$"),
    "lease(holder=5)": (lambda q: q.lease(holder=5), "^holder is text, not int$"),
    "lease(lease_s=0)": (lambda q: q.lease(lease_s=0), "lease_s is 0; it must be a number from"),
    "lease(wait_s=None)": (lambda q: q.lease(wait_s=None), f"wait_s is None; {SECONDS}"),
    "lease(wait_s=True)": (lambda q: q.lease(wait_s=True), f"wait_s is True; {SECONDS}"),
    "lease(group=None)": (lambda q: q.lease(group=None), f"^None {GROUP}"),
    "lease(group='')": (lambda q: q.lease(group=""), f"^'' {GROUP}"),
    "lease(group=5)": (lambda q: q.lease(group=5), f"^5 {GROUP}"),
    "lease(group='a b')": (lambda q: q.lease(group="a b"), f"^'a b' {GROUP}"),
    "lease(2, group='a b')": (lambda q: q.lease(2, group="a b"), f"^'a b' {GROUP}"),
    "dequeue(group=None)": (lambda q: q.dequeue(group=None), f"^None {GROUP}"),
    "dequeue_batch(True)": (lambda q: q.dequeue_batch(True), f"^n is True; {COUNT}"),
    "dequeue_batch(10001)": (lambda q: q.dequeue_batch(10001), f"^n is 10001; {COUNT}"),
    "lease_dead(10001)": (lambda q: q.lease_dead(10001), f"^n is 10001; {COUNT}"),
    "lease_dead(group='a b')": (lambda q: q.lease_dead(group="a b"), f"^'a b' {GROUP}"),
    "stream(batch=True)": (lambda q: q.stream(print, idle_s=0, batch=True), "^batch is True; it"),
    "stream(batch=0)": (lambda q: q.stream(idle_s=0, batch=0), f"^batch is 0; {COUNT}"),
    "stream(idle_s=-1)": (lambda q: q.stream(print, idle_s=-1), f"^idle_s is -1; {SECONDS}"),
    "stream(group='a/b')": (lambda q: q.stream(idle_s=0, group="a/b"), f"^'a/b' {GROUP}"),
    "stream(lease_s=0)": (lambda q: q.stream(idle_s=0, lease_s=0), "^lease_s is 0;"),
    # settling
    "ack([5])": (lambda q: q.ack([5]), NO_LEASED),
    "ack([None])": (lambda q: q.ack([None]), NO_LEASED),
    "ack(b'x')": (lambda q: q.ack(b"x"), NO_LEASED),
    "ack(5)": (lambda q: q.ack(5), NO_LEASED),
    "ack([])": (lambda q: q.ack([]), "^nothing to settle"),
    "nack([5])": (lambda q: q.nack([5]), NO_LEASED),
    "extend([5])": (lambda q: q.extend([5]), NO_LEASED),
    "release([5])": (lambda q: q.release([5]), NO_LEASED),
    # looking
    "browse('x')": (lambda q: q.browse("x"), f"^state is 'x'; {STATES}"),
    "browse(5)": (lambda q: q.browse(5), f"^state is 5; {STATES}"),
    "browse(group=5)": (lambda q: q.browse(group=5), f"^5 {GROUP}"),
    "dead(group=None)": (lambda q: q.dead(group=None), f"^None {GROUP}"),
    "history(5)": (lambda q: q.history(5), NO_ID),
    "history(group='a b')": (lambda q: q.history(ID, group="a b"), f"^'a b' {GROUP}"),
    "get(None)": (lambda q: q.get(None), NO_ID),
    "state(group='a b')": (lambda q: q.state(ID, group="a b"), f"^'a b' {GROUP}"),
    "peek(True)": (lambda q: q.peek(True), "^n is True; it must be a whole number from"),
    # operating
    "seek(seq=True)": (lambda q: q.seek(seq=True), "^seq is True; it must be a whole number from"),
    "seek(seq='1')": (lambda q: q.seek(seq="1"), "^seq is '1'; it must be a whole number from"),
    "seek(seq=10**30)": (lambda q: q.seek(seq=10**30), "it must be a whole number from 1 to"),
    "seek(id='x')": (lambda q: q.seek(id="x"), NO_ID),
    "seek(id=5)": (lambda q: q.seek(id=5), NO_ID),
    "groups.create(id='x')": (lambda q: q.groups.create("g", id="x"), NO_ID),
    "redrive([5])": (lambda q: q.redrive([5]), NO_ID),
    "discard(['x'])": (lambda q: q.discard(["x"]), NO_ID),
    "redrive(dry_run=5)": (lambda q: q.redrive(dry_run=5), "^dry_run is 5; it must be true or fal"),
    "redrive(dry_run=None)": (lambda q: q.redrive(dry_run=None), "^dry_run is None; it must be"),
    "compact(on_progress=5)": (
        lambda q: q.compact(on_progress=5),
        "^on_progress is 5; it must be a function$",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_invalid_input(opened: Opened, name: str) -> None:
    call, text = BAD[name]
    opened.do(lambda queue: queue.enqueue(b"stays ready"))
    before = opened.do(lambda queue: queue.stats())
    with pytest.raises(InvalidInput, match=text):
        opened.do(call)
    after = opened.do(lambda queue: queue.stats())
    assert (after.published, after.ready) == (before.published, before.ready)


WITH_A_JOB: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "nack, reason 5": (lambda q, job: q.nack(job, 5), "^reason is text, not int$"),
    "nack, delay -1": (lambda q, job: q.nack(job, delay=-1), f"^delay is -1; {SECONDS}"),
    "nack, delay True": (lambda q, job: q.nack(job, delay=True), f"^delay is True; {SECONDS}"),
    "nack, delay '1'": (lambda q, job: q.nack(job, delay="1"), f"^delay is '1'; {SECONDS}"),
    "extend, 0": (lambda q, job: q.extend(job, 0), "^lease_s is 0; it must be a number from 0.001"),
    "extend, True": (lambda q, job: q.extend(job, True), "^lease_s is True; it must be a number"),
    "release twice": (lambda q, job: q.release([job, job]), "^the same receipt is given twice$"),
    "ack and no receipt": (lambda q, job: q.ack([job, 5]), NO_LEASED),
    "emit of a bad message": (
        lambda q, job: q.ack(job, emit=[b"x", NewMessage(payload=b"x", priority=11)]),
        "^message 1 of the batch: priority is 11;",
    ),
    "emit=5": (lambda q, job: q.ack(job, emit=5), "^a batch is a list of messages, not int$"),
    "emit=None": (lambda q, job: q.ack(job, emit=None), "^a batch is a list of messages, not None"),
    "emit=''": (lambda q, job: q.ack(job, emit=""), "^this is one payload or message"),
}


@pytest.mark.parametrize("name", WITH_A_JOB)
def test_a_wrong_settlement_is_invalid_input(opened: Opened, name: str) -> None:
    call, text = WITH_A_JOB[name]
    opened.do(lambda queue: queue.enqueue(b"x"))
    (job,) = opened.do(lambda queue: queue.lease())
    with pytest.raises(InvalidInput, match=text):
        opened.do(lambda queue: call(queue, job))
    assert opened.do(lambda queue: queue.state(job.id)) == "leased"
    opened.do(lambda queue: queue.ack(job))


@pytest.mark.parametrize("receipt", ["", "x", "x" * 500, "ä", {"a": 1}])
@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "release"])
def test_other_text_is_no_receipt(opened: Opened, verb: str, receipt: Any) -> None:
    opened.do(lambda queue: queue.enqueue(b"x"))
    (job,) = opened.do(lambda queue: queue.lease())

    def settle(queue: Any, given: Any) -> Any:
        return getattr(queue, verb)(given)

    for given in (receipt, [job, *([receipt] if isinstance(receipt, str) else receipt)]):
        with pytest.raises(ReceiptInvalid, match=NO_RECEIPT):
            opened.do(partial(settle, given=given))
    assert opened.do(lambda queue: queue.state(job.id)) == "leased"
    opened.do(lambda queue: queue.ack(job))


OTHERS: list[tuple[Call, type[PenstockError], str]] = [
    (lambda q: q.lease(group="nope"), NoSuchGroup, "^there is no group 'nope'; create it first$"),
    (lambda q: q.groups.delete("nope"), NoSuchGroup, "^there is no group 'nope'; create it first$"),
    (lambda q: q.enqueue(b"x", key="x" * 1025), TooLarge, "^key has 1025 bytes; the maximum is"),
    (lambda q: q.enqueue(b"x", headers={"a": "x" * 70_000}), TooLarge, "^header 'a' has 70000 byt"),
]


@pytest.mark.parametrize(("call", "kind", "text"), OTHERS)
def test_other_errors_are_the_same(
    opened: Opened, call: Call, kind: type[PenstockError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        opened.do(call)


# -- settings --------------------------------------------------------------------------------------

SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"lease_s": None}, "^lease_s is None; it must be a number from 0.001 to 604800$"),
    ({"max_attempts": 0}, "^max_attempts is 0; it must be a whole number from 1 to 65535$"),
    ({"sync": None}, "^sync is None; it must be one of always, interval, batch, never$"),
    ({"leas_s": 5}, "^there is no setting 'leas_s'; did you mean lease_s[?]$"),
]


@pytest.mark.parametrize(("settings", "text"), SETTINGS)
def test_wrong_settings_are_refused_by_every_interface(
    tmp_path: Path, server: RunningServer, settings: dict[str, Any], text: str
) -> None:
    async def open_async() -> None:
        await penstock.aio.open(tmp_path / "queue", **settings)

    with connect_broker(server.url) as broker:
        broker.create_queue("errors/settings")
        calls: list[Callable[[], object]] = [
            lambda: penstock.open(tmp_path / "queue", **settings),
            lambda: penstock.open("memory:", **settings),
            lambda: asyncio.run(open_async()),
            lambda: broker.create_queue("errors/new", **settings),
            lambda: broker.change_queue("errors/settings", **settings),
            lambda: broker.create_namespace("new", defaults=settings),
        ]
        for call in calls:
            with pytest.raises(InvalidInput, match=text):
                call()
        assert "errors/new" not in broker.queues("errors")
    assert not (tmp_path / "queue").exists()


@pytest.mark.parametrize("defaults", [5, [("lease_s", 5)], "lease_s", 0])
def test_the_defaults_of_a_namespace_are_a_mapping(server: RunningServer, defaults: Any) -> None:
    with connect_broker(server.url) as broker:
        with pytest.raises(InvalidInput, match="settings are a mapping of names to values, not"):
            broker.create_namespace("wrong", defaults=defaults)
        assert "wrong" not in [one.name for one in broker.namespaces()]


def test_durations_of_a_brokers_queue_may_be_timedeltas(server: RunningServer) -> None:
    with connect_broker(server.url) as broker:
        made = broker.create_queue("errors/durations", lease_s=timedelta(minutes=2))
        changed = broker.change_queue("errors/durations", retention_s=timedelta(days=1))
        space = broker.create_namespace("durations", defaults={"lease_s": timedelta(seconds=9)})
    assert (made.settings.lease_s, changed.settings.retention_s) == (120, 86400)
    assert space.defaults == {"lease_s": 9}
