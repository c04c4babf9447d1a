"""The four policies: what each promises about the disk, and what it costs."""

from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock.codec import Draft
from penstock.errors import LedgerStopped
from penstock.ledger import Cursor, Ledger
from tests.ledger.store import EVENT, SMALL, Store, payload_of, seqs
from tests.ledger.watched_files import WatchedFiles

DEADLINE_S = 30


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


@pytest.fixture
def roomy(tmp_path: Path, files: WatchedFiles) -> Store:
    """No rotation, so that every sync is one that the policy asked for."""
    settings = replace(
        SMALL, segment_bytes=1 << 24, first_step_bytes=1 << 20, largest_step_bytes=1 << 20
    )
    return Store(tmp_path / "queue", settings, files=files)


# -- always ----------------------------------------------------------------------------------------


def test_always_shows_an_entry_only_when_it_is_durable(roomy: Store, files: WatchedFiles) -> None:
    roomy.open(replace(roomy.settings, sync="always"))
    cursor = Cursor(roomy.messages, 1)
    for number in range(1, 6):
        roomy.messages.append(b"%d" % number)
        roomy.messages.append_batch([b"a", b"b"])
        assert cursor.read(10) == []
        assert roomy.messages.durable_next_seq == 3 * number - 2
        roomy.ledger.commit()
        assert len(cursor.read(10)) == 3
    roomy.close()


def test_always_does_not_show_an_entry_while_it_is_being_synced(
    roomy: Store, files: WatchedFiles
) -> None:
    roomy.open(replace(roomy.settings, sync="always"))
    roomy.fill(1)
    seen: list[list[int]] = []
    files.before_fdatasync = lambda: seen.append(seqs(roomy.messages))
    files.after_fdatasync = lambda: seen.append(seqs(roomy.messages))
    roomy.fill(1)
    files.before_fdatasync = files.after_fdatasync = lambda: None
    assert seen == [[1], [1]]
    assert seqs(roomy.messages) == [1, 2]
    roomy.close()


def test_always_never_shows_what_a_failed_sync_left_behind(
    roomy: Store, files: WatchedFiles
) -> None:
    roomy.open(replace(roomy.settings, sync="always"))
    roomy.fill(1)

    def fail() -> None:
        raise OSError(5, "Input/output error")

    files.before_fdatasync = fail
    with pytest.raises(LedgerStopped):
        roomy.fill(1)
    assert seqs(roomy.messages) == [1]
    roomy.close()


def test_always_syncs_messages_before_events(roomy: Store, files: WatchedFiles) -> None:
    """An event on disk must not speak of a message that is not."""
    roomy.open(replace(roomy.settings, sync="always"))
    order: list[bool] = []
    roomy.messages.append(b"message")
    roomy.events.append_draft(Draft(b"event", type=EVENT))
    files.after_fdatasync = lambda: order.append(roomy.messages.durable_next_seq == 2)
    roomy.ledger.commit()
    files.after_fdatasync = lambda: None
    assert order == [False, True]
    roomy.close()


# -- interval --------------------------------------------------------------------------------------


def test_interval_syncs_in_the_background(roomy: Store, files: WatchedFiles) -> None:
    roomy.open(replace(roomy.settings, sync="interval", sync_interval_s=0.002))
    for number in range(1, 4):
        synced = Event()
        files.after_fdatasync = synced.set
        roomy.messages.append(b"%d" % number)
        assert synced.wait(DEADLINE_S)
    files.after_fdatasync = lambda: None
    roomy.close()


def test_interval_syncs_both_logs(roomy: Store, files: WatchedFiles) -> None:
    roomy.open(replace(roomy.settings, sync="interval", sync_interval_s=0.002))
    done = Event()

    def look() -> None:
        if roomy.messages.durable_next_seq == 2:
            done.set()

    roomy.messages.append(b"message")
    roomy.events.append_draft(Draft(b"event", type=EVENT))
    files.before_fdatasync = look  # the one of the events, after that of the messages
    roomy.events.append_draft(Draft(b"event", type=EVENT))
    assert done.wait(DEADLINE_S)
    files.before_fdatasync = lambda: None
    roomy.close()


def test_interval_does_not_sync_in_the_append(roomy: Store, files: WatchedFiles) -> None:
    roomy.open(replace(roomy.settings, sync="interval", sync_interval_s=3600))
    roomy.fill(1)
    before = files.calls["fdatasync"]
    roomy.fill(1000)
    assert files.calls["fdatasync"] == before
    assert roomy.messages.durable_next_seq == 1
    roomy.ledger.sync()
    assert roomy.messages.durable_next_seq == 1002
    roomy.close()


def test_interval_with_a_timer_from_outside(tmp_path: Path) -> None:
    """A broker has one timer for all its queues: it is told once, until it has synced."""
    told: list[int] = []
    ledger = Ledger.open(
        str(tmp_path / "queue"),
        replace(SMALL, sync="interval"),
        on_dirty=lambda: told.append(ledger.messages.next_seq),
    )
    for _ in range(10):
        ledger.messages.append(b"")
    assert told == [1]
    ledger.sync()
    assert told == [1]
    ledger.messages.append(b"")
    assert told == [1, 11]
    ledger.close()


