"""Unique messages: one of a key while it waits, or until it is done, over crashes."""

from threading import Barrier, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage, NewMessage, Published
from penstock.queue import Queue
from penstock.queue.unique import HEADER, header_of
from tests.harness.queue_store import QueueStore


def message(key: str, mode: str = "until_done", **options: float) -> NewMessage:
    return NewMessage(payload=b"x", headers={HEADER: header_of(mode, key)}, **options)  # type: ignore[arg-type]


def publish(queue: Queue, key: str, mode: str = "until_done", **options: float) -> Published:
    (published,) = queue.publish([message(key, mode, **options)])
    return published


def test_until_done_it_stands_for_all_of_its_key(queue: Queue) -> None:
    first = publish(queue, "a")
    assert publish(queue, "a") == Published(first.id, duplicate=True)
    assert not publish(queue, "b").duplicate
    (job,) = queue.lease()
    assert publish(queue, "a") == Published(first.id, duplicate=True)
    queue.nack(job, delay=5)
    assert publish(queue, "a").duplicate
    queue.ack(queue.lease(1))  # of b
    assert not publish(queue, "b").duplicate
    assert queue.stats().deduplicated == 3


def test_while_it_waits_it_stands_for_all_of_its_key(queue: Queue, clock: ManualClock) -> None:
    first = publish(queue, "a", "waiting")
    assert publish(queue, "a", "waiting") == Published(first.id, duplicate=True)
    queue.lease()
    second = publish(queue, "a", "waiting")
    assert not second.duplicate
    assert publish(queue, "a", "waiting") == Published(second.id, duplicate=True)


def test_what_failed_for_good_or_was_removed_stands_for_nothing(
    queue: Queue, clock: ManualClock
) -> None:
    for end in ("dead", "cancel", "purge", "expire"):
        first = publish(queue, "a", ttl=5) if end == "expire" else publish(queue, "a")
        assert not first.duplicate, end
        if end == "dead":
            queue.nack(queue.lease(), dead=True)
        elif end == "cancel":
            queue.cancel(first.id)
        elif end == "purge":
            queue.purge()
        else:
            clock.advance(6)
        assert not publish(queue, "a").duplicate, end
        queue.purge()
    assert not publish(queue, "a").duplicate


@pytest.mark.parametrize("mode", ["waiting", "until_done"])
def test_an_expired_message_stands_for_nothing_after_a_crash(mode: str) -> None:
    store = QueueStore()
    publish(store.queue, "a", mode, ttl=5)
    store.kill()
    assert publish(store.queue, "a", mode).duplicate
    store.clock.advance(6)
    store.reopen()
    assert not publish(store.queue, "a", mode).duplicate


def test_in_one_batch(queue: Queue) -> None:
    one, two, other = queue.publish([message("a"), message("a"), message("b")])
    assert (one.duplicate, two.duplicate, other.duplicate) == (False, True, False)
    assert one.id == two.id
    assert queue.stats().published == 2


def test_every_way_to_publish_heeds_the_header(queue: Queue) -> None:
    headers = {HEADER: "until_done:a"}
    ids = {queue.enqueue(b"x", headers=headers) for _ in range(3)}
    ids |= set(queue.enqueue_batch([message("a"), NewMessage(payload=b"y", headers=headers)]))
    assert len(ids) == 1
    queue.ack(queue.lease(), emit=[message("b")])
    assert publish(queue, "b").duplicate


@pytest.mark.parametrize("value", ["", "a", "until_done:", "for_ever:a"])
def test_a_bad_header_is_refused(queue: Queue, value: str) -> None:
    with pytest.raises(InvalidInput, match=HEADER):
        queue.enqueue(b"x", headers={HEADER: value})
    assert queue.stats().published == 0


def test_threads_publish_one(queue: Queue) -> None:
    found: list[Published] = []
    begin = Barrier(8)

    def work() -> None:
        begin.wait(30)
        found.extend(publish(queue, str(number)) for number in range(20))

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({one.id for one in found}) == 20 == sum(not one.duplicate for one in found)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "lease", "ack", "nack", "dead", "kill", "reopen", "save"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["waiting", "until_done"]),
    ),
    max_size=60,
)


@given(STEPS)
def test_a_model_over_kills_and_snapshots(steps: list[tuple[str, str, str]]) -> None:
    store = QueueStore({"backoff_base_s": 0, "backoff_jitter": 0.0, "max_attempts": 1000})
    newest: dict[tuple[str, str], str] = {}
    state: dict[str, str] = {}
    leased: list[LeasedMessage] = []
    for step, key, mode in steps:
        queue = store.queue
        if step == "publish":
            first = newest.get((mode, key), "")
            stands = state.get(first) in ("waiting", *(["leased"] * (mode == "until_done")))
            published = publish(queue, key, mode)
            assert published.duplicate == stands
            if stands:
                assert published.id == first
            else:
                newest[mode, key] = published.id
                state[published.id] = "waiting"
        elif step == "lease":
            leased += (found := queue.lease(1, lease_s=1000))
            state |= {one.id: "leased" for one in found}
        elif step in ("ack", "nack", "dead") and leased:
            job = leased.pop()
            state[job.id] = "waiting" if step == "nack" else "ended"
            if step == "ack":
                queue.ack(job)
            else:
                queue.nack(job, dead=step == "dead")
        elif step == "kill":
            store.kill()
        elif step == "reopen":
            store.reopen()
        elif step == "save":
            queue.compact()
    store.close()


def test_memory_is_bounded_by_what_is_not_done(store: QueueStore) -> None:
    queue = store.queue
    for number in range(5000):
        publish(queue, str(number))
        queue.ack(queue.lease())
    assert len(queue.core.state.unique) < 1100
