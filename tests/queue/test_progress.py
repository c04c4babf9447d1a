"""Progress: what the consumer of a leased message says of its work, on record."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NewerVersion, ReceiptInvalid
from penstock.model import LeasedMessage
from penstock.queue import Queue
from penstock.queue.events import Event, EventType, encode
from tests.harness.queue_store import QueueStore


def said(queue: Queue, id_: str) -> tuple[object, object] | None:
    details = queue.why(id_).details
    return (details["progress"], details["note"]) if "progress" in details else None


def test_progress_is_shown_and_renews_the_lease(queue: Queue, clock: ManualClock) -> None:
    id_ = queue.enqueue(b"a")
    (job,) = queue.lease(lease_s=30)
    clock.advance(20)
    queue.extend(job, 30, progress=0.4, note="resizing")
    clock.advance(20)
    why = queue.why(id_)
    assert "(attempt 1), 40% done (resizing); the lease ends in 10.0 s" in why.sentence
    assert why.details["progress_at"] == pytest.approx(clock.now_ns() / 1e9 - 20)
    assert said(queue, id_) == (0.4, "resizing")
    assert queue.history(id_)[-1].event == "progressed"


def test_an_extension_without_progress_keeps_the_last(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    (job,) = queue.lease()
    queue.extend(job, progress=0.25)
    queue.extend(job)
    assert said(queue, id_) == (0.25, "")


def test_another_attempt_begins_without_progress(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    (job,) = queue.lease()
    queue.extend(job, progress=0.25)
    queue.nack(job, delay=0)
    assert said(queue, id_) is None
    queue.lease()
    assert said(queue, id_) is None
    with pytest.raises(ReceiptInvalid):
        queue.extend(job, progress=0.5)
    assert said(queue, id_) is None


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan"), "0.5", True])
def test_bad_progress_is_refused_and_changes_nothing(queue: Queue, progress: Any) -> None:
    id_ = queue.enqueue(b"a")
    (job,) = queue.lease()
    with pytest.raises(InvalidInput, match="progress is"):
        queue.extend(job, progress=progress)
    with pytest.raises(InvalidInput, match="needs progress"):
        queue.extend(job, note="half")
    assert said(queue, id_) is None


def test_a_long_note_is_cut(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    queue.extend(queue.lease(), progress=1, note="x" * 10_000)
    assert said(queue, id_) == (1.0, "x" * 500)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "lease", "progress", "ack", "nack", "kill", "reopen", "save"]),
        st.integers(0, 3),
        st.integers(0, 100),
    ),
    max_size=40,
)


@given(STEPS)
def test_what_was_said_last_is_known_while_the_lease_lasts(
    steps: list[tuple[str, int, int]],
) -> None:
    """Over restarts, kills and snapshots; compared with a model."""
    store = QueueStore({"backoff_base_s": 0, "backoff_jitter": 0.0, "max_attempts": 1000})
    ids: list[str] = []
    leased: dict[str, LeasedMessage] = {}
    model: dict[str, tuple[float, str]] = {}
    for step, which, percent in steps:
        queue = store.queue
        held = [*leased.values()]
        if step == "publish":
            ids.append(queue.enqueue(b"x"))
        elif step == "lease":
            leased |= {job.id: job for job in queue.lease(which + 1, lease_s=1000)}
        elif step == "kill":
            store.kill()
        elif step == "reopen":
            store.reopen()
        elif step == "save":
            queue.compact()
        elif held:
            job = held[which % len(held)]
            if step == "progress":
                queue.extend(job, 1000, progress=percent / 100, note=f"step {which}")
                model[job.id] = (percent / 100, f"step {which}")
            else:
                queue.ack(job) if step == "ack" else queue.nack(job)
                del leased[job.id]
                model.pop(job.id, None)
        assert {id_: said(store.queue, id_) for id_ in leased} == {
            id_: model.get(id_) for id_ in leased
        }
    store.close()


def test_memory_is_bounded_by_the_leases(store: QueueStore) -> None:
    queue = store.queue
    queue.enqueue_batch([b"x"] * 1000)
    for job in queue.lease(1000):
        queue.extend(job, progress=0.5)
        queue.ack(job)
    table = queue.core.state.groups[0].progress
    assert table.items(queue.core.state.groups[0].leases) == []
    queue.enqueue(b"y")
    (last,) = queue.lease()
    queue.extend(last, progress=0.5)
    assert table.size <= 2 + 64


# -- a log of a newer version ----------------------------------------------------------------------


def test_an_event_of_a_newer_version_is_no_damage(store: QueueStore) -> None:
    queue = store.queue
    id_ = queue.enqueue(b"a")
    body = encode(Event(EventType.EXTENDED, runs=((1, 1),)))
    queue.core.ledger.events.append_event(55, body)
    with pytest.raises(NewerVersion, match="unknown type 55.*newer version"):
        store.kill()
    assert store.damage == []
    with pytest.raises(NewerVersion):
        store.look().why(id_)
