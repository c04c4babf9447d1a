"""Opening: making a queue, finding one, and refusing places that are none."""

import os
from pathlib import Path

import pytest

from penstock.errors import InvalidInput, LedgerError, NotALedger, RefusedFileSystem
from penstock.ledger import Ledger, LedgerSettings
from tests.ledger.store import Store, payload_of, payloads, seqs
from tests.ledger.watched_files import WatchedFiles


def test_a_new_queue_is_made_where_nothing_is(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "queue")) as ledger:
        assert (ledger.messages.next_seq, ledger.messages.first_seq) == (1, 1)
    names = [
        "LOCK",
        "closed.json",
        "events",
        "messages",
        "metadata.json",
        "queue.json",
        "snapshots",
    ]
    assert sorted(os.listdir(tmp_path / "queue")) == names


def test_a_path_may_be_a_path_object_and_may_have_a_slash(tmp_path: Path) -> None:
    with Ledger.open(f"{tmp_path}/queue/") as ledger:
        ledger.messages.append(b"")
    with Ledger.open(tmp_path / "queue") as ledger:  # type: ignore[arg-type]
        assert ledger.messages.next_seq == 2


def test_an_empty_directory_becomes_a_queue(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path)) as ledger:
        assert ledger.messages.append(b"") == 1


def test_a_queue_is_not_made_where_that_is_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(NotALedger, match="does not exist"):
        Ledger.open(str(tmp_path / "queue"), create=False)
    with pytest.raises(NotALedger, match="is not a queue"):
        Ledger.open(str(tmp_path), create=False)
    assert os.listdir(tmp_path) == []


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(NotALedger, match=r"'thesis.tex' is in it.*name an empty directory"):
        Ledger.open(str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_is_no_queue(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    for read_only in (False, True):
        with pytest.raises(LedgerError):
            Ledger.open(str(file), read_only=read_only)
    assert file.read_bytes() == b"content"


def test_missing_parents_are_made(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "a" / "b" / "queue")) as ledger:
        assert ledger.messages.append(b"") == 1


def test_a_file_among_the_parents_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LedgerError, match="opening failed"):
        Ledger.open(str(tmp_path / "file" / "a" / "queue"))


def test_no_parent_is_made_for_a_reader(tmp_path: Path) -> None:
    for read_only in (True, False):
        with pytest.raises(NotALedger, match="does not exist"):
            Ledger.open(str(tmp_path / "a" / "queue"), read_only=read_only, create=False)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "path",
    [
        "redis://localhost/0",
        "file:///tmp/queue",
        "s3://bucket/q",
        "http:/127.0.0.1:8080/shop/orders",
        "http//127.0.0.1:8080/shop/orders",
        "127.0.0.1:8080/shop/orders",
        "localhost:8080/shop/orders",
        "queues.example.com:80/shop/orders",
    ],
)
def test_a_url_is_no_directory(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"a queue is a directory.*or.*http://"):
        Ledger.open(path)
    assert os.listdir(tmp_path) == []


def test_a_crash_while_the_queue_was_made_is_no_obstacle(tmp_path: Path) -> None:
    made = ["LOCK", "queue.json.tmp", "messages", "events", "snapshots"]
    for count in range(len(made) + 1):
        path = tmp_path / str(count)
        path.mkdir()
        for name in made[:count]:
            if "." in name or name.isupper():
                (path / name).write_bytes(b"")
            else:
                (path / name).mkdir()
        with Ledger.open(str(path)) as ledger:
            assert ledger.messages.append(b"") == 1
            assert ledger.damage == ()


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre"])
def test_a_network_file_system_is_refused_unless_told_otherwise(store: Store, kind: str) -> None:
    files = WatchedFiles()
    files.kind = kind
    store.files = files
    with pytest.raises(RefusedFileSystem, match=rf"network file system \({kind}\).*Use a local"):
        store.open()
    store.open(LedgerSettings(allow_network_file_system=True))
    store.fill(1)
    assert seqs(store.messages) == [1]


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", ""])
def test_a_local_file_system_is_not_refused(store: Store, kind: str) -> None:
    files = WatchedFiles()
    files.kind = kind
    store.files = files
    store.fill(1)


def test_temporary_files_of_a_crash_are_removed(store: Store) -> None:
    store.fill(40)
    store.die()
    strays = [
        store.file("queue.json.tmp"),
        store.file("metadata.json.tmp"),
        store.path / "messages" / "rewrite.tmp",
        store.path / "messages" / "00000000000000000001.idx.tmp",
        store.path / "snapshots" / "00000000000000000001.snap.tmp",
    ]
    for stray in strays:
        stray.write_bytes(b"half")
    store.open()
    assert [stray for stray in strays if stray.exists()] == []
    assert seqs(store.messages) == list(range(1, 41))


def test_opening_again_and_again_adds_no_file(any_store: Store) -> None:
    any_store.fill(40)
    any_store.close()
    files = sorted(str(path) for path in any_store.path.rglob("*"))
    for _ in range(5):
        any_store.open()
        any_store.close()
    assert sorted(str(path) for path in any_store.path.rglob("*")) == files
    sizes = [path.stat().st_size for path in any_store.segments()]
    any_store.open()
    any_store.close()
    assert [path.stat().st_size for path in any_store.segments()] == sizes


def test_foreign_files_among_the_segments_are_left_alone(store: Store) -> None:
    store.fill(3)
    store.close()
    for name in ("notes.txt", "1.log", "0000000000000000000x.log", "٠" * 20 + ".log"):
        (store.path / "messages" / name).write_bytes(b"foreign")
    store.open()
    assert payloads(store.messages) == [payload_of(seq) for seq in (1, 2, 3)]
    assert len(list((store.path / "messages").iterdir())) == 5


def test_an_index_without_its_segment_is_removed(store: Store) -> None:
    store.fill(3)
    store.close()
    orphan = store.segment(77).with_suffix(".idx")
    orphan.write_bytes(b"orphan")
    store.open()
    assert not orphan.exists()


def test_the_parent_directory_is_synced_when_the_queue_is_made(tmp_path: Path) -> None:
    """Else a power cut may take the whole queue, with all that was answered."""
    synced = []

    class SyncedDirectories(WatchedFiles):
        def sync_directory(self, path: str) -> None:
            synced.append(path)
            super().sync_directory(path)

    with Ledger.open(str(tmp_path / "queue"), files=SyncedDirectories()):
        assert str(tmp_path) in synced
