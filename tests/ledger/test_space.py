"""A full disk: messages are refused in time, events go on, and all recovers by itself."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.codec import Draft
from penstock.errors import DiskFull
from penstock.ledger import Cursor, LedgerSettings
from penstock.ledger.compaction import remove_before
from penstock.ledger.memory_files import MemoryFiles
from penstock.ledger.settings import MIB
from tests.harness.faults import Fault, FaultyFiles
from tests.ledger.store import EVENT, MODES, SMALL, Store, payload_of, payloads, seqs
from tests.ledger.watched_files import WatchedFiles

FLOOR = 100 * MIB


@pytest.fixture(params=MODES)
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, WatchedFiles]]:
    files = WatchedFiles()
    files.free = 10 * FLOOR
    settings = replace(MODES[request.param], min_free_bytes=FLOOR)
    store = Store(tmp_path / "queue", settings, files=files)
    yield store, files
    store.close()


def note(store: Store, count: int = 1) -> None:
    for _ in range(count):
        store.events.append_draft(Draft(b"event", type=EVENT))
    store.ledger.commit()


# -- the floor -------------------------------------------------------------------------------------


def test_below_the_floor_messages_are_refused_and_events_go_on(
    watched: tuple[Store, WatchedFiles],
) -> None:
    store, files = watched
    store.fill(10)
    note(store)
    files.free = FLOOR - 1
    with pytest.raises(DiskFull, match=r"100\.0 MB are kept free .*acks still work.*by itself"):
        store.fill(100)
    published = store.messages.next_seq - 1
    with pytest.raises(DiskFull):
        store.messages.append_batch([b"x" * 3000, b"y" * 3000])
    note(store, 500)
    assert payloads(store.messages) == [payload_of(seq) for seq in range(1, published + 1)]
    assert store.events.next_seq == 502


def test_messages_are_taken_again_when_there_is_room(watched: tuple[Store, WatchedFiles]) -> None:
    store, files = watched
    files.free = 0
    with pytest.raises(DiskFull):
        store.fill(1)
    files.free = 10 * FLOOR
    store.fill(50)
    files.free = FLOOR
    with pytest.raises(DiskFull):
        store.fill(1000)
    published = store.messages.next_seq - 1
    files.free = 10 * FLOOR
    store.fill(100)
    assert seqs(store.messages) == list(range(1, published + 101))
    store.reopen()
    assert seqs(store.messages) == list(range(1, published + 101))
    assert store.damage == []


def test_a_refused_rotation_does_not_harm_the_old_segment(
    watched: tuple[Store, WatchedFiles],
) -> None:
    """What still fits is written there; what does not, waits."""
    store, files = watched
    store.open(replace(store.settings, segment_bytes=2000))
    store.fill(12)
    files.free = 0
    for _ in range(3):
        with pytest.raises(DiskFull):
            store.messages.append(b"x" * 1500)
    files.free = 10 * FLOOR
    store.fill(1)
    files.free = 0
    with pytest.raises(DiskFull):
        store.messages.append(b"x" * 1500)
    files.free = 10 * FLOOR
    store.fill(20)
    store.reopen_after_death()
    assert payloads(store.messages) == [payload_of(seq) for seq in range(1, 34)]
    assert store.damage == []


def test_a_queue_below_the_floor_opens_reads_and_closes(
    watched: tuple[Store, WatchedFiles],
) -> None:
    store, files = watched
    store.fill(100)
    store.close()
    files.free = 0
    assert len(seqs(store.messages)) == 100
    remove_before(store.ledger, store.messages, 50)
    store.ledger.save_snapshot(0, b"state")
    store.ledger.rest()
    store.reopen()


# -- no block left ---------------------------------------------------------------------------------


def full_memory(capacity_bytes: int | None = None) -> tuple[Store, MemoryFiles]:
    files = MemoryFiles(mapped_room_bytes=1 << 20)
    files.capacity_bytes = capacity_bytes
    settings = LedgerSettings(
        sync="never", segment_bytes=200_000, min_free_bytes=0, reserve_bytes=64 * 1024
    )
    return Store(Path("/queue"), settings, files=files), files


def used_bytes(files: MemoryFiles) -> int:
    """All blocks in use, by making the disk exactly full."""
    before = files.capacity_bytes
    files.capacity_bytes = 1 << 30
    used = (1 << 30) - files.free_bytes("/")
    files.capacity_bytes = before
    return used


def test_without_room_nothing_is_written_and_the_error_says_so() -> None:
    store, files = full_memory()
    store.fill(10)
    files.capacity_bytes = used_bytes(files)
    with pytest.raises(DiskFull):
        store.fill(1000)
    published = store.messages.next_seq - 1
    assert payloads(store.messages) == [payload_of(seq) for seq in range(1, published + 1)]
    files.capacity_bytes = None
    store.fill(1000)
    store.reopen_after_death()
    assert seqs(store.messages) == list(range(1, published + 1001))
    assert store.damage == []


def test_a_queue_that_grew_keeps_a_ballast() -> None:
    store, files = full_memory()
    store.fill(10)
    assert not files.exists("/queue/ballast")
    store.fill(1000)
    assert files.allocated_bytes("/queue/ballast") >= 64 * 1024


@pytest.mark.parametrize("left_bytes", [0, 4096])
def test_a_ballast_that_a_crash_left_half_made_is_made_whole(left_bytes: int) -> None:
    store, files = full_memory()
    store.fill(1000)
    fd = files.open("/queue/ballast", "write")
    files.truncate(fd, left_bytes)
    files.close(fd)
    store.reopen_after_death()
    store.fill(3000)
    assert files.allocated_bytes("/queue/ballast") == 64 * 1024


def test_the_ballast_makes_room_for_events_and_comes_back() -> None:
    store, files = full_memory()
    store.fill(1000)
    note(store, 10)
    files.capacity_bytes = used_bytes(files)
    note(store, 800)  # more than the segment had room for
    assert not files.exists("/queue/ballast")
    assert store.events.next_seq == 811
    files.capacity_bytes = None
    store.fill(3000)
    assert files.exists("/queue/ballast")
    store.reopen_after_death()
    assert len(seqs(store.events)) == 810


def test_the_ballast_makes_room_for_the_first_event() -> None:
    store, files = full_memory()
    store.fill(1000)
    files.capacity_bytes = used_bytes(files)
    note(store)
    assert seqs(store.events) == [1]


def test_the_ballast_makes_room_for_a_new_segment_of_events() -> None:
    store, files = full_memory()
    store.open(replace(store.settings, segment_entries=1000))
    store.fill(1000)
    note(store, 1000)
    files.capacity_bytes = used_bytes(files)
    note(store, 1500)
    assert len(seqs(store.events)) == 2500
    assert not files.exists("/queue/ballast")


def test_without_a_ballast_the_last_blocks_are_for_events() -> None:
    store, files = full_memory()
    store.fill(10)
    note(store)
    store.ledger.rest()
    files.capacity_bytes = used_bytes(files) + 4096  # less than a step
    note(store, 50)
    assert len(seqs(store.events)) == 51


def test_the_ballast_makes_room_for_compaction() -> None:
    """Else a full disk could not be worked off."""
    store, files = full_memory()
    store.open(replace(store.settings, segment_entries=1000))
    store.fill(3500)
    files.capacity_bytes = used_bytes(files)
    result = remove_before(store.ledger, store.messages, 3400)
    assert result.segments_removed == 3
    store.reopen()
    assert seqs(store.messages) == list(range(3001, 3501))


def test_when_the_ballast_is_used_up_events_are_refused_too() -> None:
    store, files = full_memory()
    store.fill(1000)
    note(store, 10)
    files.capacity_bytes = used_bytes(files)
    with pytest.raises(DiskFull):
        note(store, 100_000)
    noted = store.events.next_seq - 1
    files.capacity_bytes = None
    note(store)
    store.reopen_after_death()
    assert len(seqs(store.events)) == noted + 1


def test_a_full_disk_opens_reads_and_closes() -> None:
    store, files = full_memory()
    store.fill(1000)
    store.close()
    files.capacity_bytes = used_bytes(files)
    assert len(seqs(store.messages)) == 1000
    store.close()
    assert len(seqs(store.messages)) == 1000
    store.die()


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    files = FaultyFiles(WatchedFiles())
    store = Store(tmp_path / "queue", SMALL, files=files)
    store.fill(2)
    files.fault = Fault(1, errno.EFBIG, forever=True, methods=frozenset(["pwrite"]))
    with pytest.raises(DiskFull):
        store.fill(100)
    files.heal()
    published = store.messages.next_seq - 1
    store.fill(100)
    assert seqs(store.messages) == list(range(1, published + 101))
    store.close()


@pytest.mark.parametrize("mapped", [True, False])
def test_too_many_open_files_is_an_error_that_passes(tmp_path: Path, *, mapped: bool) -> None:
    """Whichever of its calls needs a file: afterwards it goes on."""
    from penstock.errors import LedgerError

    methods = frozenset(["open", "map", "sync_directory", "names"])
    for nth in range(1, 9):
        files = FaultyFiles(WatchedFiles())
        store = Store(tmp_path / f"{nth}", replace(SMALL, mapped=mapped), files=files)
        store.fill(2)
        files.fault = Fault(files.chosen_calls + nth, errno.EMFILE, methods=methods)
        answered = 2
        for _ in range(100):
            try:
                store.fill(1)
            except LedgerError as error:
                assert "too many open files" in str(error), nth
            else:
                answered += 1
        assert len(files.failures) == 1
        files.heal()
        assert Cursor(store.messages, 1).read(1)
        assert len(seqs(store.messages)) == answered
        store.close()
