"""The defects of three earlier queues, each as a test of what happens here instead.

Those about files alone are tested with the ledger; those about servers with the server.
"""

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from types import FrameType

import pytest

from penstock.errors import LedgerLocked, QueueFull, ReceiptInvalid, TooLarge
from penstock.queue import Queue
from penstock.queue.queue import open_queue
from tests.harness.queue_store import QUIET, QueueStore


def payloads(queue: Queue, count: int = 1000) -> list[bytes]:
    return [message.payload for message in queue.dequeue_batch(count)]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def enqueue_each(queue: Queue, some: list[bytes]) -> None:
    """One by one: a batch would be in one segment."""
    for payload in some:
        queue.enqueue(payload)


def message_files(path: Path) -> list[Path]:
    return sorted((path / "messages").glob("*.log"))


def everything_in(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# -- LedgerQ ---------------------------------------------------------------------------------------


def test_metadata_that_disagrees_with_the_log_wedges_nothing(tmp_path: Path) -> None:
    store = QueueStore(path=tmp_path)
    store.queue.enqueue_batch([b"a", b"b"])
    store.close()
    metadata = tmp_path / "metadata.json"
    assert metadata.exists()
    for lie in (b'{"next_message_id": 900, "read_message_id": 800}', b"", b"{half"):
        metadata.write_bytes(lie)
        assert [m.payload for m in store.reopen().browse()] == [b"a", b"b"]
    assert payloads(store.queue) == [b"a", b"b"]


def test_a_queue_killed_before_its_first_message_opens(store: QueueStore) -> None:
    store.open()
    store.kill()
    store.kill().enqueue(b"a")
    assert payloads(store.kill()) == [b"a"]


def test_a_torn_tail_is_cut_and_the_rest_is_delivered(tmp_path: Path) -> None:
    store = QueueStore(path=tmp_path)
    store.queue.enqueue_batch([b"a", b"b"])
    store.queue.enqueue(b"torn")
    store.close()
    (file,) = message_files(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(b"torn") + 2])
    for snapshot in (tmp_path / "snapshots").iterdir():
        snapshot.unlink()
    assert payloads(store.open()) == [b"a", b"b"]


@pytest.mark.parametrize("sync", ["always", "interval", "batch", "never"])
def test_process_death_takes_nothing_that_was_answered(sync: str) -> None:
    store = QueueStore({"sync": sync})
    store.queue.enqueue_batch(numbered(50))
    store.queue.ack(store.queue.lease(10))
    assert payloads(store.kill()) == numbered(50)[10:]


def test_compaction_keeps_what_was_not_read() -> None:
    store = QueueStore({"segment_bytes": 512})
    enqueue_each(store.queue, numbered(100))
    assert payloads(store.queue, 40) == numbered(100)[:40]
    assert store.queue.compact().segments_removed > 0
    assert payloads(store.reopen()) == numbered(100)[40:]


@pytest.mark.parametrize("victim", [0, 5, 9])
def test_one_flipped_bit_costs_one_message(tmp_path: Path, victim: int) -> None:
    store = QueueStore(path=tmp_path)
    for number in range(10):
        store.queue.enqueue(b"message-%d" % number)
    store.queue.sync()
    store.queue.enqueue(b"last")
    store.close()
    (file,) = message_files(tmp_path)
    data = bytearray(file.read_bytes())
    data[data.index(b"message-%d" % victim)] ^= 1
    file.write_bytes(data)
    found = payloads(store.open())
    kept = [b"message-%d" % number for number in range(10) if number != victim]
    assert found == [*kept, b"last"]
    assert store.damage


def test_priorities_survive_a_clean_restart(store: QueueStore) -> None:
    for number in range(30):
        store.queue.enqueue(b"%d" % number, priority=number % 10)
    expected = sorted(range(30), key=lambda number: (-(number % 10), number))
    first = payloads(store.reopen(), 12)
    rest = payloads(store.reopen())
    assert first + rest == [b"%d" % number for number in expected]


def test_priorities_lose_and_double_nothing_over_rotated_segments() -> None:
    store = QueueStore({"segment_bytes": 512})
    seen = []
    for number in range(200):
        store.queue.enqueue(b"%d" % number, priority=number % 3)
        if number % 4 == 0:
            seen += payloads(store.queue, 2)
        if number % 50 == 0:
            store.reopen()
    seen += payloads(store.queue)
    assert sorted(seen) == sorted(numbered(200))


