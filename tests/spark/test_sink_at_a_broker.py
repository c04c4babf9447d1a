"""Writing through a running broker: all of a job or nothing of it, each transaction once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import penstock
from penstock.arrow.locations import close_connections
from penstock.broker import Verb
from penstock.errors import InvalidInput, KeyRefused, NotAllowed, Unreachable
from penstock.spark.options import WriteOptions
from penstock.spark.sink import BatchWriter, StagedRows, StreamWriter
from tests.server.running import RunningServer

QUEUE = "shop/orders"
PLAIN = StructType().add("payload", "binary")


class Door:
    """A way to a running broker's queue."""

    def __init__(self, server: RunningServer, by: str) -> None:
        places = {"url": server.url, "path": str(server.data)}
        self.options = {name: places[name] for name in by.split(" and ")}
        self.server = server

    def writer(self, schema: StructType = PLAIN, **options: Any) -> BatchWriter:
        given = {**self.options, "queue": QUEUE, **options}
        parsed = WriteOptions.parse({name: str(value) for name, value in given.items()})
        return BatchWriter(parsed, schema)

    def payloads(self) -> list[bytes]:
        with penstock.open(f"{self.server.url}/{QUEUE}") as queue:
            return [message.payload for message in queue.browse()]

    def staging(self) -> list[str]:
        if self.server.location != str(self.server.data):  # a database
            with psycopg.connect(self.server.location) as connection:
                rows = connection.execute(
                    "select n.name from penstock.node n join penstock.node p on p.queue = n.queue "
                    "and p.id = n.parent where p.name = 'staging'"
                ).fetchall()
            return [name for (name,) in rows]
        folder = self.server.data / "shop" / "orders" / "staging"
        return [entry.name for entry in folder.iterdir()] if folder.exists() else []


@pytest.fixture(params=["url", "path", "path and url", "url on postgres"])
def door(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Door]:
    by, _, store = request.param.partition(" on ")
    monkeypatch.setenv("PENSTOCK_TEST_STORE", store)
    with RunningServer(tmp_path / "data") as server:
        with server.client() as http:
            assert http.post("/api/v1/namespaces", json={"name": "shop"}).status_code == 201
        yield Door(server, by)


