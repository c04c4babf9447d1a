"""Fork: the child's copy of the handle is of no use and does no harm; the parent goes on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock.codec import Draft
from penstock.errors import LedgerLocked
from penstock.ledger import Cursor, Ledger, read_entry, seq_at_time
from penstock.ledger.compaction import remove_before
from penstock.ledger.files import watch_fork
from penstock.ledger.json_files import Marks
from tests.ledger.forking import in_forked_child
from tests.ledger.other_process import OtherProcess
from tests.ledger.store import EVENT, SMALL, Store, seqs
from tests.ledger.watched_files import WatchedFiles

TOUCHES: dict[str, Callable[[Ledger], object]] = {
    "append": lambda ledger: ledger.messages.append(b""),
    "append batch": lambda ledger: ledger.messages.append_batch([b"", b""]),
    "append draft": lambda ledger: ledger.events.append_draft(Draft(b"", type=EVENT)),
    "sync": lambda ledger: ledger.sync(),
    "rest": lambda ledger: ledger.rest(),
    "read by seq": lambda ledger: read_entry(ledger.messages, 1),
    "read by time": lambda ledger: seq_at_time(ledger.messages, 0),
    "read in order": lambda ledger: Cursor(ledger.messages, 1).read(1),
    "save settings": lambda ledger: ledger.save_queue_settings({}),
    "save marks": lambda ledger: ledger.save_marks(ledger.messages, Marks(9, 9)),
    "save a snapshot": lambda ledger: ledger.save_snapshot(1, b""),
    "remove": lambda ledger: remove_before(ledger, ledger.messages, 100),
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_a_forked_child_gets_a_clear_error_and_the_parent_goes_on(
    any_store: Store, touch: str
) -> None:
    any_store.fill(100)
    answer = in_forked_child(lambda: TOUCHES[touch](any_store.ledger))
    assert answer.startswith("LedgerForked: ")
    assert "open it again in the child" in answer
    any_store.fill(100)
    assert seqs(any_store.messages) == list(range(1, 201))
    any_store.reopen()
    assert seqs(any_store.messages) == list(range(1, 201))
    assert any_store.damage == []


def test_with_always_the_child_cannot_commit(store: Store) -> None:
    store.open(replace(SMALL, sync="always"))
    store.fill(1)
    assert in_forked_child(store.ledger.commit).startswith("LedgerForked: ")


def test_closing_in_the_child_is_harmless(any_store: Store) -> None:
    any_store.fill(10)

    def close_twice() -> str:
        any_store.ledger.close()
        any_store.ledger.close()
        return "closed"

    assert in_forked_child(close_twice) == "closed"
    with pytest.raises(LedgerLocked):
        Ledger.open(str(any_store.path))
    any_store.fill(10)
    any_store.reopen()
    assert seqs(any_store.messages) == list(range(1, 21))


def test_the_end_of_a_child_is_harmless(any_store: Store) -> None:
    any_store.fill(10)
    assert in_forked_child(lambda: "nothing") == "nothing"
    any_store.fill(10)
    assert len(seqs(any_store.messages)) == 20


def test_the_child_does_not_hang_where_the_parent_was_syncing(tmp_path: Path) -> None:
    """A thread of the parent holds the locks at the fork; in the child nobody gives them back."""
    files = WatchedFiles()
    store = Store(tmp_path / "queue", replace(SMALL, sync="always"), files=files)
    store.fill(100)
    syncing, go_on = Event(), Event()

    def be_slow() -> None:
        files.before_fdatasync = lambda: None
        syncing.set()
        go_on.wait(30)

    files.before_fdatasync = be_slow
    thread = Thread(target=store.fill, args=(1,))
    thread.start()
    assert syncing.wait(30)
    for touch in TOUCHES.values():
        answer = in_forked_child(lambda touch=touch: touch(store.ledger))  # type: ignore[misc]
        assert answer.startswith("LedgerForked: ")
    assert in_forked_child(store.ledger.commit).startswith("LedgerForked: ")
    go_on.set()
    thread.join(30)
    store.fill(1)
    assert seqs(store.messages) == list(range(1, 103))
    store.close()


@pytest.mark.usefixtures("either_codec")
def test_the_child_does_not_hang_where_the_parent_was_appending(any_store: Store) -> None:
    stop = Event()
    any_store.open()

    def append() -> None:
        while not stop.is_set():
            any_store.messages.append(b"x" * 1000)

    threads = [Thread(target=append) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            answer = in_forked_child(lambda: any_store.messages.append(b""))
            assert answer.startswith("LedgerForked: ")
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def test_a_handle_that_fails_in_the_child_does_not_keep_the_others_from_being_told(
    store: Store,
) -> None:
    class Broken:
        def forked(self) -> None:
            raise ValueError("broken")

    broken = [Broken() for _ in range(200)]  # some before the ledger, some after it
    for handle in broken:
        watch_fork(handle)
    store.fill(1)
    answer = in_forked_child(lambda: store.messages.append(b""), may_ignore=ValueError)
    assert answer.startswith("LedgerForked: ")


def test_a_child_opens_the_queue_itself_after_the_parent_closed_it(any_store: Store) -> None:
    any_store.fill(3)
    any_store.close()

    def append() -> int:
        any_store.open()
        any_store.fill(1)
        any_store.close()
        return 4

    assert in_forked_child(append) == "4"
    assert seqs(any_store.messages) == [1, 2, 3, 4]


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = """
        import os, sys
        from penstock.ledger import Ledger
        ledger = Ledger.open(sys.argv[1])
        ledger.messages.append(b"of the parent")
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            sys.stdin.readline()
            os._exit(0)
        sys.stdin.readline()
    """
    path = tmp_path / "queue"
    with OtherProcess(code, path) as parent:
        assert int(parent.answer()) > 0
        with pytest.raises(LedgerLocked):
            Ledger.open(str(path))
        parent.kill()
        with Ledger.open(str(path)) as ledger:
            assert read_entry(ledger.messages, 1).payload == b"of the parent"
            assert ledger.messages.append(b"of the heir") == 2