def test_a_nacked_message_comes_again(store: QueueStore) -> None:
    store.queue.enqueue(b"a")
    store.queue.nack(store.queue.lease())
    store.clock.advance(1)
    (again,) = store.queue.lease()
    assert (again.payload, again.attempt) == (b"a", 2)


def test_a_stream_handlers_error_loses_nothing(store: QueueStore) -> None:
    store.queue.enqueue_batch([b"bad", b"good"])
    handled = []

    def handle(job: object) -> None:
        handled.append(job)
        if len(handled) == 1:
            raise RuntimeError("the handler failed")

    assert store.queue.stream(handle, idle_s=0) == 1
    store.clock.advance(1)
    assert payloads(store.queue) == [b"bad"]


def test_a_compressed_payload_is_plain_in_the_dead_letters(store: QueueStore) -> None:
    store.queue.enqueue(b"a" * 5000, compression="gzip", max_attempts=1)
    store.queue.nack(store.queue.lease())
    assert [letter.payload for letter in store.queue.dead()] == [b"a" * 5000]


def test_dedup_is_remembered_after_a_crash(store: QueueStore) -> None:
    first = store.queue.enqueue(b"a", dedup_id="once")
    assert store.kill().enqueue(b"again", dedup_id="once") == first
    assert payloads(store.queue) == [b"a"]


def test_a_full_dedup_table_says_so() -> None:
    queue = QueueStore({"dedup_entries": 10}).queue
    for number in range(15):
        queue.enqueue(b"a", dedup_id=str(number))
    assert queue.stats().dedup_evicted == 5


def test_headers_over_64_kb_are_refused(queue: Queue) -> None:
    with pytest.raises(TooLarge):
        queue.enqueue(b"a", headers={"large": "x" * 65536})
    assert queue.stats().published == 0


def test_looking_changes_nothing_in_the_directory(tmp_path: Path) -> None:
    store = QueueStore(path=tmp_path)
    store.queue.enqueue_batch([b"a", b"b"])
    store.queue.nack(store.queue.lease())
    store.close()
    before = everything_in(tmp_path)
    with store.look() as reader:
        reader.stats(), reader.peek(5), list(reader.browse()), list(reader.dead())
    assert everything_in(tmp_path) == before


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with (
        open_queue(str(tmp_path), QUIET) as queue,
        pytest.raises(LedgerLocked, match="being written by process"),
    ):
        open_queue(str(tmp_path), QUIET)
    assert queue.path == str(tmp_path)


def calls_of(do: Callable[[], object]) -> int:
    """How many Python calls something costs: a clock that no other process disturbs."""
    count = 0

    def note(frame: FrameType, what: str, arg: object) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
    return count


def test_a_dequeue_costs_the_same_however_deep_the_queue(queue: Queue) -> None:
    queue.enqueue_batch(numbered(6000))

    def hundred() -> None:
        for _ in range(100):
            queue.dequeue()

    near = calls_of(hundred)
    payloads(queue, 5000)
    assert calls_of(hundred) < 2 * near


def test_a_stream_waits_for_nothing_while_there_are_messages(store: QueueStore) -> None:
    store.queue.enqueue_batch(numbered(1000))
    assert store.queue.stream(lambda job: None, idle_s=0) == 1000  # the clock has not moved


def test_a_thousand_expired_messages_in_a_row_are_no_error(store: QueueStore) -> None:
    for _ in range(1000):
        store.queue.enqueue(b"old", ttl=1)
    store.queue.enqueue(b"new")
    store.clock.advance(2)
    assert payloads(store.queue, 1) == [b"new"]


def test_opening_adds_no_segment(tmp_path: Path) -> None:
    store = QueueStore(path=tmp_path)
    store.queue.enqueue(b"a")
    for _ in range(5):
        store.reopen()
    assert len(message_files(tmp_path)) == 1


def test_a_corrupt_length_allocates_nothing(tmp_path: Path) -> None:
    store = QueueStore(path=tmp_path)
    store.queue.enqueue(b"first")
    store.queue.enqueue(b"second")
    store.close()
    (file,) = message_files(tmp_path)
    data = bytearray(file.read_bytes())
    entry = data.index(b"second") - 22  # an entry's head before its payload
    data[entry : entry + 4] = b"\xff\xff\xff\xff"
    file.write_bytes(data)
    tracemalloc.start()
    try:
        assert payloads(store.open()) == [b"first"]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


# -- RivetQ ----------------------------------------------------------------------------------------


