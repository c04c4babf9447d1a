"""One specification of the Files seam, held by the real files and by every stand-in for them."""

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.broker.postgres.database import Database
from penstock.broker.postgres.files import PostgresFiles
from penstock.broker.postgres.schema import migrate
from penstock.ledger.files import Files, OsFiles
from penstock.ledger.folder import Folder, remove_tree
from penstock.ledger.memory_files import MemoryFiles
from tests.harness.faults import FaultyFiles
from tests.harness.journal import RecordedFiles
from tests.harness.postgres_server import PostgresServer, new_queue


@dataclass
class Place:
    """Files, and a directory in them for the test."""

    files: Files
    path: str

    def file(self, name: str) -> str:
        return self.files.join(self.path, name)

    def make(self, name: str, content: bytes = b"") -> int:
        fd = self.files.open(self.file(name), "create")
        if content:
            assert self.files.pwrite(fd, content, 0) == len(content)
        return fd

    def content(self, name: str) -> bytes:
        fd = self.files.open(self.file(name), "read")
        try:
            return self.files.pread(fd, self.files.size(fd), 0)
        finally:
            self.files.close(fd)


MAKERS: dict[str, Callable[[], Files]] = {
    "os": OsFiles,
    "memory": MemoryFiles,
    "recorded": RecordedFiles,
    "faulty over os": lambda: FaultyFiles(OsFiles()),
    "faulty over memory": lambda: FaultyFiles(MemoryFiles()),
}


