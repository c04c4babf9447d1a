"""Faults of a real kernel: full disks, failing syncs, limits, a disk that turns read-only."""

import gc
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.codec import Draft
from penstock.errors import DiskFull, LedgerError, LedgerStopped, PenstockError
from penstock.ledger import Ledger, LedgerSettings
from penstock.ledger.compaction import remove_before
from penstock.ledger.log import Log
from penstock.ledger.settings import KIB, MIB
from tests.harness.power_mounts import Ext4, ext4, read_only, tmpfs
from tests.ledger.other_process import OtherProcess
from tests.ledger.store import EVENT, Store, payload_of, payloads, seqs

SETTINGS = LedgerSettings(
    sync="never",
    sync_interval_s=3600,
    segment_bytes=128 * KIB,
    first_step_bytes=4 * KIB,
    largest_step_bytes=64 * KIB,
    min_free_bytes=0,
    reserve_bytes=32 * KIB,
)

POLICIES = {
    "always": replace(SETTINGS, sync="always"),
    "mapped": SETTINGS,
    "write": replace(SETTINGS, mapped=False),
}


def fill_until_refused(store: Store) -> int:
    """Publish until the disk is full; how many messages were answered in all."""
    answered = store.messages.next_seq - 1
    try:
        while True:
            store.fill(1, size=1000)
            answered += 1
    except DiskFull:
        return answered


def expect(log: Log, answered: int) -> None:
    assert payloads(log, 1) == [payload_of(seq, 1000) for seq in seqs(log)]
    assert seqs(log)[-1] >= answered


# -- a full disk -----------------------------------------------------------------------------------


@pytest.fixture(params=POLICIES)
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A queue on a tmpfs of one megabyte."""
    with tmpfs(tmp_path / "disk", size_bytes=1 * MIB) as directory:
        store = Store(directory / "queue", POLICIES[request.param])
        yield store
        store.close()


@pytest.mark.root
def test_a_full_disk_refuses_messages_loses_nothing_and_recovers(small_disk: Store) -> None:
    store = small_disk
    answered = fill_until_refused(store)
    assert answered > 500
    for _ in range(3):
        assert fill_until_refused(store) == answered
    assert seqs(store.messages) == list(range(1, answered + 1))
    assert remove_before(store.ledger, store.messages, answered // 2).segments_removed > 1
    store.fill(50, size=1000)
    assert seqs(store.messages)[-1] == answered + 50
    store.reopen()
    expect(store.messages, answered + 50)
    assert store.damage == []


@pytest.mark.root
def test_on_a_full_disk_events_go_on_from_the_reserve(small_disk: Store) -> None:
    store = small_disk
    store.events.append_draft(Draft(b"first", type=EVENT))
    fill_until_refused(store)
    for _ in range(300):
        store.events.append_draft(Draft(b"acked", type=EVENT))
        store.ledger.commit()
    store.reopen_after_death()
    assert len(seqs(store.events)) == 301


@pytest.mark.root
@pytest.mark.parametrize("how", ["closed", "dead"])
def test_on_a_disk_without_a_free_byte_a_queue_opens_and_is_worked_off(
    small_disk: Store, how: str
) -> None:
    store = small_disk
    answered = fill_until_refused(store)
    if how == "closed":
        store.close()
    else:
        store.die()
    fill_to_the_last_byte(store.path.parent / "filler")
    store.open()
    assert seqs(store.messages) == list(range(1, answered + 1))
    remove_before(store.ledger, store.messages, answered // 2)
    store.fill(10, size=1000)
    store.reopen()
    expect(store.messages, answered + 10)
    assert store.damage == []


def fill_to_the_last_byte(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


@pytest.mark.root
def test_a_disk_that_grew_takes_messages_again(small_disk: Store) -> None:
    store = small_disk
    answered = fill_until_refused(store)
    disk = store.path.parent
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    store.fill(1000, size=1000)
    assert seqs(store.messages) == list(range(1, answered + 1001))


# -- a sync that fails -----------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("policy", POLICIES)
def test_a_failing_sync_stops_the_ledger_and_reopening_shows_what_is_true(
    tmp_path: Path, policy: str
) -> None:
    """The disk promises 64 MB, but there are only a few behind it: writing back fails."""
    with (
        tmpfs(tmp_path / "backing", size_bytes=12 * MIB) as backing,
        ext4(backing, size_bytes=64 * MIB) as file_system,
    ):
        store = Store(file_system.directory / "queue", POLICIES[policy])
        durable = fill_until_a_sync_fails(store)
        for attempt in (lambda: store.messages.append(b""), store.ledger.sync):
            with pytest.raises(PenstockError):
                attempt()
        assert durable > 1000
        close_in_spite_of_errors(store)
        mount_again_with_room(file_system, backing)
        expect(store.messages, durable)
        store.fill(5, size=1000)
        store.close()


@pytest.mark.root
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_shown_after_a_failed_sync_is_on_the_disk(tmp_path: Path, policy: str) -> None:
    """Reopened on the same mount: the cache has what the disk has not, and calls it clean."""
    with (
        tmpfs(tmp_path / "backing", size_bytes=12 * MIB) as backing,
        ext4(backing, size_bytes=64 * MIB, journal=False) as file_system,
    ):
        store = Store(file_system.directory / "queue", POLICIES[policy])
        fill_until_a_sync_fails(store)
        close_in_spite_of_errors(store)
        give_room(backing)
        shown = payloads(store.messages)
        store.die()
        file_system.unmount()  # drops the cache
        file_system.mount()
        assert payloads(store.messages) == shown
        assert store.damage == []
        store.close()


def fill_until_a_sync_fails(store: Store) -> int:
    """How many messages were durable by then."""
    durable = 0
    with pytest.raises((LedgerStopped, LedgerError)):
        while True:
            store.fill(20, size=1000)
            store.ledger.sync()
            durable = store.messages.next_seq - 1
    return durable


def close_in_spite_of_errors(store: Store) -> None:
    try:
        store.close()
    except PenstockError:
        pass
    gc.collect()  # an error holds the frames it came through, and they a mapping


def mount_again_with_room(file_system: Ext4, backing: Path) -> None:
    file_system.unmount()
    give_room(backing)
    file_system.mount()


def give_room(backing: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=128m", str(backing)], check=True)


# -- a disk that turns read-only -------------------------------------------------------------------


@pytest.mark.root
def test_a_read_only_disk_is_refused_for_writing_and_read_all_the_same(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", size_bytes=1 * MIB) as directory:
        store = Store(directory / "queue", SETTINGS)
        store.fill(100, size=1000)
        store.close()
        with read_only(directory):
            with pytest.raises(LedgerError, match="Read-only file system"):
                store.open()
            with store.look() as reader:
                assert len(seqs(reader.messages)) == 100
        store.fill(1, size=1000)
        assert len(seqs(store.messages)) == 101
        store.close()


@pytest.mark.root
@pytest.mark.parametrize("policy", POLICIES)
def test_a_disk_that_turns_read_only_stops_the_ledger_and_nothing_durable_is_lost(
    tmp_path: Path, policy: str
) -> None:
    """What ext4 does when it finds itself damaged: `errors=remount-ro`."""
    with ext4(tmp_path) as file_system:
        store = Store(file_system.directory / "queue", POLICIES[policy])
        store.fill(100, size=1000)
        store.ledger.sync()
        subprocess.run(["mount", "-o", "remount,abort", str(file_system.directory)], check=False)
        with pytest.raises(PenstockError):
            store.fill(1000, size=1000)
            store.ledger.sync()
        assert len(seqs(store.messages)) >= 100, "what is there can be read"
        close_in_spite_of_errors(store)
        file_system.unmount()
        file_system.mount()
        expect(store.messages, 100)
        store.fill(1, size=1000)
        store.close()


# -- limits of the process -------------------------------------------------------------------------


def test_a_limit_on_file_sizes_refuses_messages_until_it_is_raised(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from dataclasses import replace
        from penstock.errors import DiskFull
        from tests.rings.test_real_faults import POLICIES
        from penstock.ledger import Ledger
        from tests.ledger.store import payload_of
        settings = replace(POLICIES[sys.argv[2]], segment_bytes=1 << 20)
        ledger = Ledger.open(sys.argv[1], settings)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        answered = 0
        for attempt in range(2):
            try:
                while True:
                    ledger.messages.append(payload_of(answered + 1, 1000))
                    ledger.commit()
                    answered += 1
            except DiskFull:
                pass
        assert 150 < answered < 200, answered
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        for _ in range(100):
            ledger.messages.append(payload_of(answered + 1, 1000))
            answered += 1
        ledger.commit()
        print(answered, flush=True)
    """
    for policy in POLICIES:
        path = tmp_path / policy
        with OtherProcess(code, path, policy) as other:
            answered = int(other.answer())
            other.kill()
        with Ledger.open(str(path), SETTINGS) as ledger:
            assert seqs(ledger.messages) == list(range(1, answered + 1))
            expect(ledger.messages, answered)


