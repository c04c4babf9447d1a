"""Receipts fence: what was given to another settles nothing, before and after a restart."""

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.model import Receipt
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


def test_an_ack_counts_once(queue: Queue) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    queue.ack(leased)
    with pytest.raises(ReceiptInvalid, match="settled"):
        queue.ack(leased)
    assert queue.stats().acked == 1


def test_a_late_ack_of_a_message_given_to_nobody_since_succeeds_once(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease(lease_s=1)
    clock.advance(2)
    assert queue.stats().timed_out == 1
    queue.ack(leased)
    with pytest.raises(ReceiptInvalid):
        queue.ack(leased)
    clock.advance(100)
    assert queue.lease() == []


def test_a_late_ack_counts_after_a_restart_too(store: QueueStore) -> None:
    store.queue.enqueue(b"a")
    (leased,) = store.queue.lease(lease_s=1)
    store.clock.advance(2)
    assert store.queue.stats().timed_out == 1
    store.kill().ack(leased.receipt)
    assert store.kill().stats().acked == 1


def test_a_late_ack_saves_a_message_that_died_of_its_timeout(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"a", max_attempts=1)
    (leased,) = queue.lease(lease_s=1)
    clock.advance(2)
    assert queue.stats().dead == 1
    queue.ack(leased)
    assert (queue.stats().dead, queue.stats().acked) == (0, 1)


def test_a_late_nack_or_extension_is_refused(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease(lease_s=1)
    clock.advance(2)
    queue.stats()
    with pytest.raises(ReceiptInvalid, match="ran out"):
        queue.nack(leased)
    with pytest.raises(ReceiptInvalid):
        queue.extend(leased, 10)
    with pytest.raises(ReceiptInvalid):
        queue.release(leased)


@pytest.mark.parametrize("restart", ["none", "clean", "kill"])
def test_an_old_attempts_receipt_never_settles_a_newer_one(store: QueueStore, restart: str) -> None:
    store.queue.enqueue(b"a")
    (first,) = store.queue.lease(lease_s=1)
    store.clock.advance(1)
    store.queue.stats()
    store.clock.advance(1)
    (second,) = store.queue.lease()
    if restart != "none":
        store.reopen() if restart == "clean" else store.kill()
    for settle in (store.queue.ack, store.queue.nack, store.queue.release):
        with pytest.raises(ReceiptInvalid, match="another holder"):
            settle(first.receipt)
    store.queue.ack(second.receipt)


def test_a_receipt_of_a_nacked_delivery_settles_nothing(queue: Queue) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    queue.nack(leased, delay=0)
    with pytest.raises(ReceiptInvalid):
        queue.ack(leased)


def test_a_redriven_or_replayed_message_is_not_settled_by_an_old_receipt(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"a", max_attempts=1)
    (leased,) = queue.lease(lease_s=1)
    clock.advance(2)
    queue.redrive()
    with pytest.raises(ReceiptInvalid):
        queue.ack(leased)
    (again,) = queue.lease()
    queue.seek("beginning")
    with pytest.raises(ReceiptInvalid):
        queue.ack(again)


def test_receipts_of_other_queues_and_deleted_groups_are_refused(queue: Queue) -> None:
    other = QueueStore().queue
    for one in (queue, other):
        one.enqueue(b"a")
    (theirs,) = other.lease()
    queue.lease()
    with pytest.raises(ReceiptInvalid, match="another queue"):
        queue.ack(theirs)
    queue.groups.create("audit")
    (leased,) = queue.lease(group="audit")
    queue.groups.delete("audit")
    with pytest.raises(ReceiptInvalid):
        queue.ack(leased)


def test_forged_receipts_are_refused(queue: Queue) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    real = Receipt.unpack(leased.receipt)
    for forged in (
        real._replace(nonce=real.nonce ^ 1),
        real._replace(attempt=2),
        real._replace(seq=2),
        real._replace(group=3),
        real._replace(identity=real.identity ^ 1),
    ):
        with pytest.raises(ReceiptInvalid):
            queue.ack(forged.pack())
    for nonsense in (
        "",
        "x",
        leased.receipt[:-1],
        leased.receipt + "AA",
        leased.receipt + "==",
        "ä" * 32,
        "\0",
    ):
        with pytest.raises(ReceiptInvalid):
            queue.ack(nonsense)
    queue.ack(leased)


def test_the_same_receipt_twice_in_one_call_is_refused(queue: Queue) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    with pytest.raises(InvalidInput, match="twice"):
        queue.ack([leased, leased.receipt])
    with pytest.raises(InvalidInput, match="nothing to settle"):
        queue.ack([])
    assert queue.stats().leased == 1


def test_nonces_differ_from_lease_to_lease(queue: Queue) -> None:
    queue.enqueue(b"a")
    receipts = set()
    for _ in range(50):
        (leased,) = queue.lease()
        receipts.add(leased.receipt)
        queue.release(leased)
    assert len(receipts) == 50
