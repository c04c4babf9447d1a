"""Writing behind: the disk begins early, so that sealing a segment does not wait for all of it."""

import errno
from pathlib import Path

import pytest

from penstock.ledger import Ledger, LedgerSettings, verify
from penstock.ledger.files import OsFiles
from penstock.ledger.settings import MIB, SyncPolicy

PAYLOAD = bytes(1000)


class HintedFiles(OsFiles):
    """OsFiles that remember which ranges the system was asked to begin with."""

    def __init__(self, *, failing: bool = False) -> None:
        self.ranges: list[tuple[int, int]] = []
        self._failing = failing

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        self.ranges.append((offset, offset + length))
        if self._failing:
            raise OSError(errno.EINVAL, "no such advice here")
        super().start_writing(fd, offset, length)


def fill(path: Path, files: OsFiles, *, sync: SyncPolicy, mapped: bool = True) -> None:
    settings = LedgerSettings(sync=sync, mapped=mapped, segment_bytes=8 * MIB)
    with Ledger.open(str(path), settings, files=files) as ledger:
        for _ in range(60):
            ledger.messages.append_batch([PAYLOAD] * 100)
            ledger.commit()


@pytest.mark.parametrize("mapped", [True, False])
def test_a_busy_log_is_written_out_before_it_is_sealed_each_byte_once(
    tmp_path: Path, mapped: bool
) -> None:
    files = HintedFiles()
    fill(tmp_path / "queue", files, sync="never", mapped=mapped)
    assert files.ranges
    assert all(end - start >= MIB for start, end in files.ranges)
    followed = zip(files.ranges, files.ranges[1:], strict=False)
    assert all(second[0] == first[1] for first, second in followed)
    assert verify(str(tmp_path / "queue")).is_sound


def test_what_every_commit_syncs_needs_no_hint(tmp_path: Path) -> None:
    files = HintedFiles()
    fill(tmp_path / "queue", files, sync="always")
    assert files.ranges == []


def test_a_system_that_does_not_take_the_hint_is_no_trouble(tmp_path: Path) -> None:
    files = HintedFiles(failing=True)
    fill(tmp_path / "queue", files, sync="never")
    assert files.ranges
    assert verify(str(tmp_path / "queue")).is_sound