@pytest.fixture(params=[*MAKERS, "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "postgres":
        return Place(postgres_files(request, str(tmp_path)), str(tmp_path))
    return make_place(request.param, tmp_path)


@pytest.fixture(params=MAKERS)
def mappable(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return files that can be mapped to be written."""
    return make_place(request.param, tmp_path)


def make_place(name: str, tmp_path: Path) -> Place:
    files = MAKERS[name]()
    if "os" in name:
        return Place(files, str(tmp_path))
    files.make_directory("/queue")
    return Place(files, "/queue")


def postgres_files(request: pytest.FixtureRequest, path: str) -> PostgresFiles:
    """Return the files of a new queue in a database, with their cache at a path."""
    server: PostgresServer = request.getfixturevalue("postgres_server")
    database = Database(server.url, schema=request.getfixturevalue("new_schema")())
    request.addfinalizer(database.close)
    migrate(database)
    queue = new_queue(database)
    return PostgresFiles(database, queue, 1, path)


def refuses(number: int) -> "pytest.RaisesExc[OSError]":
    """The block must raise OSError with this number."""
    return pytest.raises(OSError, check=lambda error: error.errno == number)


# -- open, close -----------------------------------------------------------------------------------


def test_create_makes_an_empty_file_and_only_where_there_is_none(place: Place) -> None:
    fd = place.make("a")
    assert place.files.size(fd) == 0
    with refuses(errno.EEXIST):
        place.files.open(place.file("a"), "create")


@pytest.mark.parametrize("mode", ["read", "write"])
def test_open_needs_the_file(place: Place, mode: str) -> None:
    with refuses(errno.ENOENT):
        place.files.open(place.file("a"), mode)  # type: ignore[arg-type]


def test_open_needs_every_directory_on_the_way(place: Place) -> None:
    with refuses(errno.ENOENT):
        place.files.open(place.file("no") + "/a", "create")
    place.make("file")
    with refuses(errno.ENOTDIR):
        place.files.open(place.file("file") + "/a", "create")


def test_a_directory_is_not_opened_for_writing(place: Place) -> None:
    place.files.make_directory(place.file("d"))
    with refuses(errno.EISDIR):
        place.files.open(place.file("d"), "write")
    with refuses(errno.EEXIST):
        place.files.open(place.file("d"), "create")


def test_a_closed_handle_is_refused(place: Place) -> None:
    fd = place.make("a", b"abc")
    place.files.close(fd)
    with refuses(errno.EBADF):
        place.files.close(fd)
    with refuses(errno.EBADF):
        place.files.pread(fd, 1, 0)
    with refuses(errno.EBADF):
        place.files.pwrite(fd, b"x", 0)
    with refuses(errno.EBADF):
        place.files.size(fd)
    with refuses(errno.EBADF):
        place.files.fdatasync(fd)


def test_handles_of_one_file_see_each_others_writes(place: Place) -> None:
    writer = place.make("a", b"abc")
    reader = place.files.open(place.file("a"), "read")
    place.files.pwrite(writer, b"XY", 1)
    assert place.files.pread(reader, 10, 0) == b"aXY"


# -- content ---------------------------------------------------------------------------------------


def test_pread_gives_fewer_bytes_at_the_end_of_the_file(place: Place) -> None:
    fd = place.make("a", b"abcdef")
    assert place.files.pread(fd, 3, 2) == b"cde"
    assert place.files.pread(fd, 10, 4) == b"ef"
    assert place.files.pread(fd, 10, 6) == b""
    assert place.files.pread(fd, 10, 1000) == b""
    assert place.files.pread(fd, 0, 0) == b""


def test_pwrite_beyond_the_end_leaves_zeros_between(place: Place) -> None:
    fd = place.make("a", b"ab")
    assert place.files.pwrite(fd, b"yz", 5) == 2
    assert place.files.size(fd) == 7
    assert place.content("a") == b"ab\0\0\0yz"


def test_pwrite_takes_any_buffer_and_nothing(place: Place) -> None:
    fd = place.make("a")
    assert place.files.pwrite(fd, memoryview(b"hello")[1:4], 0) == 3
    assert place.files.pwrite(fd, memoryview(bytearray(b"!")), 3) == 1
    assert place.files.pwrite(fd, b"", 100) == 0
    assert place.content("a") == b"ell!"


def test_a_handle_for_reading_does_not_write(place: Place) -> None:
    place.files.close(place.make("a", b"abc"))
    fd = place.files.open(place.file("a"), "read")
    with refuses(errno.EBADF):
        place.files.pwrite(fd, b"x", 0)
    with refuses(errno.EINVAL):
        place.files.truncate(fd, 0)
    place.files.fdatasync(fd)
    assert place.content("a") == b"abc"


def test_negative_offsets_are_refused(place: Place) -> None:
    fd = place.make("a", b"abc")
    with refuses(errno.EINVAL):
        place.files.pread(fd, 1, -1)
    with refuses(errno.EINVAL):
        place.files.pwrite(fd, b"x", -1)
    with refuses(errno.EINVAL):
        place.files.truncate(fd, -1)


def test_truncate_cuts_and_extends_with_zeros(place: Place) -> None:
    fd = place.make("a", b"abcdef")
    place.files.truncate(fd, 3)
    assert place.content("a") == b"abc"
    place.files.truncate(fd, 5)
    assert place.content("a") == b"abc\0\0"
    place.files.pwrite(fd, b"z", 5)
    assert place.content("a") == b"abc\0\0z"


def test_start_writing_changes_nothing_that_can_be_seen(mappable: Place) -> None:
    fd = mappable.make("a", b"abcdef")
    mapping = mappable.files.map(fd, 6, writable=True)
    mapping.view[1:3] = b"XY"
    mappable.files.start_writing(fd, 0, 6)
    assert mappable.content("a") == b"aXYdef"
    assert bytes(mapping.view) == b"aXYdef"
    mappable.files.close(fd)
    with refuses(errno.EBADF):
        mappable.files.start_writing(fd, 0, 6)


@pytest.mark.parametrize("offset", [0, 3, 4095, 4096, 5000, 9000, 10_000])
def test_write_again_changes_nothing(place: Place, offset: int) -> None:
    content = bytes(range(256)) * 35
    fd = place.make("a", content)
    place.files.write_again(fd, offset)
    place.files.fdatasync(fd)
    assert place.content("a") == content
    place.files.close(fd)
    with refuses(errno.EBADF):
        place.files.write_again(fd, 0)


# -- mappings --------------------------------------------------------------------------------------


def test_a_writable_mapping_is_the_file(mappable: Place) -> None:
    fd = mappable.make("a", bytes(8192))
    mapping = mappable.files.map(fd, 8192, writable=True)
    mapping.view[4094:4098] = b"abcd"
    assert mappable.files.pread(fd, 6, 4093) == b"\0abcd\0"
    mappable.files.pwrite(fd, b"XY", 4095)
    assert bytes(mapping.view[4094:4098]) == b"aXYd"
    assert mappable.content("a")[4094:4098] == b"aXYd"


def test_mappings_of_one_file_agree_also_after_it_was_closed(mappable: Place) -> None:
    fd = mappable.make("a", b"." * 100)
    writer = mappable.files.map(fd, 100, writable=True)
    other = mappable.files.open(mappable.file("a"), "read")
    reader = mappable.files.map(other, 50, writable=False)
    mappable.files.close(fd)
    mappable.files.close(other)
    writer.view[10:13] = b"new"
    assert bytes(reader.view[9:14]) == b".new."
    assert len(reader.view) == 50


def test_a_reading_mapping_cannot_be_written(place: Place) -> None:
    fd = place.make("a", b"abc")
    mapping = place.files.map(fd, 3, writable=False)
    with pytest.raises(TypeError):
        mapping.view[0] = 1


def test_a_file_grows_under_its_mapping_and_is_mapped_again(mappable: Place) -> None:
    fd = mappable.make("a", bytes(4096))
    small = mappable.files.map(fd, 4096, writable=True)
    mappable.files.pwrite(fd, bytes(8192), 4096)
    large = mappable.files.map(fd, 12288, writable=True)
    small.view[:5] = b"small"
    large.view[12283:] = b"large"
    assert bytes(large.view[:5]) == b"small"
    large.view[:5] = b"SMALL"
    assert mappable.content("a") == b"SMALL" + bytes(12278) + b"large"


def test_no_more_is_mapped_than_there_is(place: Place) -> None:
    fd = place.make("a", b"abc")
    with pytest.raises(ValueError, match="greater than file size"):
        place.files.map(fd, 4, writable=False)


def test_a_handle_for_reading_gives_no_writable_mapping(place: Place) -> None:
    place.files.close(place.make("a", b"abc"))
    fd = place.files.open(place.file("a"), "read")
    with refuses(errno.EACCES):
        place.files.map(fd, 3, writable=True)


def test_a_view_that_someone_holds_outlives_its_mapping(mappable: Place) -> None:
    fd = mappable.make("a", b"abcdef")
    mapping = mappable.files.map(fd, 6, writable=True)
    held = mapping.view[2:4]
    del mapping
    mappable.files.close(fd)
    assert bytes(held) == b"cd"


# -- names -----------------------------------------------------------------------------------------


def test_names_are_sorted(place: Place) -> None:
    for name in ("b", "a", "10", "9"):
        place.files.close(place.make(name))
    place.files.make_directory(place.file("c"))
    assert place.files.names(place.path) == ["10", "9", "a", "b", "c"]
    assert place.files.names(place.file("c")) == []


def test_names_needs_a_directory(place: Place) -> None:
    with refuses(errno.ENOENT):
        place.files.names(place.file("no"))
    place.make("a")
    with refuses(errno.ENOTDIR):
        place.files.names(place.file("a"))


def test_exists_knows_files_and_directories(place: Place) -> None:
    place.make("a")
    place.files.make_directory(place.file("d"))
    assert place.files.exists(place.file("a"))
    assert place.files.exists(place.file("d"))
    assert place.files.exists(place.path)
    assert not place.files.exists(place.file("b"))
    assert not place.files.exists(place.file("a") + "/b")


def test_make_directory_does_nothing_where_there_is_one(place: Place) -> None:
    place.files.make_directory(place.file("d"))
    place.files.close(place.files.open(place.file("d") + "/a", "create"))
    place.files.make_directory(place.file("d"))
    assert place.files.names(place.file("d")) == ["a"]


def test_make_directory_needs_its_parent_and_no_file_in_its_place(place: Place) -> None:
    with refuses(errno.ENOENT):
        place.files.make_directory(place.file("no") + "/d")
    place.make("a")
    with refuses(errno.EEXIST):
        place.files.make_directory(place.file("a"))


def test_rename_replaces_the_target(place: Place) -> None:
    place.make("old", b"old")
    reader = place.files.open(place.file("old"), "read")
    place.make("new", b"new!")
    place.files.rename(place.file("new"), place.file("old"))
    assert place.files.names(place.path) == ["old"]
    assert place.content("old") == b"new!"
    assert place.files.pread(reader, 10, 0) == b"old"


def test_rename_moves_between_directories(place: Place) -> None:
    place.files.make_directory(place.file("d"))
    place.make("a", b"abc")
    place.files.rename(place.file("a"), place.file("d") + "/b")
    assert place.files.names(place.path) == ["d"]
    assert place.files.names(place.file("d")) == ["b"]


def test_rename_to_itself_changes_nothing(place: Place) -> None:
    place.make("a", b"abc")
    place.files.rename(place.file("a"), place.file("a"))
    assert place.content("a") == b"abc"


def test_rename_refuses_what_does_not_fit(place: Place) -> None:
    with refuses(errno.ENOENT):
        place.files.rename(place.file("no"), place.file("b"))
    place.make("a")
    place.files.make_directory(place.file("d"))
    place.files.make_directory(place.file("full"))
    place.files.make_directory(place.file("full") + "/inner")
    with refuses(errno.EISDIR):
        place.files.rename(place.file("a"), place.file("d"))
    with refuses(errno.ENOTDIR):
        place.files.rename(place.file("d"), place.file("a"))
    with refuses(errno.ENOTEMPTY):
        place.files.rename(place.file("d"), place.file("full"))
    with refuses(errno.ENOENT):
        place.files.rename(place.file("a"), place.file("no") + "/a")
    assert place.files.names(place.path) == ["a", "d", "full"]


def test_an_unlinked_file_lives_on_in_its_handles_and_mappings(mappable: Place) -> None:
    fd = mappable.make("a", b"abc")
    mapping = mappable.files.map(fd, 3, writable=True)
    mappable.files.unlink(mappable.file("a"))
    assert not mappable.files.exists(mappable.file("a"))
    assert mappable.files.pwrite(fd, b"X", 0) == 1
    assert bytes(mapping.view) == b"Xbc"
    again = mappable.make("a", b"other")
    assert mappable.files.pread(fd, 9, 0) == b"Xbc"
    assert mappable.files.pread(again, 9, 0) == b"other"


def test_unlink_needs_a_file(place: Place) -> None:
    with refuses(errno.ENOENT):
        place.files.unlink(place.file("no"))
    place.files.make_directory(place.file("d"))
    with refuses(errno.EISDIR):
        place.files.unlink(place.file("d"))


def test_remove_directory_removes_only_an_empty_one(place: Place) -> None:
    place.files.make_directory(place.file("d"))
    place.files.close(place.files.open(place.file("d") + "/a", "create"))
    with refuses(errno.ENOTEMPTY):
        place.files.remove_directory(place.file("d"))
    place.files.unlink(place.file("d") + "/a")
    place.files.remove_directory(place.file("d"))
    assert place.files.names(place.path) == []
    with refuses(errno.ENOENT):
        place.files.remove_directory(place.file("d"))
    place.make("a")
    with refuses(errno.ENOTDIR):
        place.files.remove_directory(place.file("a"))


def test_sync_directory_needs_a_directory(place: Place) -> None:
    place.files.sync_directory(place.path)
    with refuses(errno.ENOENT):
        place.files.sync_directory(place.file("no"))
    place.make("a")
    with refuses(errno.ENOTDIR):
        place.files.sync_directory(place.file("a"))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b"])
def test_join_takes_only_plain_names(place: Place, name: str) -> None:
    with pytest.raises(ValueError, match="not a plain file name"):
        place.files.join(place.path, name)


# -- the rest --------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_handle_until_it_is_closed(place: Place) -> None:
    first = place.make("LOCK")
    second = place.files.open(place.file("LOCK"), "write")
    assert place.files.lock(first)
    assert place.files.lock(first), "the holder may ask again"
    assert not place.files.lock(second)
    place.files.close(first)
    assert place.files.lock(second)


def test_free_bytes_and_file_system_answer_for_a_directory(place: Place) -> None:
    assert place.files.free_bytes(place.path) > 0
    assert place.files.file_system(place.path) != ""
    with refuses(errno.ENOENT):
        place.files.free_bytes(place.file("no"))


def test_holder_name_is_a_process_and_a_host(place: Place) -> None:
    pid, host = place.files.holder_name()
    assert pid > 0
    assert host


# -- what only the real files can show -------------------------------------------------------------


def test_files_and_directories_are_private(tmp_path: Path) -> None:
    files = OsFiles()
    files.make_directory(str(tmp_path / "d"))
    files.close(files.open(str(tmp_path / "d" / "a"), "create"))
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "d" / "a").stat().st_mode & 0o777 == 0o600


def test_links_are_not_followed(tmp_path: Path) -> None:
    files = OsFiles()
    (tmp_path / "target").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with refuses(errno.ELOOP):
        files.open(str(tmp_path / "link"), "read")
    with refuses(errno.ELOOP):
        files.open(str(tmp_path / "link"), "write")
    with refuses(errno.EEXIST):
        files.open(str(tmp_path / "dangling"), "create")
    assert files.exists(str(tmp_path / "dangling"))


def test_handles_are_not_inherited_by_programs_that_are_started(tmp_path: Path) -> None:
    files = OsFiles()
    fd = files.open(str(tmp_path / "a"), "create")
    assert not os.get_inheritable(fd)
    files.close(fd)


def test_a_random_identity_has_32_bits_and_is_another_in_another_place(place: Place) -> None:
    identity = place.files.random_identity()
    assert 0 <= identity < 1 << 32
    place.make("a")
    assert place.files.random_identity() != identity


def test_files_in_a_database_have_no_mapping_that_can_be_written(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = Place(postgres_files(request, str(tmp_path)), str(tmp_path))
    fd = place.make("a", b"abc")
    with refuses(errno.ENODEV):
        place.files.map(fd, 3, writable=True)
    assert bytes(place.files.map(fd, 3, writable=False).view) == b"abc"


def test_a_tree_that_another_thread_removes_meanwhile_is_removed(tmp_path: Path) -> None:
    class Racing(OsFiles):
        """Another thread removes what was just listed."""

        def names(self, path: str) -> list[str]:
            found = super().names(path)
            shutil.rmtree(path)
            return found

    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "file").touch()
    (tree / "file").touch()
    remove_tree(Folder(Racing(), str(tree)))
    assert not tree.exists()
    remove_tree(Folder(OsFiles(), str(tree)))  # it is gone already


@pytest.mark.root
def test_what_root_makes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """Else the user that runs the broker could not read the keys that root created."""
    os.chown(tmp_path, 65534, 65533)
    files = OsFiles()
    files.close(files.open(str(tmp_path / "file"), "create"))
    files.make_directory(str(tmp_path / "inner"))
    for name in ("file", "inner"):
        made = (tmp_path / name).stat()
        assert (made.st_uid, made.st_gid) == (65534, 65533)