@pytest.fixture(params=["appended", "adopted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small jobs are appended, large ones adopted: both must keep the same promises."""
    if request.param == "adopted":
        monkeypatch.setattr("penstock.ledger.adoption.SMALL_BYTES", 0)
    return str(request.param)


def task(made: BatchWriter | StreamWriter, *payloads: bytes, partition: int = 0) -> StagedRows:
    """What a task does."""
    batch = pa.record_batch({"payload": pa.array(payloads, pa.binary())})
    staged = made.write(iter([batch]))
    assert isinstance(staged, StagedRows)
    return StagedRows(partition, staged.staged, "a query")


def test_a_job_is_there_as_a_whole_and_can_be_worked(door: Door, way: str) -> None:
    made = door.writer()
    staged = [task(made, b"c", b"d", partition=1), task(made, b"a", b"b")]
    assert door.payloads() == []
    with penstock.open(f"{door.server.url}/{QUEUE}") as queue:
        queue.enqueue(b"meanwhile")
        made.commit([*staged, None])
        found = [leased.payload for leased in queue.lease(10)]
    assert found == [b"meanwhile", b"a", b"b", b"c", b"d"]
    assert door.staging() == []


def test_a_repeated_transaction_is_a_no_op(door: Door, way: str) -> None:
    for version, data in ((1, b"a"), (1, b"again"), (2, b"b"), (1, b"late")):
        made = door.writer(txnAppId="nightly", txnVersion=version)
        made.commit([task(made, data)])
    assert door.payloads() == [b"a", b"b"]
    assert door.staging() == []


def test_a_driver_killed_before_the_adoption_loses_nothing_but_the_work(
    door: Door, way: str
) -> None:
    options: dict[str, Any] = {"txnAppId": "nightly", "txnVersion": 1}
    task(door.writer(**options), b"a", b"b")  # and the driver dies
    again = door.writer(**options)
    again.commit([task(again, b"a", b"b")])
    assert door.payloads() == [b"a", b"b"]
    assert len(door.staging()) == 1  # swept when it is a day old


def test_a_driver_killed_after_the_adoption_has_written_it_once(door: Door, way: str) -> None:
    options: dict[str, Any] = {"txnAppId": "nightly", "txnVersion": 1}
    made = door.writer(**options)
    staged = task(made, b"a", b"b")
    made.commit([staged])
    made.commit([staged])  # the answer was lost: it is asked again
    made.abort([staged])  # what Spark does when commit raises: nothing adopted may go
    again = door.writer(**options)
    again.commit([task(again, b"a", b"b")])
    assert door.payloads() == [b"a", b"b"]
    assert door.staging() == []


def test_an_aborted_job_and_a_failed_task_leave_nothing(door: Door) -> None:
    made = door.writer()
    made.abort([task(made, b"a"), None])
    bad = pa.record_batch({"payload": pa.array([b"a", None], pa.binary())})
    good = pa.record_batch({"payload": pa.array([b"x"], pa.binary())})
    with pytest.raises(InvalidInput, match="null"):
        made.write(iter([good, bad]))
    assert (door.payloads(), door.staging()) == ([], [])


def test_a_large_task_is_several_segments(door: Door) -> None:
    with door.server.client() as http:
        path = "/api/v1/namespaces/shop/queues/orders"
        assert http.put(path, json={"segment_bytes": 1 << 20}).status_code == 201
    made = door.writer()
    staged = task(made, *[b"x" * 1000] * 12_000)
    assert len(staged.staged) > 10
    made.commit([staged])
    with penstock.open(f"{door.server.url}/{QUEUE}") as queue:
        assert queue.stats().ready == 12_000
        assert queue.dequeue_batch(1)[0].payload == b"x" * 1000


def test_a_bounded_queue_is_refused(door: Door) -> None:
    with door.server.client() as http:
        http.put("/api/v1/namespaces/shop/queues/orders", json={"max_messages": 5})
    with pytest.raises(InvalidInput, match="max_messages is 5"):
        door.writer()


def test_a_stream_writes_each_batch_once(door: Door) -> None:
    given = {**door.options, "queue": QUEUE}
    for batch_id, data in ((0, b"a"), (1, b"b"), (1, b"again"), (2, b"c")):
        made = StreamWriter(WriteOptions.parse(given), PLAIN)
        made.commit([task(made, data)], batch_id)
    assert door.payloads() == [b"a", b"b", b"c"]


def test_staged_work_outlives_the_broker(tmp_path: Path) -> None:
    """Stopped between staging and commit, the next broker takes the job in."""
    with RunningServer(tmp_path / "data") as first:
        made = Door(first, "url").writer(txnAppId="nightly", txnVersion=1)
        staged = task(made, b"a")
    close_connections()
    with (
        pytest.raises(Unreachable, match="no connection to"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("penstock.arrow.locations.RETRY_S", 0.0)
        Door(first, "url").writer()
    close_connections()
    with RunningServer(tmp_path / "data") as second:
        again = Door(second, "url").writer(txnAppId="nightly", txnVersion=1)
        again.commit([staged])
        again.commit([staged])
        assert Door(second, "url").payloads() == [b"a"]


def test_keys_need_the_verb(door: Door) -> None:
    writer = door.server.new_key(Verb.PUBLISH, namespaces=["shop"])
    reader = door.server.new_key(Verb.READ)
    with pytest.raises(KeyRefused):
        made = door.writer()
        made.commit([task(made, b"a")])
    with pytest.raises(NotAllowed):
        made = door.writer(key=reader)
        made.commit([task(made, b"a")])
    made = door.writer(key=writer)
    assert writer not in repr(made.__dict__)
    made.commit([task(made, b"a")])
    with door.server.client(headers={"x-api-key": reader}) as http:
        found = http.get("/api/v1/namespaces/shop/queues/orders").json()
    assert found["stats"]["ready"] == 1


def test_a_directory_of_a_queue_names_the_queue_at_the_broker(tmp_path: Path) -> None:
    """`orders` is the name of the directory shop/orders here, not a queue of another namespace."""
    with RunningServer(tmp_path / "data") as server:
        with penstock.open(f"{server.url}/{QUEUE}") as queue:
            queue.enqueue(b"first")
        door = Door(server, "path and url")
        for name in ("orders", QUEUE):
            made = door.writer(path=server.data / "shop" / "orders", queue=name)
            made.commit([task(made, name.encode())])
        with pytest.raises(InvalidInput, match="is shop/orders"):
            door.writer(path=server.data / "shop" / "orders", queue="default/orders")
        assert door.payloads() == [b"first", b"orders", b"shop/orders"]