def test_interval_failing_in_the_background_stops_the_ledger(
    roomy: Store, files: WatchedFiles
) -> None:
    roomy.open(replace(roomy.settings, sync="interval", sync_interval_s=0.002))
    roomy.fill(1)
    failed = Event()

    def fail() -> None:
        failed.set()
        raise OSError(5, "Input/output error")

    files.before_fdatasync = fail
    roomy.messages.append(b"")
    assert failed.wait(DEADLINE_S)
    with pytest.raises(LedgerStopped):
        roomy.ledger.sync()
    with pytest.raises(LedgerStopped):
        roomy.messages.append(b"")
    roomy.close()


# -- batch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapped", [True, False])
def test_batch_never_leaves_more_than_so_many_entries_unsynced(
    roomy: Store, files: WatchedFiles, *, mapped: bool
) -> None:
    roomy.open(replace(roomy.settings, sync="batch", sync_batch=10, mapped=mapped))
    most = 0
    before = files.calls["fdatasync"]
    for number in range(300):
        if number % 7 == 0:
            roomy.messages.append_batch([b"a", b"b", b"c"])
        else:
            roomy.messages.append(b"x")
        most = max(most, roomy.messages.next_seq - roomy.messages.durable_next_seq)
    assert 8 <= most <= 10
    syncs = files.calls["fdatasync"] - before
    assert (roomy.messages.next_seq - 1) // 10 <= syncs < (roomy.messages.next_seq - 1) // 5
    roomy.close()


def test_batch_takes_a_larger_batch_by_itself(roomy: Store) -> None:
    roomy.open(replace(roomy.settings, sync="batch", sync_batch=10))
    roomy.fill(3)
    roomy.messages.append_batch([payload_of(4 + n) for n in range(25)])
    assert roomy.messages.durable_next_seq == 4, "what was before it was synced first"
    roomy.fill(1)
    assert roomy.messages.durable_next_seq == 29
    assert len(seqs(roomy.messages)) == 29
    roomy.close()


def test_batch_syncs_a_few_entries_after_the_interval(roomy: Store, files: WatchedFiles) -> None:
    settings = replace(roomy.settings, sync="batch", sync_batch=1000, sync_interval_s=0.002)
    roomy.open(settings)
    synced = Event()
    roomy.fill(1)
    files.after_fdatasync = synced.set
    roomy.fill(1)
    assert synced.wait(DEADLINE_S)
    roomy.close()


# -- never -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapped", [True, False])
def test_never_leaves_the_disk_to_the_system(
    roomy: Store, files: WatchedFiles, *, mapped: bool
) -> None:
    roomy.open(replace(roomy.settings, sync="never", mapped=mapped))
    roomy.fill(1)
    before = files.calls["fdatasync"]
    roomy.fill(5000)
    assert files.calls["fdatasync"] == before
    roomy.ledger.sync()
    assert files.calls["fdatasync"] == before + 1
    roomy.close()


# -- all -------------------------------------------------------------------------------------------


def test_in_every_mode_the_bytes_are_the_kernels_before_the_answer(any_store: Store) -> None:
    """So a second look at the file, by anyone, finds them."""
    for number in range(1, 30):
        any_store.fill(1)
        with any_store.look() as reader:
            assert reader.messages.next_seq == number + 1


def test_an_append_beside_anothers_write_is_in_the_file_when_it_is_answered(
    any_store: Store,
) -> None:
    """In the modes with write(2), nobody is answered with bytes that are still in memory."""

    def append() -> None:
        any_store.messages.append(b"beside")
        any_store.ledger.commit()

    class Overtaken(WatchedFiles):
        late: Thread | None = None

        def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
            if self.late is not None and self.late.ident is None:
                self.late.start()
                self.late.join(0.05)
            return super().pwrite(fd, data, offset)

    any_store.files = files = Overtaken()
    any_store.fill(1)
    answered = 1
    for _ in range(20):
        files.late = late = Thread(target=append)
        any_store.fill(1)
        files.late = None
        answered += 1
        if late.ident is not None:  # else a mapped append, with no call to come beside
            late.join(30)
            answered += 1
        any_store.reopen_after_death()
        assert seqs(any_store.messages) == list(range(1, answered + 1))


def test_a_mapped_append_needs_no_system_call(roomy: Store, files: WatchedFiles) -> None:
    roomy.fill(1)
    files.calls.clear()
    for number in range(1000):
        roomy.messages.append(b"%d" % number)
    assert files.calls == {}
    roomy.close()


def test_with_write_each_append_is_one_system_call(roomy: Store, files: WatchedFiles) -> None:
    roomy.open(replace(roomy.settings, mapped=False))
    roomy.fill(1)
    files.calls.clear()
    for number in range(100):
        roomy.messages.append(b"%d" % number)
    roomy.messages.append_batch([b"x"] * 100)
    assert files.calls == {"pwrite": 101}
    roomy.close()