def test_acked_messages_stay_acked_after_a_restart(store: QueueStore) -> None:
    store.queue.enqueue_batch(numbered(5))
    store.queue.ack(store.queue.lease(3))
    assert payloads(store.kill()) == numbered(5)[3:]


def test_attempts_and_dead_letters_survive_a_restart(store: QueueStore) -> None:
    store.queue.enqueue(b"dead", max_attempts=1)
    store.queue.enqueue(b"tried", max_attempts=3)
    store.queue.nack(store.queue.lease(2), "it failed")
    store.kill()
    assert [(x.payload, x.reason) for x in store.queue.dead()] == [(b"dead", "it failed")]
    store.clock.advance(1)
    assert store.queue.lease()[0].attempt == 2


def test_a_delayed_high_priority_message_hides_no_ready_low_one(queue: Queue) -> None:
    queue.enqueue(b"later", priority=9, delay=60)
    queue.enqueue(b"now", priority=0)
    assert payloads(queue) == [b"now"]


@pytest.mark.parametrize("log", ["messages", "events"])
def test_a_bad_record_drops_nothing_that_comes_after_it(tmp_path: Path, log: str) -> None:
    store = QueueStore(path=tmp_path)
    for number in range(6):
        store.queue.enqueue(b"job-%d" % number)
    store.queue.lease(1, holder="of the bad record")
    store.queue.ack([job for job in store.queue.lease(5) if job.payload != b"job-5"])
    store.close()
    (file,) = (tmp_path / log).glob("*.log")
    data = bytearray(file.read_bytes())
    data[data.index(b"job-0" if log == "messages" else b"of the bad")] ^= 1
    file.write_bytes(data)
    for snapshot in (tmp_path / "snapshots").iterdir():
        snapshot.unlink()
    live = [(m.payload, store.queue.state(m.id)) for m in store.open().browse()]
    assert live == [(b"job-0", "ready"), (b"job-5", "leased")][log == "messages" :]
    assert store.damage


def test_the_log_is_compacted() -> None:
    queue = QueueStore({"segment_bytes": 1024}).queue
    enqueue_each(queue, [b"x" * 100] * 200)
    full = queue.stats().storage.message_log_bytes
    payloads(queue, 200)
    queue.compact()
    assert queue.stats().storage.message_log_bytes < full / 10


