"""Backups that are cut short, run out of space, or are damaged."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.backup import BackupError, BackupTarget, back_up, restore
from penstock.errors import DiskFull, InvalidInput, LedgerError, NotALedger
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import Transactions
from tests.harness.faults import Fault, FaultyFiles
from tests.harness.power_mounts import tmpfs


def payloads(path: Path) -> list[bytes]:
    with penstock.open(path) as queue:
        return [message.payload for message in queue.browse()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with a few segments and a snapshot, and a first backup of it in `b`."""
    with penstock.open(tmp_path / "q", segment_bytes=1024, sync="never") as queue:
        queue.enqueue_batch([b"%d" % n for n in range(60)])
        queue.dequeue_batch(20)
        queue.compact()
    back_up(str(tmp_path / "q"), str(tmp_path / "b"))
    with penstock.open(tmp_path / "q", segment_bytes=1024, sync="never") as queue:
        queue.enqueue_batch([b"%d" % n for n in range(60, 100)])
    return tmp_path / "q"


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_backup_that_fails_at_any_call_leaves_the_former_one_usable(
    path: Path, tmp_path: Path, error: int
) -> None:
    backups, nth, done = tmp_path / "b", 0, False
    before = BackupTarget(str(backups)).names()
    while not done:
        assert nth < 200
        nth += 2 if error == errno.EIO else 1
        methods = frozenset({"create", "pwrite", "fdatasync", "rename", "sync_directory"})
        faulty = FaultyFiles(OsFiles(), Fault(nth, error, forever=True, methods=methods))
        try:
            back_up(str(path), str(backups), target_files=faulty, keep=100)
            done = True
        except LedgerError as problem:
            assert (error == errno.ENOSPC) == isinstance(problem, DiskFull)
        target = tmp_path / f"r{nth}"
        names = BackupTarget(str(backups)).names()
        restore(str(backups), str(target), name=before[0])
        assert payloads(target) == numbers(20, 60)
        for name in set(names) - set(before):  # complete, although its caller saw an error
            restore(str(backups), f"{target}-new", name=name)
            assert payloads(Path(f"{target}-new")) == numbers(20, 100)
            (backups / "backups" / f"{name}.json").unlink()
    assert nth > 5
    back_up(str(path), str(backups))
    restore(str(backups), str(tmp_path / "last"))
    assert payloads(tmp_path / "last") == numbers(20, 100)


