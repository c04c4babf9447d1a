"""The recorder sees every change, mapped stores included, in the order in which it was made."""

from tests.harness.disk import Link, Sync, Truncate, Write
from tests.harness.journal import Mark, RecordedFiles, changed_ranges


def test_changes_are_recorded_in_order() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.pwrite(fd, b"abc", 0)
    files.truncate(fd, 2)
    files.fdatasync(fd)
    files.mark("answered")
    assert files.journal.steps == [
        Link(0, "a", 1),
        Write(1, 0, b"abc"),
        Truncate(1, 2),
        Sync(1),
        Mark("answered"),
    ]


def test_reading_is_not_recorded() -> None:
    files = RecordedFiles()
    files.close(files.open("/a", "create"))
    before = list(files.journal.steps)
    fd = files.open("/a", "read")
    files.pread(fd, 1, 0)
    files.names("/")
    files.make_directory("/")
    assert files.journal.steps == before


def test_mapped_stores_are_recorded_before_what_follows_them() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.pwrite(fd, bytes(12288), 0)
    view = files.map(fd, 12288, writable=True).view
    view[100:103] = b"one"
    files.mark("first")
    view[4090:4100] = b"x" * 10
    view[9000:9001] = b"y"
    files.fdatasync(fd)
    assert files.journal.steps[2:] == [
        Write(1, 100, b"one", mapped=True),
        Mark("first"),
        Write(1, 4090, b"x" * 10 + bytes(4900) + b"y", mapped=True),
        Sync(1),
    ]


def test_stores_are_seen_while_any_view_is_held_and_at_its_end() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.pwrite(fd, bytes(64), 0)
    view = files.map(fd, 64, writable=True).view
    files.close(fd)
    held = view[8:16]
    del view
    held[0] = 1
    files.mark(1)
    held[1] = 2
    del held
    files.mark(2)
    writes = [step for step in files.journal.steps if isinstance(step, Write) and step.mapped]
    assert writes == [Write(1, 8, b"\1", mapped=True), Write(1, 9, b"\2", mapped=True)]


def test_a_write_through_the_seam_is_not_taken_for_a_mapped_store() -> None:
    files = RecordedFiles()
    fd = files.open("/a", "create")
    files.pwrite(fd, bytes(64), 0)
    view = files.map(fd, 64, writable=True).view
    files.pwrite(fd, b"abc", 3)
    files.truncate(fd, 32)
    files.mark("end")
    assert [step for step in files.journal.steps if getattr(step, "mapped", False)] == []
    assert bytes(view[3:6]) == b"abc"


def test_changed_ranges_join_neighbouring_blocks_only() -> None:
    old = bytes(5 * 4096)
    new = bytearray(old)
    new[10] = new[20] = new[4096] = new[3 * 4096 + 1] = 1
    assert changed_ranges(old, bytes(new)) == [(10, 4097), (3 * 4096 + 1, 3 * 4096 + 2)]
