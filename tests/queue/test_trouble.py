"""A full disk, a failing disk, a damaged snapshot: what still works, and what is said."""

import logging
from pathlib import Path

import pytest

from penstock.errors import DiskFull, LedgerStopped, NewerVersion, PenstockError
from penstock.ledger.files import OpenMode
from penstock.ledger.memory_files import MemoryFiles
from penstock.queue import Queue
from tests.harness.queue_store import ROOM_BYTES, QueueStore


class Disk(MemoryFiles):
    """A disk whose syncs can be made to fail, and that may have no room for snapshots."""

    fails = False
    has_room_for_snapshots = True

    def open(self, path: str, mode: OpenMode) -> int:
        if mode == "create" and "/snapshots/" in path and not self.has_room_for_snapshots:
            raise OSError(28, "No space left on device")
        return super().open(path, mode)

    def fdatasync(self, fd: int) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        super().fdatasync(fd)


@pytest.fixture
def disk() -> Disk:
    return Disk(mapped_room_bytes=ROOM_BYTES)


def fill(queue: Queue) -> int:
    count = 0
    while True:
        try:
            queue.enqueue(b"x" * 1000)
        except DiskFull:
            return count
        count += 1


def test_a_full_disk_refuses_publishes_while_work_goes_on(disk: Disk) -> None:
    store = QueueStore(files=disk)
    store.queue.enqueue(b"first")
    disk.capacity_bytes = 3 << 20
    count = fill(store.queue)
    assert count > 100
    for _ in range(count // 2):
        store.queue.ack(store.queue.lease())
    store.queue.nack(store.queue.lease(), "it failed")
    with pytest.raises(DiskFull):
        store.queue.enqueue(b"x" * 100_000)
    assert store.queue.stats().nacked == 1


def test_it_takes_messages_again_when_there_is_room(disk: Disk) -> None:
    store = QueueStore({"segment_bytes": 65536, "min_free_bytes": 1 << 18}, files=disk)
    disk.capacity_bytes = 3 << 20
    count = fill(store.queue)
    store.queue.dequeue_batch(count)
    store.queue.compact()
    assert fill(store.queue) > count // 2


def test_a_full_disk_does_not_keep_a_queue_from_closing(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    store = QueueStore(files=disk)
    disk.capacity_bytes = 3 << 20
    fill(store.queue)
    disk.capacity_bytes = 0
    with caplog.at_level(logging.CRITICAL, "penstock.queue"):
        store.close()
    disk.capacity_bytes = None
    assert store.open().stats().ready > 100


def test_snapshots_that_cannot_be_saved_do_not_fail_the_work(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    store = QueueStore({"snapshot_every": 10}, files=disk)
    store.queue.enqueue_batch([b"x"] * 30)
    disk.has_room_for_snapshots = False
    with caplog.at_level(logging.CRITICAL, "penstock.queue"):
        for _ in range(30):
            store.queue.ack(store.queue.lease())
    assert store.queue.stats().acked == 30


def test_a_failed_sync_stops_writes_says_why_and_leaves_reading(disk: Disk) -> None:
    store = QueueStore({"sync": "always"}, files=disk)
    id_ = store.queue.enqueue(b"safe")
    (leased,) = store.queue.lease(lease_s=5)
    disk.fails = True
    with pytest.raises(LedgerStopped):
        store.queue.enqueue(b"unknown")
    disk.fails = False
    for change in (
        lambda: store.queue.enqueue(b"x"),
        lambda: store.queue.ack(leased),
        lambda: store.queue.purge(),
        lambda: store.queue.cancel(id_),
    ):
        with pytest.raises(LedgerStopped, match="reopen"):
            change()
    store.clock.advance(10)  # the lease is over, and that cannot be written
    assert store.queue.stats().leased == 1
    assert store.queue.get(id_).payload == b"safe"
    assert id_ in [message.id for message in store.queue.browse()]
    assert store.queue.why(id_).state == "leased"
    store.queue.peek(), list(store.queue.dead()), store.queue.history(id_)
    store.close()
    assert store.open().get(id_).payload == b"safe"


def test_another_process_can_look_at_a_stopped_queue(disk: Disk) -> None:
    store = QueueStore({"sync": "always"}, files=disk)
    id_ = store.queue.enqueue(b"safe")
    disk.fails = True
    with pytest.raises(LedgerStopped):
        store.queue.enqueue(b"unknown")
    with store.look() as reader:
        assert reader.get(id_).payload == b"safe"
        assert reader.stats().ready >= 1


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "gone"])
@pytest.mark.parametrize("which", ["newest", "all"])
def test_a_damaged_snapshot_is_done_without(tmp_path: Path, how: str, which: str) -> None:
    store = QueueStore(path=tmp_path)
    for number in range(20):
        store.queue.enqueue(b"%d" % number, key=str(number % 3))
        store.queue.ack(store.queue.lease())
        store.queue.enqueue(b"%d" % number, delay=5, dedup_id=str(number))
        store.reopen()
    expected = store.queue.stats()
    store.close()
    files = sorted((tmp_path / "snapshots").iterdir())
    assert files
    for file in files if which == "all" else files[-1:]:
        data = file.read_bytes()
        if how == "gone":
            file.unlink()
        else:
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            file.write_bytes({"flip": flipped, "cut": data[:middle], "empty": b""}[how])
    stats = store.open().stats()
    assert (stats.ready, stats.scheduled, stats.acked) == (
        expected.ready,
        expected.scheduled,
        expected.acked,
    )
    assert store.queue.enqueue(b"again", dedup_id="7") in [m.id for m in store.queue.browse()]


def test_a_lost_message_is_told_of_and_gets_out_of_the_way(tmp_path: Path) -> None:
    store = QueueStore(path=tmp_path)
    for name in (b"first", b"victim", b"last"):
        store.queue.enqueue(name)
    store.queue.sync()
    store.close()
    (file,) = (tmp_path / "messages").glob("*.log")
    data = bytearray(file.read_bytes())
    data[data.index(b"victim")] ^= 1
    file.write_bytes(data)
    with pytest.raises(PenstockError):
        store.open().get("0" * 26)
    assert [m.payload for m in store.queue.dequeue_batch(9)] == [b"first", b"last"]
    assert store.queue.stats().ready == 0
    assert store.queue.stats().storage.damaged == 1


def test_an_ack_with_follow_ups_outlives_them_and_the_newest_snapshot(tmp_path: Path) -> None:
    """The follow-up, which carried the ack, is compacted away; then the newest snapshot is lost."""
    store = QueueStore({"segment_bytes": 700}, path=tmp_path)
    work = store.queue.enqueue(b"work", delay=1)
    for _ in range(4):
        store.queue.enqueue(b"." * 60, delay=90_000)  # keeps the segment
    store.clock.advance(2)
    store.reopen()  # the older snapshot: work is waiting
    store.queue.ack(store.queue.lease(), emit=[b"follow-up" * 9])
    store.queue.dequeue()
    for _ in range(60):
        store.queue.enqueue(b"." * 60)
        store.queue.dequeue()
    store.reopen().compact()
    store.close()
    older, newest = sorted((tmp_path / "snapshots").iterdir())
    assert older != newest
    newest.write_bytes(b"damaged")
    assert store.open().state(work) == "done"


def test_a_snapshot_that_is_whole_but_makes_no_sense_is_done_without(store: QueueStore) -> None:
    store.queue.enqueue_batch([b"a", b"b", b"c"])
    store.queue.dequeue()
    store.reopen().dequeue()
    ledger = store.queue.core.ledger
    for nonsense in (b"", b"nonsense", b"\2\0\0\0\0\0\0\0{}"):
        ledger.save_snapshot(ledger.events.next_seq - 1, nonsense)
        damages = len(store.damage)
        assert [m.payload for m in store.kill().browse()] == [b"c"]
        assert "snapshot" in store.damage[damages].file
        ledger = store.queue.core.ledger


def test_a_snapshot_of_a_newer_version_is_refused_with_its_reason(store: QueueStore) -> None:
    store.queue.enqueue(b"a")
    ledger = store.queue.core.ledger
    header = b'{"version":9}'
    ledger.save_snapshot(0, len(header).to_bytes(8, "little") + header)
    with pytest.raises(NewerVersion, match="newer version"):
        store.kill()