_KILLED = """
import os, signal, sys
from penstock.backup import back_up
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import Transactions

class Killed(OsFiles):
    left = int(sys.argv[3])
    def pwrite(self, fd, data, offset):
        Killed.left -= 1
        if not Killed.left:
            super().pwrite(fd, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pwrite(fd, data, offset)

back_up(sys.argv[1], sys.argv[2], target_files=Killed())
"""


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_killed_backup_leaves_the_former_one_usable(path: Path, tmp_path: Path, nth: int) -> None:
    command = [sys.executable, "-c", _KILLED, str(path), str(tmp_path / "b"), str(nth)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    restore(str(tmp_path / "b"), str(tmp_path / "r"))
    assert payloads(tmp_path / "r") == numbers(20, 60)
    back_up(str(path), str(tmp_path / "b"))  # the lock is free, and nothing is in the way
    restore(str(tmp_path / "b"), str(tmp_path / "again"))
    assert payloads(tmp_path / "again") == numbers(20, 100)


@pytest.mark.root
def test_a_full_disk_at_the_target_is_an_error_and_frees_what_it_took(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", sync="never") as queue:
        queue.enqueue(b"x" * 100_000)
        with tmpfs(tmp_path / "small", size_bytes=1 << 20) as small:
            back_up(str(tmp_path / "q"), str(small / "b"))
            queue.enqueue_batch([bytes(1000)] * 2000)
            with pytest.raises(DiskFull, match="saving a backup"):
                back_up(str(tmp_path / "q"), str(small / "b"))
            assert OsFiles().free_bytes(str(small)) > 500_000
            restore(str(small / "b"), str(tmp_path / "r"))
    assert len(payloads(tmp_path / "r")) == 1


def test_every_damaged_object_is_found_and_named(path: Path, tmp_path: Path) -> None:
    backups = tmp_path / "b"
    back_up(str(path), str(backups), keep=1)
    (name,) = BackupTarget(str(backups)).names()
    for one in BackupTarget(str(backups)).manifest(name).files:
        file = backups / "objects" / one.sha256
        content = file.read_bytes()
        middle = len(content) // 2
        for damaged in (
            content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :],
            content[:-1],
            content + b"\0",
            None,
        ):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            with pytest.raises(BackupError, match=one.path):
                restore(str(backups), str(tmp_path / "r"))
            assert not (tmp_path / "r").exists()
            file.write_bytes(content)
    restore(str(backups), str(tmp_path / "r"))


def test_verify_replaces_damaged_objects_that_the_source_still_has(
    path: Path, tmp_path: Path
) -> None:
    backups = tmp_path / "b"
    back_up(str(path), str(backups), keep=1)
    largest = max((backups / "objects").iterdir(), key=lambda file: file.stat().st_size)
    largest.write_bytes(b"?" * largest.stat().st_size)
    done = back_up(str(path), str(backups), keep=1, verify=True)
    assert [name.split(" ")[0] for name in done.damaged] != []
    assert done.lost == []
    restore(str(backups), str(tmp_path / "r"))
    assert payloads(tmp_path / "r") == numbers(20, 100)


def test_verify_names_the_damaged_files_that_it_could_not_replace(tmp_path: Path) -> None:
    source, backups = tmp_path / "q", tmp_path / "b"
    with penstock.open(source, segment_bytes=1024, sync="never") as queue:
        queue.enqueue_batch([b"%d" % n for n in range(60)])
    back_up(str(source), str(backups))
    (first,) = BackupTarget(str(backups)).names()
    with penstock.open(source, segment_bytes=1024, sync="never") as queue:
        queue.enqueue(b"more")
    saved = {one.path: one.sha256 for one in BackupTarget(str(backups)).manifest(first).files}
    lost, kept = "queue.json", min(path for path in saved if path.startswith("messages/"))
    for path in (lost, kept):
        (backups / "objects" / saved[path]).write_bytes(b"?")
    (source / "queue.json").write_bytes((source / "queue.json").read_bytes() + b" ")
    done = back_up(str(source), str(backups), verify=True)
    assert sorted(done.damaged) == sorted(f"{path} (backup {first})" for path in (lost, kept))
    assert done.lost == [f"{lost} (backup {first})"]
    restore(str(backups), str(tmp_path / "r"))
    with pytest.raises(BackupError, match=lost):
        restore(str(backups), str(tmp_path / "r2"), name=first)
    again = back_up(str(source), str(backups), verify=True)
    assert (again.lost, again.damaged) == (done.lost, done.lost), "as long as that backup is kept"
    last = back_up(str(source), str(backups), verify=True, keep=1)
    assert (last.lost, len(last.removed)) == ([], 3)


def test_a_damaged_manifest_is_named_and_older_backups_stay_usable(
    path: Path, tmp_path: Path
) -> None:
    backups = tmp_path / "b"
    back_up(str(path), str(backups))
    older, newest = BackupTarget(str(backups)).names()
    file = backups / "backups" / f"{newest}.json"
    file.write_bytes(file.read_bytes().replace(b"messages", b"massages", 1))
    with pytest.raises(BackupError, match=newest):
        restore(str(backups), str(tmp_path / "r"))
    file.unlink()
    file.mkdir()
    with pytest.raises(BackupError, match=newest):
        restore(str(backups), str(tmp_path / "r"))
    restore(str(backups), str(tmp_path / "r"), name=older)
    assert payloads(tmp_path / "r") == numbers(20, 60)


def test_backups_inside_their_source_are_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    for source, target in (
        (path, path),
        (path, path / "backups"),
        (path, tmp_path / "link" / "backups"),
        (path, tmp_path),
    ):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(InvalidInput, match="in one another"):
            back_up(str(source), str(target))
        assert sorted(tmp_path.rglob("*")) == before


def test_damage_in_the_source_is_saved_and_reported_when_restored(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", segment_bytes=1024, sync="never") as queue:
        queue.enqueue_batch([b"%d" % n for n in range(60)])
        queue.enqueue(b"last")
    sealed = sorted((tmp_path / "q" / "messages").glob("*.log"))[0]
    content = bytearray(sealed.read_bytes())
    content[300] ^= 1
    sealed.write_bytes(content)
    back_up(str(tmp_path / "q"), str(tmp_path / "b"))
    done = restore(str(tmp_path / "b"), str(tmp_path / "r"))
    assert [damage.file for _, damage in done.problems] == [f"messages/{sealed.name}"]


def test_a_pending_adoption_is_as_undecided_after_a_restore_as_it_was(tmp_path: Path) -> None:
    """A crash left it: the staged file tells that it did not happen, so it must be saved too."""
    penstock.open(tmp_path / "q").close()
    staged = tmp_path / "q" / "staging" / "job"
    staged.mkdir(parents=True)
    (staged / "part-0").write_bytes(b"a segment")
    other = tmp_path / "q" / "staging" / "unknown"
    other.mkdir()
    (other / "part-0").write_bytes(b"of a job that has not begun to commit")
    pending = {"app": "a", "version": 1, "first_seq": 1, "folder": "job", "name": "part-0"}
    Transactions({}, {**pending, "entries": 1}).save(Folder(OsFiles(), str(tmp_path / "q")))
    back_up(str(tmp_path / "q"), str(tmp_path / "b"))
    restore(str(tmp_path / "b"), str(tmp_path / "r"))
    assert (tmp_path / "r" / "staging" / "job" / "part-0").read_bytes() == b"a segment"
    assert not (tmp_path / "r" / "staging" / "unknown").exists()
    kept = Transactions.load(Folder(OsFiles(), str(tmp_path / "r"))).pending
    assert kept is not None
    assert kept["name"] == "part-0"


def test_a_target_that_disappears_is_an_error_with_its_name(path: Path, tmp_path: Path) -> None:
    class Gone(OsFiles):
        def rename(self, source: str, target: str) -> None:
            if "/objects/" in target:
                raise FileNotFoundError(errno.ENOENT, "gone", target)
            super().rename(source, target)

    with pytest.raises(LedgerError, match="saving a backup failed"):
        back_up(str(path), str(tmp_path / "b"), target_files=Gone())


def test_old_backups_and_their_files_are_removed(path: Path, tmp_path: Path) -> None:
    backups = tmp_path / "b"
    with penstock.open(path, sync="never") as queue:
        for _ in range(4):
            queue.enqueue(b"one more")
            made = back_up(str(path), str(backups), keep=2)
    target = BackupTarget(str(backups))
    assert target.names()[-1] == made.name
    assert len(target.names()) == 2
    needed = {one.sha256 for name in target.names() for one in target.manifest(name).files}
    assert {file.name for file in (backups / "objects").iterdir()} == needed
    for name in target.names():
        restore(str(backups), str(tmp_path / name), name=name)


def test_wrong_places_are_refused_and_nothing_is_changed(path: Path, tmp_path: Path) -> None:
    backups = tmp_path / "b"
    penstock.open(tmp_path / "other").close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(BackupError, match="another source"):
        back_up(str(tmp_path / "other"), str(backups))
    with pytest.raises(BackupError, match="not empty"):
        back_up(str(path), str(tmp_path / "full"))
    with pytest.raises(BackupError, match="not empty"):
        restore(str(backups), str(tmp_path / "full"))
    with pytest.raises(NotALedger, match="neither a queue nor"):
        back_up(str(tmp_path / "full"), str(tmp_path / "new"))
    with pytest.raises(NotALedger, match="does not exist"):
        back_up(str(tmp_path / "none"), str(tmp_path / "new"))
    with pytest.raises(BackupError, match="no backups"):
        restore(str(path), str(tmp_path / "new"))
    with pytest.raises(BackupError, match="does not exist"):
        restore(str(tmp_path / "none"), str(tmp_path / "new"))
    for name in ("x", "../../x"):
        with pytest.raises(BackupError, match="has no backup"):
            restore(str(backups), str(tmp_path / "new"), name=name)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "full" / "file").read_text() == "mine"
    assert len(BackupTarget(str(backups)).names()) == 1


@pytest.mark.root
def test_what_root_restores_into_an_empty_directory_belongs_to_its_owner(
    path: Path, tmp_path: Path
) -> None:
    """Else the user of the broker could not open what root restored for it."""
    target = tmp_path / "lib"
    target.mkdir()
    os.chown(target, 65534, 65533)
    restore(str(tmp_path / "b"), str(target))
    found = [target, *target.rglob("*")]
    assert len(found) > 5
    assert {(one.stat().st_uid, one.stat().st_gid) for one in found} == {(65534, 65533)}
