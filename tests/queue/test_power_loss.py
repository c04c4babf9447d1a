"""Power is lost before anything was synced: some of the message log is there, some of the events.

Whatever is left of them, what is published after it stays, over process death and restart.
"""

from collections.abc import Callable

import pytest

from penstock.queue import Queue
from tests.harness.queue_store import QueueStore

CUTS = 60


def dequeue(queue: Queue) -> None:
    queue.dequeue_batch(5)


def settle_with_follow_up(queue: Queue) -> None:
    queue.ack(queue.lease(2), emit=[b"follow-up", b"another"])


def die(queue: Queue) -> None:
    for leased in queue.lease(5):
        queue.nack(leased, delay=0)


def cancel(queue: Queue) -> None:
    for message in list(queue.browse()):
        queue.cancel(message.id)


def purge(queue: Queue) -> None:
    queue.purge()


def seek_to_the_end(queue: Queue) -> None:
    queue.seek("end")


def make_a_group(queue: Queue) -> None:
    queue.groups.create("audit", to="end")


WHAT = [dequeue, settle_with_follow_up, die, cancel, purge, seek_to_the_end, make_a_group]


@pytest.mark.parametrize("what", WHAT, ids=lambda what: what.__name__)
def test_events_about_lost_messages_do_nothing_to_those_that_come_after(
    what: Callable[[Queue], None],
) -> None:
    lost = 0
    for cut in range(CUTS):
        store = QueueStore({"max_attempts": 1, "segment_bytes": 4096}, recorded=True)
        store.queue.enqueue(b"kept")
        store.queue.sync()
        for number in range(5):
            store.queue.enqueue(b"%d" % number)
        ids = {message.id for message in store.queue.browse()}
        what(store.queue)
        seqs = store.queue.stats().next_seq
        queue = store.cut_power(cut)
        lost += queue.stats().next_seq < seqs
        store.clock.advance(1)
        queue.pause()  # what is recorded from here on has the numbers of lost events, perhaps
        queue.resume()
        new = [queue.enqueue(b"new") for _ in range(8)]
        assert not ids & set(new)
        for restart in (None, store.kill, store.kill, store.reopen):
            again = queue if restart is None else restart()
            found = {
                group: {id_: again.state(id_, group=group) for id_ in new} for group in again.groups
            }
            for group, states in found.items():
                assert set(states.values()) == {"ready"}, (cut, group, states)
    assert lost > CUTS // 10  # else this shows nothing


def test_an_ack_and_its_follow_ups_are_both_there_or_neither() -> None:
    outcomes = set()
    for cut in range(2 * CUTS):
        store = QueueStore({"segment_bytes": 4096, "lease_s": 600}, recorded=True)
        work = store.queue.enqueue(b"work")
        (leased,) = store.queue.lease()
        store.queue.sync()
        store.queue.enqueue(b"before")
        store.queue.ack(leased, emit=[b"one", b"two"])
        queue = store.cut_power(cut)
        is_done = queue.state(work) == "done"
        for restart in (None, store.kill, store.reopen, store.kill):
            again = queue if restart is None else restart()
            found = {message.payload for message in again.browse()} - {b"work", b"before"}
            assert found == ({b"one", b"two"} if is_done else set()), cut
            assert again.state(work) == ("done" if is_done else "leased"), cut
        outcomes.add(is_done)
    assert outcomes == {True, False}


def test_an_ack_with_follow_ups_keeps_its_place_when_events_before_it_are_lost() -> None:
    """It travels with messages, which may be there when the events of its time are not."""
    done = 0
    for cut in range(CUTS):
        store = QueueStore({"segment_bytes": 4096}, recorded=True)
        work = store.queue.enqueue(b"work")
        for _ in range(10):
            store.queue.pause()
            store.queue.resume()
        store.queue.ack(store.queue.lease(), emit=[b"follow-up"])
        queue = store.cut_power(cut)
        if work not in [message.id for message in queue.browse("done")]:
            continue
        done += 1
        queue.resume()
        queue.seek("beginning")
        assert queue.state(work) == "ready"
        assert store.kill().state(work) == "ready", cut
    assert done
