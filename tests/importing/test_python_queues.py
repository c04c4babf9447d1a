"""Import from persist-queue and huey, written by their own libraries."""

import pickle
from datetime import datetime, timedelta
from pathlib import Path

import persistqueue
import pytest
from huey import SqliteHuey
from persistqueue.serializers import json as json_serializer

import penstock
from penstock.importing.huey import HueyDatabase
from penstock.importing.persist_queue import PersistQueueDatabase
from penstock.importing.record import ImportFailed
from penstock.importing.writing import import_queue


def contents(path: Path) -> list[bytes]:
    with penstock.open(path) as queue:
        return [one.payload for one in queue.dequeue_batch(100)]


def test_a_plain_persist_queue_keeps_order_and_times(tmp_path: Path) -> None:
    theirs = persistqueue.SQLiteQueue(
        str(tmp_path / "theirs"), auto_commit=True, serializer=json_serializer
    )
    for n in range(5):
        theirs.put({"n": n})
    assert theirs.get() == {"n": 0}
    theirs.task_done()
    theirs.close()
    source = PersistQueueDatabase(str(tmp_path / "theirs"))
    times_ns = [one.timestamp_ns for one in source.messages()]
    made = import_queue(source, str(tmp_path / "new"))
    assert (made.waiting, made.done, made.dead) == (4, 0, 0)
    with penstock.open(tmp_path / "new") as queue:
        found = list(queue.browse())
    assert [one.payload for one in found] == [b'{"n": %d}' % n for n in range(1, 5)]
    assert [one.published_ns for one in found] == times_ns
    assert {one.content_type for one in found} == {"application/json"}


def test_an_ack_queue_keeps_what_is_done_failed_and_taken(tmp_path: Path) -> None:
    theirs = persistqueue.SQLiteAckQueue(str(tmp_path / "theirs"), auto_commit=True)
    for n in range(5):
        theirs.put(n)
    theirs.ack(theirs.get())
    theirs.ack_failed(theirs.get())
    theirs.get()  # taken, never acknowledged
    theirs.close()
    made = import_queue(PersistQueueDatabase(str(tmp_path / "theirs")), str(tmp_path / "new"))
    assert (made.waiting, made.done, made.dead) == (3, 1, 1)
    with penstock.open(tmp_path / "new") as queue:
        [letter] = queue.dead()
        assert pickle.loads(letter.message.payload) == 1
        assert "ack_failed" in letter.reason
    assert [pickle.loads(one) for one in contents(tmp_path / "new")] == [2, 3, 4]


def test_a_lifo_queue_is_imported_in_the_order_of_its_deliveries(tmp_path: Path) -> None:
    theirs = persistqueue.FILOSQLiteQueue(str(tmp_path / "theirs"), auto_commit=True)
    for n in range(3):
        theirs.put(n)
    theirs.close()
    import_queue(PersistQueueDatabase(str(tmp_path / "theirs")), str(tmp_path / "new"))
    assert [pickle.loads(one) for one in contents(tmp_path / "new")] == [2, 1, 0]


def test_several_queues_need_a_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        theirs = persistqueue.SQLiteQueue(str(tmp_path / "theirs"), name=name, auto_commit=True)
        theirs.put(name)
        theirs.close()
    with pytest.raises(ImportFailed, match="a, b: choose one with --queue"):
        PersistQueueDatabase(str(tmp_path / "theirs"))
    source = PersistQueueDatabase(str(tmp_path / "theirs"), queue="b")
    assert import_queue(source, str(tmp_path / "new")).waiting == 1


def test_tasks_of_huey_wait_and_are_scheduled_as_before(tmp_path: Path) -> None:
    huey = SqliteHuey("app", filename=str(tmp_path / "huey.db"))

    @huey.task()  # type: ignore[untyped-decorator]
    def add(a: int, b: int) -> int:
        return a + b

    add(1, 2)
    huey.add_schedule(add.s(3, 4, eta=datetime.now() + timedelta(days=1)))
    huey.enqueue(add.s(5, 6, priority=7))
    huey.enqueue(add.s(7, 8, priority=50))
    source = HueyDatabase(str(tmp_path / "huey.db"))
    made = import_queue(source, str(tmp_path / "new"))
    assert (made.waiting, made.done, made.dead) == (4, 0, 0)
    assert made.problems == ("task 3: the priority 50 became 9",)
    with penstock.open(tmp_path / "new") as queue:
        assert sorted(one.priority for one in queue.browse()) == [5, 5, 7, 9]
        [later] = queue.browse(state="scheduled")
        assert pickle.loads(later.payload).args == (3, 4)
        assert {one.content_type for one in queue.browse()} == {"application/x-python-pickle"}
        assert pickle.loads(next(iter(queue.browse())).payload).args == (1, 2)


@pytest.mark.parametrize("kind", [PersistQueueDatabase, HueyDatabase])
def test_files_of_something_else_are_refused(tmp_path: Path, kind: type) -> None:
    (tmp_path / "text.db").write_text("this is no database, but text that is long enough" * 20)
    with pytest.raises(ImportFailed, match="cannot be read as an SQLite database"):
        kind(str(tmp_path / "text.db"))
    with pytest.raises(ImportFailed, match="is not a file"):
        kind(str(tmp_path / "missing.db"))
