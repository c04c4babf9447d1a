"""One writer a directory; the second is told who the first is, and a dead one is in no way."""

import json
import os
import re
from pathlib import Path

import pytest

from penstock.errors import LedgerError, LedgerLocked
from penstock.ledger import Ledger
from tests.ledger.other_process import OtherProcess
from tests.ledger.store import Store, seqs
from tests.ledger.watched_files import WatchedFiles

HOLDER = """
    import sys
    from penstock.ledger import Ledger
    ledger = Ledger.open(sys.argv[1])
    ledger.messages.append(b"first")
    print("open", flush=True)
    sys.stdin.readline()
"""


def test_the_second_writer_is_told_pid_host_and_since_when(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with OtherProcess(HOLDER, path) as holder:
        assert holder.answer() == "open"
        with pytest.raises(LedgerLocked) as caught:
            Ledger.open(str(path))
    message = str(caught.value)
    assert f"process {holder.pid} on {os.uname().nodename}, since " in message
    assert re.search(r"since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", message)
    assert "read-only" in message
    assert "broker" in message


def test_a_second_handle_in_the_same_process_is_refused_too(store: Store) -> None:
    store.fill(1)
    with pytest.raises(LedgerLocked, match=f"process {os.getpid()} on .*, since 2023-11-14T"):
        Ledger.open(str(store.path))
    store.fill(1)
    assert seqs(store.messages) == [1, 2]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    for number in range(1, 4):
        with OtherProcess(HOLDER, path) as holder:
            assert holder.answer() == "open"
            holder.kill()
        with Ledger.open(str(path)) as ledger:
            assert ledger.messages.next_seq == number + 1


def test_the_lock_is_free_after_close_and_after_a_failed_opening(store: Store) -> None:
    store.fill(1)
    store.close()
    segment = store.segment(1)
    data = segment.read_bytes()
    segment.unlink()
    segment.mkdir()
    with pytest.raises(LedgerError):
        store.open()
    segment.rmdir()
    segment.write_bytes(data)
    store.open()
    assert seqs(store.messages) == [1]


def test_what_stands_in_the_lock_file_is_only_information(store: Store) -> None:
    store.fill(1)
    store.close()
    for content in (b"", b"garbage", b"[1]", b'{"pid": 1}', b"\xff" * 5000):
        store.file("LOCK").write_bytes(content)
        store.open()
        holder = json.loads(store.file("LOCK").read_bytes())
        assert (holder["pid"], holder["host"]) == (os.getpid(), os.uname().nodename)
        store.file("LOCK").write_bytes(content)
        with pytest.raises(LedgerLocked, match="is being written by another process"):
            Ledger.open(str(store.path))
        store.close()


def test_a_disk_with_no_room_for_the_holders_name_is_no_obstacle(store: Store) -> None:
    """A full disk is when a queue must be opened: to work it off."""

    class Full(WatchedFiles):
        def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
            raise OSError(28, "No space left on device")

    store.fill(3)
    store.close()
    store.files = Full()
    store.open()
    assert seqs(store.messages) == [1, 2, 3]
    with pytest.raises(LedgerLocked, match="is being written by another process"):
        Ledger.open(str(store.path))


def test_a_broker_brings_its_own_lock(store: Store) -> None:
    store.open(own_lock=False)
    store.fill(1)
    assert not store.file("LOCK").exists()
