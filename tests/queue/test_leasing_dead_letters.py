"""Dead letters can be leased like messages; only an ack takes them away."""

from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, ReceiptInvalid
from penstock.queue.queue import Queue, open_queue
from penstock.queue.snapshot import dump_state


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def open_here(path: Path, clock: ManualClock) -> Queue:
    return open_queue(str(path / "queue"), {"max_attempts": 1, "sync": "never"}, clock=clock)


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Queue:
    """Two dead letters, the older of which has a key."""
    queue = open_here(tmp_path, clock)
    queue.enqueue(b"keyed", key="customer")
    queue.enqueue(b"plain")
    for job in queue.lease(2):
        clock.advance(1)
        queue.nack(job, f"cannot do {job.payload.decode()}")
    return queue


def test_they_come_oldest_death_first_with_the_reason_in_their_headers(queue: Queue) -> None:
    jobs = queue.lease_dead(10)
    assert [job.payload for job in jobs] == [b"keyed", b"plain"]
    assert [job.attempt for job in jobs] == [2, 2]
    assert jobs[0].headers["dlq.failure_reason"] == "cannot do keyed"
    assert (queue.stats().dead, queue.stats().leased) == (0, 2)


def test_a_leased_one_is_not_handed_out_twice_nor_as_an_ordinary_message(queue: Queue) -> None:
    queue.lease_dead(1)
    assert [job.payload for job in queue.lease_dead(10)] == [b"plain"]
    assert queue.lease_dead() == []
    assert queue.lease(10) == []


def test_an_ack_settles_it_for_good(queue: Queue) -> None:
    jobs = queue.lease_dead(2)
    queue.ack(jobs)
    assert list(queue.dead()) == []
    assert list(queue.browse()) == []
    with pytest.raises(ReceiptInvalid):
        queue.ack(jobs[0])


def test_a_nack_leaves_it_dead_with_the_new_reason(queue: Queue) -> None:
    queue.nack(queue.lease_dead(1), "still cannot")
    assert [letter.reason for letter in queue.dead()] == ["cannot do plain", "still cannot"]


def test_a_release_leaves_it_dead_and_spends_no_attempt(queue: Queue) -> None:
    queue.release(queue.lease_dead(1))
    letters = {letter.payload: letter for letter in queue.dead()}
    assert letters[b"keyed"].attempts == 1
    assert letters[b"keyed"].reason == "cannot do keyed"


def test_the_end_of_the_lease_leaves_it_dead(queue: Queue, clock: ManualClock) -> None:
    (job,) = queue.lease_dead(lease_s=5)
    clock.advance(6)
    assert {letter.payload for letter in queue.dead()} == {b"keyed", b"plain"}
    assert queue.stats().scheduled == 0
    queue.ack(job)  # late, but nobody else had it
    assert [letter.payload for letter in queue.dead()] == [b"plain"]


def test_the_lease_and_its_receipt_survive_a_restart(
    tmp_path: Path, queue: Queue, clock: ManualClock
) -> None:
    (job,) = queue.lease_dead()
    receipt = job.receipt
    before = dump_state(queue.core.state)
    queue.close()
    with open_here(tmp_path, clock) as again:
        assert dump_state(again.core.state) == before
        assert again.enqueue(b"next of the key", key="customer")
        assert [job.payload for job in again.lease(5)] == [b"next of the key"]
        again.ack(receipt)
        assert [letter.payload for letter in again.dead()] == [b"plain"]


def test_a_seek_makes_a_leased_dead_letter_before_the_place_dead_again(queue: Queue) -> None:
    (job,) = queue.lease_dead()
    queue.seek("end")
    assert {letter.payload for letter in queue.dead()} == {b"keyed", b"plain"}
    with pytest.raises(ReceiptInvalid):
        queue.ack(job)


def test_a_bad_count_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidInput):
        queue.lease_dead(0)


def test_a_message_counts_as_dead_once_however_often_it_is_leased_after(
    queue: Queue, clock: ManualClock
) -> None:
    queue.nack(queue.lease_dead(2), "still cannot")
    queue.lease_dead(2, lease_s=5)
    clock.advance(6)
    stats = queue.stats()
    assert (stats.dead, stats.dead_lettered) == (2, 2)
    queue.redrive()
    queue.nack(queue.lease(2), "dead again")
    assert queue.stats().dead_lettered == 4
