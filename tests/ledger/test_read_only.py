"""Opening for a look: needs no lock, changes nothing, and is not disturbed by a writer."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.codec import Draft
from penstock.errors import EntryGone, NotALedger, ReadOnly
from penstock.ledger import Cursor, Ledger, read_entry, verify
from penstock.ledger.compaction import Compactor, Retention, remove_before
from penstock.ledger.files import OpenMode, OsFiles
from penstock.ledger.json_files import Marks
from penstock.torture.damage_store import Live
from tests.ledger.other_process import OtherProcess
from tests.ledger.store import EVENT, Store, all_entries, payload_of, payloads, seqs

Listing = dict[str, tuple[int, int, int, int, bytes]]


def listing(root: Path) -> Listing:
    """Everything there is to see of a directory without opening it as a queue."""
    found: Listing = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        facts = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino, content)
        found[str(path.relative_to(root))] = facts
    return found


class LookingFiles(OsFiles):
    """Files on which nothing can be changed, and no lock be taken."""

    def open(self, path: str, mode: OpenMode) -> int:
        assert mode == "read", f"opened {path} to {mode}"
        return super().open(path, mode)

    def lock(self, fd: int) -> bool:
        raise AssertionError("a lock was asked for")


# -- what a reader may find ------------------------------------------------------------------------


def left_closed(store: Store) -> None:
    store.close()


def left_by_a_dead_writer(store: Store) -> None:
    store.die()


def left_with_a_torn_tail(store: Store) -> None:
    store.die()
    last = store.segments()[-1]
    last.write_bytes(last.read_bytes().rstrip(b"\0")[:-20])


def left_with_damage(store: Store) -> None:
    store.close()
    for path in (store.segments()[0], store.segments()[-1]):
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)


def left_with_temporary_files(store: Store) -> None:
    store.die()
    for name in ("queue.json.tmp", "messages/rewrite.tmp", "snapshots/1.snap.tmp"):
        store.file(name).write_bytes(b"half")


def left_with_half_a_segment(store: Store) -> None:
    next_seq = store.messages.next_seq
    store.die()
    store.segment(next_seq).write_bytes(b"PNSK")


def left_without_indexes(store: Store) -> None:
    store.close()
    for index in store.path.glob("*/*.idx"):
        index.unlink()


def left_with_a_damaged_manifest(store: Store) -> None:
    store.close()
    store.file("queue.json").write_bytes(b"{}")


def left_without_directories(store: Store) -> None:
    store.close()
    for path in (store.path / "snapshots").iterdir():
        path.unlink()
    (store.path / "snapshots").rmdir()


def left_with_segments_below_the_mark(store: Store) -> None:
    store.ledger.save_marks(store.messages, Marks(low=20, next=store.messages.next_seq))
    store.die()


def left_being_written(store: Store) -> None:
    """The writer stays."""


@pytest.mark.parametrize(
    "leave",
    [
        left_closed,
        left_by_a_dead_writer,
        left_with_a_torn_tail,
        left_with_damage,
        left_with_temporary_files,
        left_with_half_a_segment,
        left_without_indexes,
        left_with_a_damaged_manifest,
        left_without_directories,
        left_with_segments_below_the_mark,
        left_being_written,
    ],
)
def test_looking_changes_nothing_whatever_it_finds(
    any_store: Store, leave: Callable[[Store], None]
) -> None:
    store = any_store
    store.fill(70)
    store.events.append_draft(Draft(b"event", type=EVENT))
    store.ledger.save_snapshot(1, b"state")
    store.fill(3)
    leave(store)
    before = listing(store.path)
    with Ledger.open(
        str(store.path), store.settings, files=LookingFiles(), clock=store.clock, read_only=True
    ) as ledger:
        found = seqs(ledger.messages)
        assert len(found) > 40
        assert [entry.payload for entry in all_entries(ledger.events)] == [b"event"]
        ledger.load_snapshot()
    verify(str(store.path), files=LookingFiles(), settings=store.settings)
    assert listing(store.path) == before


def test_a_queue_written_by_another_process_is_read_without_disturbing_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "queue"
    writer = """
        import sys
        from penstock.ledger import Ledger, LedgerSettings
        ledger = Ledger.open(sys.argv[1], LedgerSettings(segment_bytes=4096, min_free_bytes=0))
        for line in sys.stdin:
            for _ in range(50):
                seq = ledger.messages.append(b"x" * 100)
            print(seq, flush=True)
    """
    with OtherProcess(writer, path) as other:
        for upto in (50, 100, 150):
            assert other.ask() == str(upto)
            before = listing(path)
            with Ledger.open(str(path), files=LookingFiles(), read_only=True) as ledger:
                assert seqs(ledger.messages) == list(range(1, upto + 1))
                assert ledger.damage == ()
            assert listing(path) == before


def test_a_reader_beside_a_busy_writer_sees_whole_entries_in_order_and_no_damage(
    tmp_path: Path,
) -> None:
    """The writer appends, syncs, rotates, rests and removes; the reader opens again and again."""
    path = tmp_path / "queue"
    writer = """
        import sys, threading
        from penstock.ledger import Ledger, LedgerSettings
        from penstock.ledger.compaction import remove_before
        stop = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
        settings = LedgerSettings(sync="always", segment_bytes=8192, min_free_bytes=0)
        ledger = Ledger.open(sys.argv[1], settings)
        print("ready", flush=True)
        while not stop.is_set():
            seq = ledger.messages.next_seq
            ledger.messages.append_batch([b"%d" % (seq + n) for n in range(3)])
            ledger.commit()
            if seq % 10 == 1:
                ledger.rest()
            if seq % 300 == 1:
                remove_before(ledger, ledger.messages, seq - 300)
        ledger.close()
        print("stopped", flush=True)
    """
    reader = """
        import sys
        from penstock.errors import EntryGone
        from penstock.ledger import Cursor, Ledger

        def read(ledger):
            cursor = Cursor(ledger.messages, ledger.messages.next_seq - 100)
            expected = None
            while entries := cursor.read(10):
                for entry in entries:
                    assert entry.payload == b"%d" % entry.seq, entry
                    assert expected in (None, entry.seq), (expected, entry)
                    expected = entry.seq + 1

        for line in sys.stdin:
            for _ in range(60):
                with Ledger.open(sys.argv[1], read_only=True) as ledger:
                    try:
                        read(ledger)
                    except EntryGone as error:
                        assert "open the queue again" in str(error)
                    assert not ledger.damage, ledger.damage
            print("fine", flush=True)
    """
    with OtherProcess(writer, path) as busy, OtherProcess(reader, path) as looking:
        assert busy.answer() == "ready"
        for _ in range(3):
            assert looking.ask() == "fine"
        assert busy.ask() == "stopped"
        assert looking.end() == 0


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_file_that_is_cut_while_it_is_looked_at_does_not_kill_the_reader(
    tmp_path: Path, when: str
) -> None:
    """A resting writer gives its zeros back; touching them in a mapping would be a SIGBUS."""
    code = """
        import sys
        from penstock.ledger import Cursor, Ledger, LedgerSettings
        from penstock.ledger.files import OsFiles

        settings = LedgerSettings(sync="never", first_step_bytes=1 << 20, min_free_bytes=0)
        writer = Ledger.open(sys.argv[1], settings)
        writer.messages.append(b"message")

        class Overtaken(OsFiles):
            late = sys.argv[2] == "late"

            def map(self, fd, size, *, writable):
                mapping = super().map(fd, size, writable=writable)
                writer.rest()
                return mapping

            def size(self, fd):
                size = super().size(fd)
                if self.late:
                    writer.rest()
                return size

        with Ledger.open(sys.argv[1], settings, files=Overtaken(), read_only=True) as reader:
            print(len(Cursor(reader.messages, 1).read(10)), flush=True)
    """
    with OtherProcess(code, tmp_path / "queue", when) as other:
        assert other.answer() == "1"
        assert other.end() == 0


def test_what_was_being_written_while_it_was_read_is_not_taken_for_damage(store: Store) -> None:
    """The start of the file was read before an entry came there, the rest after the next sync."""

    class HalfOldFiles(OsFiles):
        torn = 0

        def pread(self, fd: int, length: int, offset: int) -> bytes:
            data = super().pread(fd, length, offset)
            at = data.find(payload_of(3))
            if at >= 0 and not self.torn:
                self.torn += 1
                data = data[: at - 22] + bytes(126) + data[at + 104 :]
            return data

    store.fill(3)
    store.ledger.sync()
    store.fill(3)
    files = HalfOldFiles()
    with Ledger.open(str(store.path), store.settings, files=files, read_only=True) as ledger:
        assert ledger.damage == ()
        assert payloads(ledger.messages) == [payload_of(seq) for seq in range(1, 7)]
    assert files.torn == 1


def test_a_segment_removed_between_listing_and_opening_is_not_missed(store: Store) -> None:
    class Overtaken(OsFiles):
        def names(self, path: str) -> list[str]:
            names = super().names(path)
            remove_before(store.ledger, store.messages, 50)
            return names

    store.fill(100)
    with Ledger.open(str(store.path), store.settings, files=Overtaken(), read_only=True) as ledger:
        assert seqs(ledger.messages)[-1] == 100


def test_a_last_segment_removed_between_two_looks_at_it_is_not_missed(store: Store) -> None:
    class Overtaken(OsFiles):
        looks = 0

        def open(self, path: str, mode: OpenMode) -> int:
            self.looks += path == str(last)
            if self.looks == 2:
                store.messages.seal()
                store.fill(1)
                remove_before(store.ledger, store.messages, 101)
            return super().open(path, mode)

    store.fill(100)
    last = store.segments()[-1]
    with Ledger.open(str(store.path), store.settings, files=Overtaken(), read_only=True) as ledger:
        assert seqs(ledger.messages)[-1] == 101


def test_a_segment_rewritten_twice_is_read_as_far_as_it_goes_now(store: Store) -> None:
    """Both times it stands for the same seqs, so its header is the same."""
    store.fill(100)

    def rewrite(*live: int) -> None:
        needed = Live(frozenset(live))
        Compactor(store.ledger, store.messages, needed, Retention(), store.clock).run()

    rewrite(1, 2, 3, 99)
    with store.look() as ledger:
        first = ledger.messages.segments.all[0]
        assert first.end == store.segments()[0].stat().st_size
        rewrite(1, 99)
        assert read_entry(ledger.messages, 1).payload == payload_of(1)
        assert ledger.damage == ()


def test_a_segment_removed_by_the_writer_is_a_typed_error_for_the_reader(store: Store) -> None:
    store.fill(100)
    with store.look() as ledger:
        live = Live(frozenset([1, 99]))
        Compactor(store.ledger, store.messages, live, Retention(), store.clock).run()
        with pytest.raises(EntryGone, match="open the queue again"):
            seqs(ledger.messages)


def test_a_segment_rewritten_by_the_writer_is_not_read_by_old_offsets(store: Store) -> None:
    """The name is the same, the file is another: it must not be taken for damage."""
    store.fill(100)
    with store.look() as ledger:
        cursor = Cursor(ledger.messages, 1)
        cursor.read(5)
        for segment in ledger.messages.segments.all:
            segment.close()
        live = Live(frozenset([1, 20, 99]))
        Compactor(store.ledger, store.messages, live, Retention(), store.clock).run()
        with pytest.raises(EntryGone, match="open the queue again"):
            cursor.read(5)
        assert ledger.damage == ()


# -- refusing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda ledger: ledger.messages.append(b""),
        lambda ledger: ledger.messages.append_batch([b"", b""]),
        lambda ledger: ledger.events.append_draft(Draft(b"", type=EVENT)),
        lambda ledger: ledger.sync(),
        lambda ledger: ledger.rest(),
        lambda ledger: ledger.save_snapshot(1, b""),
        lambda ledger: ledger.save_queue_settings({}),
        lambda ledger: remove_before(ledger, ledger.messages, 100),
    ],
)
def test_a_reader_refuses_every_kind_of_writing(
    store: Store, write: Callable[[Ledger], object]
) -> None:
    store.fill(100)
    store.close()
    before = listing(store.path)
    with store.look() as ledger:
        for _ in range(2):
            with pytest.raises(ReadOnly, match="was opened for reading"):
                write(ledger)
        assert len(seqs(ledger.messages)) == 100
    assert listing(store.path) == before


def test_a_place_that_is_no_queue_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(NotALedger, match="does not exist"):
        Ledger.open(str(tmp_path / "nothing"), read_only=True)
    with pytest.raises(NotALedger, match=r"there is no queue\.json in it"):
        Ledger.open(str(tmp_path), read_only=True)
    assert os.listdir(tmp_path) == []


def test_a_reader_does_not_wait_for_entries(store: Store) -> None:
    """It sees the queue as it was when it looked; waiting would be for ever."""
    store.fill(3)
    with store.look() as ledger:
        assert ledger.messages.wait_for(3)
        assert not ledger.messages.wait_for(4)