def test_a_limit_on_open_files_is_an_error_that_passes(tmp_path: Path) -> None:
    code = """
        import os, resource, sys
        from dataclasses import replace
        from penstock.errors import LedgerError
        from tests.rings.test_real_faults import POLICIES
        from penstock.ledger import Cursor, Ledger, read_entry
        from tests.ledger.store import payload_of
        settings = replace(POLICIES[sys.argv[2]], segment_bytes=8192, max_open_segments=8)
        ledger = Ledger.open(sys.argv[1], settings)
        for seq in range(1, 101):
            ledger.messages.append(payload_of(seq, 1000))
        ledger.commit()
        answered, refused = 100, 0
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for spare in range(6):
            held = len(os.listdir("/proc/self/fd")) - 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (held + spare, hard))
            for _ in range(40):
                try:
                    ledger.messages.append(payload_of(answered + 1, 1000))
                    ledger.commit()
                    answered += 1
                except LedgerError as error:
                    assert "too many open files" in str(error), error
                    refused += 1
            for seq in range(1, answered, 7):
                try:
                    assert read_entry(ledger.messages, seq).payload == payload_of(seq, 1000)
                except LedgerError as error:
                    assert "oo many open files" in str(error), error
                    refused += 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        assert refused
        for _ in range(100):
            ledger.messages.append(payload_of(answered + 1, 1000))
            answered += 1
        ledger.commit()
        print(answered, flush=True)
    """
    for policy in POLICIES:
        path = tmp_path / policy
        with OtherProcess(code, path, policy) as other:
            answered = int(other.answer() or 0)
            other.kill()
        with Ledger.open(str(path), SETTINGS) as ledger:
            assert seqs(ledger.messages) == list(range(1, answered + 1))
            expect(ledger.messages, answered)
