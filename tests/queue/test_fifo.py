"""Plain messages come out in the order in which they went in."""

import pytest

from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("segment_bytes", [512, 64 << 20])
def test_messages_come_in_the_order_of_publishing(segment_bytes: int) -> None:
    queue = QueueStore({"segment_bytes": segment_bytes}).queue
    for payload in numbered(100):
        queue.enqueue(payload)
    assert [message.payload for message in queue.dequeue_batch(60)] == numbered(100)[:60]
    assert [queue.dequeue() for _ in range(41)][-1] is None


def test_order_holds_over_restarts_and_kills(store: QueueStore) -> None:
    store.queue.enqueue_batch(numbered(10))
    found = [message.payload for message in store.queue.dequeue_batch(3)]
    store.reopen().enqueue(b"10")
    found += [message.payload for message in store.queue.dequeue_batch(3)]
    found += [message.payload for message in store.kill().dequeue_batch(100)]
    assert found == numbered(11)


def test_seqs_are_dense_and_never_used_again(store: QueueStore) -> None:
    first = [store.queue.get(id_).seq for id_ in store.queue.enqueue_batch(numbered(3))]
    store.queue.purge()
    queue = store.kill()
    assert queue.get(queue.enqueue(b"")).seq == 4
    assert first == [1, 2, 3]


def test_released_messages_keep_their_place(queue: Queue) -> None:
    queue.enqueue_batch(numbered(4))
    leased = queue.lease(3)
    queue.release(leased[1])
    assert [message.payload for message in queue.peek(9)] == [b"1", b"3"]
    queue.release([leased[2], leased[0]])
    assert [message.payload for message in queue.dequeue_batch(9)] == numbered(4)


def test_a_batch_is_asked_for_and_given_whole_whatever_is_missing_in_between(queue: Queue) -> None:
    ids = queue.enqueue_batch(numbered(10))
    for id_ in ids[::2]:
        queue.cancel(id_)
    assert [m.payload for m in queue.dequeue_batch(4)] == [b"1", b"3", b"5", b"7"]


def test_an_empty_queue_gives_nothing(queue: Queue) -> None:
    assert queue.dequeue() is None
    assert queue.lease(5) == []
    with queue.lease_one() as nothing:
        assert nothing is None


def test_a_message_comes_with_everything_it_was_published_with(queue: Queue) -> None:
    id_ = queue.enqueue(
        "text",
        priority=7,
        headers={"kind": "greeting", "empty": ""},
        key="k",
        max_attempts=2,
        content_type="text/plain",
        ttl=60,
    )
    message = queue.dequeue()
    assert message is not None
    assert message == queue.get(id_)
    assert (message.payload, message.priority, message.key) == (b"text", 7, "k")
    assert dict(message.headers) == {"kind": "greeting", "empty": ""}
    assert (message.max_attempts, message.content_type) == (2, "text/plain")
    assert message.expires_at == message.published_at + 60
    assert message.deliver_at is None


@pytest.mark.parametrize("payload", [b"", b"x", bytearray(b"ab"), memoryview(b"abc"), "grüß"])
def test_any_kind_of_bytes_is_a_payload(queue: Queue, payload: bytes | str) -> None:
    queue.enqueue(payload)
    expected = payload.encode() if isinstance(payload, str) else bytes(payload)
    (message,) = queue.dequeue_batch(1)
    assert message.payload == expected
