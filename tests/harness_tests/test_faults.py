"""The fault injector fails exactly what it is told to."""

import errno

import pytest

from penstock.ledger.memory_files import MemoryFiles
from tests.harness.disk import SyncFailed
from tests.harness.faults import SHORT_WRITE, Fault, FaultyFiles
from tests.harness.journal import RecordedFiles
from tests.harness.power_cuts import Whole


def test_the_nth_call_fails_once() -> None:
    files = FaultyFiles(MemoryFiles(), Fault(3, errno.EIO))
    fd = files.open("/a", "create")
    files.pwrite(fd, b"a", 0)
    with pytest.raises(OSError, match="Input/output"):
        files.pwrite(fd, b"b", 1)
    files.pwrite(fd, b"c", 1)
    assert files.pread(fd, 9, 0) == b"ac"
    assert files.failures == [("pwrite", "/a")]
    assert files.calls == {"create": 1, "pwrite": 3, "pread": 1}


def test_from_the_nth_call_on_every_call_fails_until_healed() -> None:
    fault = Fault(2, errno.ENOSPC, forever=True, methods=frozenset({"pwrite"}))
    files = FaultyFiles(MemoryFiles(), fault)
    fd = files.open("/a", "create")
    files.pwrite(fd, b"a", 0)
    for _ in range(3):
        with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
            files.pwrite(fd, b"b", 1)
    files.fdatasync(fd)
    files.heal()
    assert files.pwrite(fd, b"b", 1) == 1


def test_a_short_write_writes_half() -> None:
    fault = Fault(1, SHORT_WRITE, methods=frozenset({"pwrite"}))
    files = FaultyFiles(MemoryFiles(), fault)
    fd = files.open("/a", "create")
    assert files.pwrite(fd, b"abcd", 0) == 2
    assert files.pwrite(fd, b"cd", 2) == 2
    assert files.pread(fd, 9, 0) == b"abcd"


def test_a_failed_sync_is_known_to_the_recorder() -> None:
    recorded = RecordedFiles()
    files = FaultyFiles(recorded, Fault(1, methods=frozenset({"fdatasync"})))
    fd = files.open("/a", "create")
    files.pwrite(fd, b"abc", 0)
    with pytest.raises(OSError, match="Input/output"):
        files.fdatasync(fd)
    assert recorded.journal.steps[-1] == SyncFailed(1)


def test_no_later_sync_makes_certain_what_a_failed_one_left() -> None:
    recorded = RecordedFiles()
    files = FaultyFiles(recorded, Fault(1, methods=frozenset({"fdatasync"})))
    fd = files.open("/a", "create")
    files.sync_directory("/")
    files.pwrite(fd, b"abc", 0)
    with pytest.raises(OSError, match="Input/output"):
        files.fdatasync(fd)
    files.pwrite(fd, b"def", 3)
    files.fdatasync(fd)
    disk = recorded.journal.end()
    history = disk.histories[1]
    assert [change.certain for change in history.changes] == [False, True]
    assert disk.pending_steps() == [2]


def test_what_is_written_again_after_a_failed_sync_is_certain() -> None:
    recorded = RecordedFiles()
    files = FaultyFiles(recorded, Fault(2, methods=frozenset({"fdatasync"})))
    fd = files.open("/a", "create")
    files.sync_directory("/")
    files.pwrite(fd, b"abc", 0)
    files.fdatasync(fd)
    files.pwrite(fd, b"XYZ", 1)
    with pytest.raises(OSError, match="Input/output"):
        files.fdatasync(fd)
    files.fdatasync(fd)
    nothing_kept = Whole(names=False, content_too=False)
    assert recorded.journal.end().after(nothing_kept).histories[1].now() == b"abc"
    files.pwrite(fd, files.pread(fd, 4, 0), 0)
    files.fdatasync(fd)
    assert recorded.journal.end().after(nothing_kept).histories[1].now() == b"aXYZ"
