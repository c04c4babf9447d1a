"""Gates: messages behind one run all together when it is opened, or are cancelled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NoSuchMessage
from penstock.model import NewMessage
from penstock.operations import GetEndings, ListAwaited, OpenGate, Resolve
from penstock.queue import Queue
from penstock.queue.events import Outcome
from penstock.queue.gate import ABANDONED, CLOSED, HEADER
from penstock.queue.queue import open_queue

KEEP_S = 3600.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> Iterator[Queue]:
    with open_queue("memory:", {"max_attempts": 1}, clock=clock) as opened:
        yield opened


def gate(queue: Queue) -> str:
    return queue.enqueue("gate", delay=KEEP_S, ttl=0, headers={HEADER: CLOSED})


def behind(queue: Queue, closed: str, *after: str, **options: object) -> str:
    message = NewMessage(
        payload=b"x",
        after=[closed, *after],
        headers={HEADER: closed},
        **options,  # type: ignore[arg-type]
    )
    (published,) = queue.publish([message])
    return published.id


def test_messages_behind_a_gate_run_when_it_is_opened(queue: Queue) -> None:
    closed = gate(queue)
    first = behind(queue, closed)
    second = behind(queue, closed, first)
    assert queue.lease() == []
    why = queue.why(first)
    assert (why.code, why.details["missing"]) == ("blocked", [closed])
    assert "not published as a whole" in why.sentence
    assert queue.run(OpenGate(closed)) and queue.run(OpenGate(closed))
    assert (queue.state(first), queue.state(second)) == ("ready", "blocked")
    assert [queue.dequeue().id for _ in range(2)] == [first, second]  # type: ignore[union-attr]
    assert queue.dequeue() is None


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
def test_what_is_behind_a_gate_that_is_gone_is_cancelled_and_no_dead_letter(
    queue: Queue, clock: ManualClock, ending: str
) -> None:
    closed = gate(queue)
    first = behind(queue, closed)
    ids = [first, behind(queue, closed, first), behind(queue, closed, first, after_failed="run")]
    if ending == "cancelled":
        assert queue.cancel(closed)
    else:
        clock.advance(KEEP_S)
    assert queue.lease() == []
    stats = queue.stats()
    assert (stats.dead, stats.blocked, stats.cancelled >= 3) == (0, 0, True)
    assert [queue.why(one).details["last_event"] for one in ids] == ["cancelled"] * 3
    assert queue.history(ids[2])[-1].reason == ABANDONED
    assert not queue.run(OpenGate(closed))


def test_a_gate_whose_time_is_over_is_not_opened(queue: Queue, clock: ManualClock) -> None:
    closed = gate(queue)
    first = behind(queue, closed)
    clock.advance(KEEP_S)
    assert not queue.run(OpenGate(closed))
    assert queue.lease() == [] and queue.stats().ready == 0
    assert queue.why(first).details["last_event"] == "cancelled"


def test_a_message_that_comes_behind_a_gate_that_is_gone_is_cancelled(queue: Queue) -> None:
    closed = gate(queue)
    queue.cancel(closed)
    late = behind(queue, closed, after_failed="run")
    assert queue.lease() == []
    assert queue.why(late).details["last_event"] == "cancelled"


def test_what_fails_while_the_gate_is_closed_counts_when_it_is_opened(queue: Queue) -> None:
    for opens in (True, False):
        closed = gate(queue)
        first = behind(queue, closed)
        second = behind(queue, closed, first)
        anyway = behind(queue, closed, first, after_failed="run")
        queue.cancel(first)
        assert [queue.state(one) for one in (second, anyway)] == ["blocked", "blocked"]
        if opens:
            assert queue.run(OpenGate(closed))
            assert [queue.state(one) for one in (second, anyway)] == ["dead", "ready"]
            assert queue.dequeue().id == anyway  # type: ignore[union-attr]
        else:
            queue.cancel(closed)
            assert [queue.why(one).details["last_event"] for one in (second, anyway)] == [
                "cancelled",
                "cancelled",
            ]
    assert queue.stats().dead == 1


@pytest.mark.parametrize("saves", [True, False])
def test_gates_survive_a_restart(tmp_path: Path, clock: ManualClock, saves: bool) -> None:
    """With a snapshot, and by a replay of the logs alone."""
    path = str(tmp_path / "queue")
    with open_queue("memory:", {}, clock=clock) as other:
        elsewhere = gate(other)

    def reopen() -> Queue:
        if not saves:
            for found in (tmp_path / "queue" / "snapshots").glob("*"):
                found.unlink()
        return open_queue(path, {}, clock=clock)

    with reopen() as queue:
        opened, closed, lost = gate(queue), gate(queue), gate(queue)
        ids = [behind(queue, one) for one in (opened, closed, lost)]
        far = behind(queue, elsewhere, after_failed="run")
    with reopen() as queue:
        assert [queue.state(one) for one in (*ids, far)] == ["blocked"] * 4
        assert queue.run(OpenGate(opened)) and queue.cancel(lost)
        assert queue.run(Resolve(elsewhere, Outcome.GONE, "cancelled"))
    with reopen() as queue:
        assert [queue.state(one) for one in (*ids, far)] == ["ready", "blocked", "done", "done"]
        assert queue.why(far).details["last_event"] == "cancelled"


def test_a_gate_of_another_queue_is_followed_by_its_ending(
    queue: Queue, clock: ManualClock
) -> None:
    with open_queue("memory:", {}, clock=clock) as other:
        closed = gate(other)
        first = behind(queue, closed)
        (awaited,) = queue.run(ListAwaited())
        assert awaited.id == closed
        assert other.run(OpenGate(closed))
        (ending,) = other.run(GetEndings([closed]))
        assert ending.outcome == Outcome.DONE
        assert queue.run(Resolve(closed, ending.outcome)) and queue.state(first) == "ready"


def test_what_is_no_gate_is_refused_and_nothing_is_published(queue: Queue) -> None:
    plain = queue.enqueue("plain", delay=60)
    with pytest.raises(InvalidInput, match="is no gate"):
        queue.run(OpenGate(plain))
    with pytest.raises(NoSuchMessage):
        queue.run(OpenGate(plain[:-1] + "7"))
    for options in ({}, {"after": [plain]}):
        with pytest.raises(InvalidInput, match="after does not name that message"):
            headers = {HEADER: gate_id(plain)}
            queue.publish([NewMessage(payload=b"x", headers=headers, **options)])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        queue.enqueue("x", headers={HEADER: "ajar"})
    assert queue.stats().published == 1


def gate_id(like: str) -> str:
    return like[:-1] + "7"


def test_a_lost_message_counts_as_gone(queue: Queue) -> None:
    """The power failed before it was on disk, and the queue that names it kept the name."""
    first = queue.enqueue("first")
    (known, lost) = queue.run(GetEndings([first, gate_id(first)]))
    assert (known.outcome, lost.outcome, lost.how) == (Outcome.WAITING, Outcome.GONE, "lost")
    with pytest.raises(NoSuchMessage):
        queue.run(GetEndings([gate_id(first)], check=True))