def test_of_two_concurrent_acks_of_one_lease_one_succeeds(queue: Queue) -> None:
    for _ in range(20):
        queue.enqueue(b"a")
        (leased,) = queue.lease()
        start = Barrier(4)
        succeeded: list[str] = []

        def ack(receipt: str, start: Barrier, succeeded: list[str]) -> None:
            start.wait()
            try:
                queue.ack(receipt)
            except ReceiptInvalid:
                return
            succeeded.append(receipt)

        threads = [Thread(target=ack, args=(leased.receipt, start, succeeded)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(succeeded) == 1
    assert queue.stats().acked == 20


def test_an_ack_that_races_its_timeout_and_wins_is_not_redelivered(store: QueueStore) -> None:
    store.queue.enqueue(b"a")
    (leased,) = store.queue.lease(lease_s=5)
    store.clock.advance(5)
    assert store.queue.stats().timed_out == 1  # the timeout came first
    store.queue.ack(leased)
    store.clock.advance(60)
    assert payloads(store.queue) == []
    assert payloads(store.kill()) == []


def test_a_dedup_id_is_of_one_queue_and_ends_with_its_window() -> None:
    one, other = QueueStore(), QueueStore()
    first = one.queue.enqueue(b"a", dedup_id="x", dedup_window_s=10)
    assert other.queue.enqueue(b"a", dedup_id="x") != first
    one.clock.advance(9)
    assert one.queue.enqueue(b"a", dedup_id="x", dedup_window_s=10) == first
    one.clock.advance(1)
    assert one.queue.enqueue(b"a", dedup_id="x", dedup_window_s=10) != first


@pytest.mark.parametrize("attempts", [1, 2, 3])
@pytest.mark.parametrize("of", ["queue", "message"])
def test_max_attempts_is_the_number_of_deliveries(attempts: int, of: str) -> None:
    store = QueueStore({"max_attempts": attempts if of == "queue" else 5})
    store.queue.enqueue(b"a", max_attempts=attempts if of == "message" else None)
    deliveries = 0
    while leased := store.queue.lease():
        deliveries += 1
        store.queue.nack(leased)
        store.clock.advance(100)
    assert deliveries == attempts
    assert store.queue.stats().dead == 1


def test_a_binary_payload_disturbs_no_neighbour(queue: Queue) -> None:
    binary = bytes(range(256)) * 4
    queue.enqueue_batch([b"before", binary, b"after"])
    assert payloads(queue) == [b"before", binary, b"after"]


def test_every_metric_moves() -> None:
    store = QueueStore({"max_messages": 4, "when_full": "drop_oldest", "rate_per_s": 9})
    queue = store.queue
    queue.enqueue_batch([b"a"] * 4)
    queue.enqueue(b"drops the oldest")
    queue.nack(queue.lease())
    store.clock.advance(1)
    queue.ack(queue.lease())
    queue.enqueue(b"a", dedup_id="x")
    queue.enqueue(b"a", dedup_id="x")
    store.clock.advance(1)
    metrics = queue.metrics()
    for name in ("published", "deduplicated", "dropped", "leased", "acked", "nacked"):
        assert metrics[name], name
    with pytest.raises(Exception, match="messages/s"):
        queue.enqueue_batch([b"a"] * 20)
    assert queue.metrics()["rejected_rate"] == 20
    full = QueueStore({"max_messages": 1}).queue
    full.enqueue(b"a")
    with pytest.raises(QueueFull):
        full.enqueue(b"b")
    assert full.metrics()["rejected_full"] == 1
    for name in ("wait_s", "work_s"):
        assert queue.metrics()[name]["samples"] > 0  # type: ignore[index]


# -- EpochQueue ------------------------------------------------------------------------------------


def test_attempts_grow_until_a_message_is_dead(store: QueueStore) -> None:
    store.queue.enqueue(b"a", max_attempts=3)
    attempts = []
    for _ in range(3):
        (leased,) = store.queue.lease()
        attempts.append(leased.attempt)
        store.clock.advance(40)  # not settled: its lease ends
        store.queue.stats()
        store.clock.advance(1)
    assert attempts == [1, 2, 3]
    assert [letter.cause for letter in store.queue.dead()] == ["timeout"]


def test_a_message_in_flight_at_a_restart_keeps_its_limit(store: QueueStore) -> None:
    store.queue.enqueue(b"a", max_attempts=2)
    store.queue.nack(store.queue.lease(), delay=0)
    (second,) = store.queue.lease()
    store.kill().nack(second.receipt)
    assert store.queue.stats().dead == 1


def test_a_crash_after_compaction_leaves_every_message_in_its_place() -> None:
    store = QueueStore({"segment_bytes": 1024})
    enqueue_each(store.queue, [b"%03d" % number + b"." * 50 for number in range(100)])
    for leased in store.queue.lease(100):
        if leased.seq % 10:
            store.queue.ack(leased)
        else:
            store.queue.release(leased)
    assert store.queue.compact().segments_rewritten > 0
    found = payloads(store.kill())
    assert [payload[:3] for payload in found] == [b"%03d" % n for n in range(100) if n % 10 == 9]


def test_receipts_outlive_a_restart(store: QueueStore) -> None:
    store.queue.enqueue_batch([b"a", b"b", b"c"])
    a, b, c = (leased.receipt for leased in store.queue.lease(3))
    store.kill().ack(a)
    store.reopen().nack(b)
    store.queue.extend(c, 100)
    with pytest.raises(ReceiptInvalid):
        store.queue.ack(a)
    assert store.queue.stats().leased == 1


def test_scheduled_messages_count_towards_the_bound() -> None:
    queue = QueueStore({"max_messages": 2}).queue
    queue.enqueue(b"later", delay=60)
    queue.enqueue(b"much later", deliver_at=2_000_000_000)
    with pytest.raises(QueueFull):
        queue.enqueue(b"one too many")


def test_nothing_is_remembered_of_what_is_done(store: QueueStore) -> None:
    queue = store.queue
    for _ in range(30):
        ids = [queue.enqueue(b"a", delay=5, key=None) for _ in range(50)]
        for id_ in ids:
            queue.cancel(id_)
        queue.enqueue_batch([b"a"] * 50)
        queue.nack(queue.lease(50), delay=0)
        queue.ack(queue.lease(50))
        store.clock.advance(10)
    (group,) = queue.core.state.groups.values()
    assert not group.leases
    assert not group.deliveries
    assert not group.has_keys
    assert len(group.lease_ends.heap) < 1100
    assert not len(group.waiting.timetable)
    assert group.waiting.delays.allocated < 1100
