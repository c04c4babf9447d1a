"""With `archive_required` nothing leaves the log that is not archived."""

from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.queue import Queue
from penstock.queue.compaction import (
    ARCHIVED_NAME,
    MAX_ARCHIVE_BYTES,
    ArchivedNote,
    archived_note,
    archived_upto,
    note_archived,
)
from penstock.queue.queue import open_queue

SETTINGS = {
    "segment_bytes": 4096,
    "min_free_bytes": 0,
    "auto_compact": False,
    "archive_required": True,
}


def filled(path: Path) -> Queue:
    queue = open_queue(str(path), SETTINGS)
    queue.enqueue_batch([b"x" * 100] * 300)
    queue.enqueue_batch([b"x" * 100] * 300)
    queue.purge()
    return queue


def note(path: Path, queue: Queue, upto: int) -> None:
    identity = queue.core.identity
    note_archived(Folder(OsFiles(), str(path)), identity, upto, next_seq=queue.stats().next_seq)


def test_what_is_done_with_stays_until_it_is_archived(tmp_path: Path) -> None:
    with filled(tmp_path) as queue:
        assert queue.compact().segments_removed == 0
        assert queue.stats().first_seq == 1
        note(tmp_path, queue, 301)
        result = queue.compact()
        assert (result.segments_rewritten, queue.stats().first_seq) == (0, 301)
        note(tmp_path, queue, 100)  # never less than before
        assert archived_upto(Folder(OsFiles(), str(tmp_path)), queue.core.identity) == 301


def test_a_segment_that_is_archived_in_part_stays(tmp_path: Path) -> None:
    with filled(tmp_path) as queue:
        note(tmp_path, queue, 300)
        assert queue.compact().bytes_freed == 0


def test_without_the_setting_nothing_waits_for_an_archive(tmp_path: Path) -> None:
    with open_queue(str(tmp_path), {**SETTINGS, "archive_required": False}) as queue:
        queue.enqueue_batch([b"x" * 100] * 300)
        queue.enqueue(b"in the next segment")
        queue.purge()
        assert queue.compact().segments_removed == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format":1,"identity":1,"upto":601,"crc":1}', b"\xff" * 9000]
)
def test_a_note_that_cannot_be_believed_lets_nothing_go(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with filled(tmp_path) as queue:
        note(tmp_path, queue, 601)
        (tmp_path / ARCHIVED_NAME).write_bytes(content)
        assert queue.compact().bytes_freed == 0
        assert "cannot be read" in caplog.text
        note(tmp_path, queue, 601)  # the job runs again
        assert queue.compact().segments_removed == 1


def test_a_note_of_another_queue_does_not_count(tmp_path: Path) -> None:
    root = Folder(OsFiles(), str(tmp_path))
    with filled(tmp_path) as queue:
        note_archived(root, queue.core.identity ^ 1, 601, next_seq=601)
        assert queue.compact().bytes_freed == 0
        for upto in (0, 602):
            with pytest.raises(InvalidInput, match="as archived"):
                note(tmp_path, queue, upto)


def test_the_place_of_the_archive_is_noted_and_stays(tmp_path: Path) -> None:
    root = Folder(OsFiles(), str(tmp_path))
    with filled(tmp_path) as queue:
        identity = queue.core.identity
        where = {"archive": "s3://bucket/größe", "archived_as": "shop/orders"}
        assert archived_note(root, identity) == ArchivedNote(1, "", "")
        note_archived(root, identity, 301, next_seq=601, **where)
        assert archived_note(root, identity) == ArchivedNote(301, *where.values())
        note_archived(root, identity, 401, next_seq=601)  # of a version without a place
        note_archived(root, identity, 1, next_seq=601)
        assert archived_note(root, identity) == ArchivedNote(401, *where.values())
        note_archived(root, identity, 1, next_seq=601, archive="/elsewhere", archived_as="orders")
        assert archived_note(root, identity) == ArchivedNote(401, "/elsewhere", "orders")
        longest = "/" + "x" * (MAX_ARCHIVE_BYTES - 1)
        note_archived(root, identity, 401, next_seq=601, archive=longest, archived_as="o" * 129)
        assert archived_note(root, identity).archive == longest
        with pytest.raises(InvalidInput, match="2049 bytes"):
            note_archived(root, identity, 401, next_seq=601, archive=f"{longest}x")
        assert archived_note(root, identity).archive == longest
