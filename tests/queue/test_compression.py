"""Payload compression: transparent, only where it pays, and never a bomb."""

import tracemalloc
from random import Random

import pytest

from penstock.codec import Draft
from penstock.codec.layout import GZIP, ZSTD
from penstock.errors import InvalidInput, PayloadUnreadable
from penstock.ledger import read_entry
from penstock.queue import Queue
from penstock.queue.compression import compress, zstd_module
from tests.harness.queue_store import QueueStore

TEXT = b"penstock " * 1000

methods = pytest.mark.parametrize(
    "method",
    [
        "gzip",
        pytest.param(
            "zstd",
            marks=pytest.mark.skipif(
                zstd_module() is None, reason="needs Python 3.14 or backports.zstd"
            ),
        ),
    ],
)


def stored(queue: Queue, id_: str) -> tuple[int, int]:
    """(codec, size) of what is in the log."""
    entry = read_entry(queue.core.ledger.messages, queue.get(id_).seq)
    return entry.compression, len(entry.payload)


@methods
def test_a_compressed_payload_arrives_as_it_was(store: QueueStore, method: str) -> None:
    id_ = store.queue.enqueue(TEXT, compression=method)
    codec, size = stored(store.queue, id_)
    assert codec == {"gzip": GZIP, "zstd": ZSTD}[method]
    assert size < len(TEXT) / 10
    assert store.queue.get(id_).payload == TEXT
    assert store.queue.peek()[0].payload == TEXT
    assert store.kill().lease()[0].payload == TEXT


@methods
def test_a_queue_may_compress_by_default(method: str) -> None:
    queue = QueueStore({"compression": method}).queue
    assert stored(queue, queue.enqueue(TEXT))[0] != 0
    assert stored(queue, queue.enqueue_batch([TEXT, TEXT])[1])[0] != 0
    assert stored(queue, queue.enqueue(TEXT, compression="none"))[0] == 0
    assert [m.payload for m in queue.dequeue_batch(9)] == [TEXT] * 4


def test_only_what_is_large_and_shrinks_is_compressed(queue: Queue) -> None:
    assert stored(queue, queue.enqueue(TEXT[:1000], compression="gzip"))[0] == 0
    incompressible = Random(1).randbytes(5000)
    assert stored(queue, queue.enqueue(incompressible, compression="gzip")) == (0, 5000)


def test_an_unknown_method_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="compression"):
        queue.enqueue(TEXT, compression="lzma")
    assert queue.stats().published == 0


def test_zstd_says_what_to_install_where_it_is_missing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queue.compression.zstd_module", lambda: None)
    with pytest.raises(InvalidInput, match=r"backports\.zstd"):
        queue.enqueue(TEXT, compression="zstd")


def test_a_bomb_becomes_a_dead_letter_and_its_neighbours_are_delivered() -> None:
    store = QueueStore({"max_unpacked_bytes": 10_000})
    store.queue.enqueue(b"before")
    bomb = store.queue.enqueue(bytes(1_000_000), compression="gzip")
    store.queue.enqueue(b"after")
    assert [one.payload for one in store.queue.lease(9)] == [b"before", b"after"]
    (letter,) = store.queue.dead()
    assert (letter.id, letter.cause) == (bomb, "unreadable")
    assert "max_unpacked_bytes" in letter.reason
    with pytest.raises(PayloadUnreadable):
        store.queue.get(bomb)
    assert list(store.kill().dead()) == [letter]


def test_a_bomb_is_read_after_the_limit_is_raised_and_it_is_redriven() -> None:
    store = QueueStore({"max_unpacked_bytes": 10_000})
    store.queue.enqueue(bytes(1_000_000), compression="gzip")
    assert store.queue.dequeue() is None
    queue = store.reopen(max_unpacked_bytes=2_000_000)
    assert queue.redrive() == 1
    assert queue.lease()[0].payload == bytes(1_000_000)


@pytest.mark.parametrize("how", ["nack", "release", "timeout", "ack"])
def test_an_unreadable_dead_letter_can_be_leased_and_stays_dead_unless_acked(how: str) -> None:
    store = QueueStore({"max_unpacked_bytes": 10})
    store.queue.enqueue(TEXT, compression="gzip")
    assert store.queue.dequeue() is None
    (leased,) = store.queue.lease_dead(lease_s=5)
    if how == "timeout":
        store.clock.advance(5)
    else:
        getattr(store.queue, how)(leased)
    store.clock.advance(100)
    assert store.queue.lease() == []
    assert store.queue.stats().dead == (0 if how == "ack" else 1)


@pytest.mark.parametrize("codec", [GZIP, ZSTD, 9])
def test_a_payload_that_is_no_such_thing_is_dead_and_not_served(
    store: QueueStore, codec: int
) -> None:
    store.queue.core.ledger.messages.append_draft(Draft(b"not compressed", compression=codec))
    store.kill()
    assert store.queue.lease() == []
    assert [letter.cause for letter in store.queue.dead()] == ["unreadable"]


def test_a_cut_off_payload_is_unreadable(store: QueueStore) -> None:
    packed, number = compress(TEXT, "gzip", level=6, min_bytes=0)
    store.queue.core.ledger.messages.append_draft(Draft(packed[:-9], compression=number))
    assert store.kill().dequeue() is None
    assert "cut off" in next(store.queue.dead()).reason


def test_a_bomb_costs_no_more_memory_than_allowed() -> None:
    queue = QueueStore({"max_unpacked_bytes": 1 << 20, "max_payload_bytes": 256 << 20}).queue
    queue.enqueue(bytes(40 << 20), compression="gzip")
    tracemalloc.start()
    try:
        assert queue.dequeue() is None
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
