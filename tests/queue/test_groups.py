"""Consumer groups: independent readers of one queue."""

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput, NoSuchGroup, QueueError
from penstock.queue import Queue
from tests.harness.queue_store import QueueStore


def taken(queue: Queue, group: str, count: int = 99) -> list[bytes]:
    return [message.payload for message in queue.dequeue_batch(count, group=group)]


def test_every_group_gets_every_message(queue: Queue) -> None:
    queue.groups.create("audit")
    queue.enqueue_batch([b"a", b"b"])
    assert taken(queue, "main") == taken(queue, "audit") == [b"a", b"b"]


def test_a_group_starts_at_the_beginning_the_end_a_seq_an_id_or_a_time(
    queue: Queue, clock: ManualClock
) -> None:
    ids = []
    for name in (b"0", b"1", b"2", b"3"):
        ids.append(queue.enqueue(name))
        clock.advance(10)
    queue.groups.create("default")
    queue.groups.create("beginning", to="beginning")
    queue.groups.create("end", to="end")
    queue.groups.create("seq", seq=2)
    queue.groups.create("id", id=ids[2])
    queue.groups.create("time", time=1_700_000_015.0)
    queue.enqueue(b"4")
    found = {name: b"".join(taken(queue, name)) for name in queue.groups}
    assert found == {
        "main": b"01234",
        "default": b"01234",
        "beginning": b"01234",
        "end": b"4",
        "seq": b"1234",
        "id": b"234",
        "time": b"234",
    }


def test_groups_settle_on_their_own(queue: Queue, clock: ManualClock) -> None:
    queue.groups.create("audit")
    id_ = queue.enqueue(b"a", max_attempts=1)
    (mine,) = queue.lease(lease_s=5)
    (theirs,) = queue.lease(group="audit", lease_s=50)
    clock.advance(5)
    queue.ack(theirs)
    assert [letter.id for letter in queue.dead()] == [id_]
    assert list(queue.dead(group="audit")) == []
    assert (queue.state(id_), queue.state(id_, group="audit")) == ("dead", "done")
    assert mine.group == "main"
    assert theirs.group == "audit"
    stats = queue.stats()
    assert (stats.timed_out + stats.dead_lettered, stats.groups["audit"].acked) == (1, 1)


def test_each_group_has_its_own_dead_letters(queue: Queue) -> None:
    queue.groups.create("audit")
    queue.enqueue(b"a", max_attempts=1)
    queue.nack(queue.lease(group="audit"), "audit failed")
    assert queue.redrive() == 0
    assert queue.discard(group="main") == 0
    assert queue.redrive(group="audit") == 1
    assert queue.lease(group="audit")[0].attempt == 1


def test_groups_and_their_places_survive_restarts(store: QueueStore) -> None:
    store.queue.enqueue_batch([b"a", b"b", b"c"])
    store.queue.groups.create("audit", seq=2)
    taken(store.queue, "audit", 1)
    for restart in (store.kill, store.reopen, store.kill):
        queue = restart()
        assert list(queue.groups) == ["audit", "main"]  # by name
        assert queue.stats().groups["audit"].ready == 1
    assert taken(store.queue, "audit") == [b"c"]
    assert taken(store.queue, "main") == [b"a", b"b", b"c"]


def test_making_a_group_again_changes_nothing(queue: Queue) -> None:
    queue.enqueue(b"a")
    queue.groups.create("audit")
    taken(queue, "audit")
    queue.groups.create("audit", to="beginning")
    assert taken(queue, "audit") == []
    assert len(queue.groups) == 2
    assert "audit" in queue.groups
    assert "other" not in queue.groups


def test_a_deleted_group_is_forgotten_and_begins_anew_if_made_again(store: QueueStore) -> None:
    store.queue.enqueue(b"a")
    store.queue.groups.create("audit")
    taken(store.queue, "audit")
    store.queue.groups.delete("audit")
    with pytest.raises(NoSuchGroup):
        store.queue.lease(group="audit")
    store.queue.groups.create("audit")
    store.kill()
    assert taken(store.queue, "audit") == [b"a"]


def test_group_numbers_last_for_any_number_of_groups_made_and_deleted(queue: Queue) -> None:
    queue.core.state.next_group = 0xFFFE
    queue.enqueue(b"a")
    for name in ("one", "two", "three"):
        queue.groups.create(name)
    assert taken(queue, "three") == taken(queue, "one") == [b"a"]
    queue.groups.delete("two")
    queue.groups.create("four")
    assert taken(queue, "four") == [b"a"]


def test_main_stays(queue: Queue) -> None:
    with pytest.raises(InvalidInput):
        queue.groups.delete("main")
    queue.groups.create("main", to="end")
    assert list(queue.groups) == ["main"]


@pytest.mark.parametrize(
    "name", ["", "-a", "a.", "a" * 65, "a/b", "..", "a b", "ä", "a\n", "\0", 5, None]
)
def test_a_name_that_is_none_is_refused(queue: Queue, name: str) -> None:
    with pytest.raises(InvalidInput):
        queue.groups.create(name)
    assert len(queue.groups) == 1


@pytest.mark.parametrize(
    "place",
    [
        {"to": "middle"},
        {"seq": 0},
        {"seq": 99},
        {"seq": 1.5},
        {"time": -1},
        {"time": "now"},
        {"time": float("nan")},
        {"id": "x"},
        {"to": "end", "seq": 1},
    ],
)
def test_a_start_that_is_none_is_refused(queue: Queue, place: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        queue.groups.create("audit", **place)  # type: ignore[arg-type]
    assert len(queue.groups) == 1


def test_every_call_names_an_unknown_group(queue: Queue) -> None:
    id_ = queue.enqueue(b"a")
    for call in (
        lambda: queue.lease(group="no"),
        lambda: queue.dequeue(group="no"),
        lambda: queue.peek(group="no"),
        lambda: list(queue.browse(group="no")),
        lambda: list(queue.dead(group="no")),
        lambda: queue.seek("end", group="no"),
        lambda: queue.purge(group="no"),
        lambda: queue.redrive(group="no"),
        lambda: queue.why(id_, group="no"),
        lambda: queue.history(id_, group="no"),
        lambda: queue.state(id_, group="no"),
        lambda: queue.groups.delete("no"),
    ):
        with pytest.raises(NoSuchGroup, match="no group 'no'"):
            call()


def test_there_is_a_most_of_groups(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.queue.decisions.MAX_GROUPS", 3)
    queue.groups.create("a")
    queue.groups.create("b")
    with pytest.raises(QueueError, match="at most 3"):
        queue.groups.create("c")
