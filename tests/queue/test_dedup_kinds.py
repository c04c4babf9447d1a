"""Dedup ids of one purpose never take the place of those of another, whatever crashes."""

import logging
from collections.abc import Callable, Iterable

import pytest

from penstock.client.publishing import DedupIds
from penstock.errors import QueueFull
from penstock.queue import NewMessage, Queue
from penstock.queue.dedup import DedupTable, Kind, dedup_hash, kind_of
from tests.harness.queue_store import QueueStore

DAY_S = 86400.0
SMALL = {"dedup_entries": 3, "result_entries": 3}
UNIQUE = "penstock.unique:task:key:{}"
RESULT = "penstock.result:{}"
STEP = "penstock.flow:f/{}"
PLAN = "penstock.flow:f{}"
STEP_RESULT = "penstock.result:f/{}"
RETRY = "client:00112233445566778899aabbccddeeff:{}"
NAMES = {
    Kind.MESSAGE: "order-{}",
    Kind.RETRY: RETRY,
    Kind.UNIQUE: UNIQUE,
    Kind.RESULT: RESULT,
    Kind.STEP: STEP,
    Kind.STEP_RESULT: STEP_RESULT,
}


def publish(queue: Queue, ids: Iterable[str], window_s: float = 600) -> list[bool]:
    """Publish messages. Return which were duplicates."""
    new = [
        NewMessage(
            payload=b"",
            dedup_id=id_,
            dedup_window_s=window_s,
            delay=DAY_S if id_.startswith(PLAN.format("")) and "/" not in id_ else None,
        )
        for id_ in ids
    ]
    return [one.duplicate for one in queue.publish(new)]


@pytest.mark.parametrize(
    ("dedup_id", "kind"),
    [
        *((name.format(7), kind) for kind, name in NAMES.items()),
        ("outbox-17", Kind.RETRY),
        ("penstock.other", Kind.MESSAGE),
        ("", Kind.MESSAGE),
    ],
)
def test_the_kind_follows_from_the_id(dedup_id: str, kind: Kind) -> None:
    assert kind_of(dedup_id) is kind
    assert kind_of("penstock.flow:2026/11/18", is_delayed=True) is Kind.STEP_RESULT  # a plan


def test_what_a_client_generates_is_for_retries() -> None:
    (generated,) = DedupIds(50).generate([NewMessage(payload=b"")])
    assert kind_of(generated) is Kind.RETRY


@pytest.mark.parametrize("restart", ["none", "kill", "reopen"])
@pytest.mark.parametrize("other", [*Kind])
@pytest.mark.parametrize("own", [*Kind])
def test_ids_of_one_kind_do_not_displace_those_of_another(
    own: Kind, other: Kind, restart: str
) -> None:
    if own is other:
        return
    store = QueueStore(SMALL)
    queue = store.queue
    for number in range(20):
        try:
            publish(queue, [NAMES[other].format(number)], DAY_S)
        except QueueFull:
            assert other in (Kind.UNIQUE, Kind.STEP)
    first = queue.enqueue(b"", dedup_id=NAMES[own].format("x"), dedup_window_s=600)
    if restart != "none":
        queue = getattr(store, restart)()
    assert queue.find(NAMES[own].format("x")) == first
    assert queue.enqueue(b"", dedup_id=NAMES[own].format("x")) == first
    store.clock.advance(600)
    assert queue.enqueue(b"", dedup_id=NAMES[own].format("x")) != first
    store.close()


@pytest.mark.parametrize("kind", [Kind.MESSAGE, Kind.RETRY, Kind.RESULT])
def test_a_full_table_forgets_the_id_that_was_published_first(kind: Kind) -> None:
    store = QueueStore(SMALL)
    name = NAMES[kind]
    for number, window_s in enumerate([DAY_S, DAY_S, DAY_S, 10]):
        publish(store.queue, [name.format(number)], window_s)
    restarts: list[Callable[[], Queue]] = [lambda: store.queue, store.kill, store.reopen]
    for restart in restarts:
        queue = restart()
        assert queue.stats().dedup_evicted == 1
        found = [queue.find(name.format(number)) is not None for number in range(4)]
        assert found == [False, True, True, True]
    store.close()


@pytest.mark.parametrize("restart", ["none", "kill", "reopen"])
def test_a_unique_id_is_refused_rather_than_another_forgotten(restart: str) -> None:
    store = QueueStore(SMALL)
    ids = [UNIQUE.format(number) for number in range(4)]
    publish(store.queue, ids[:3])
    queue = store.queue if restart == "none" else getattr(store, restart)()
    for publish_again in (
        lambda: queue.enqueue(b"", dedup_id=ids[3]),
        lambda: publish(queue, ["free", ids[3]]),
    ):
        with pytest.raises(QueueFull, match=r"3 unique jobs.*dedup_entries"):
            publish_again()
    assert publish(queue, ids[:3]) == [True] * 3
    assert (queue.stats().published, queue.stats().dedup_evicted) == (3, 0)
    store.clock.advance(600)
    assert publish(queue, ids[:3]) == [False] * 3
    store.close()


def test_a_batch_of_more_unique_ids_than_are_remembered_is_refused() -> None:
    store = QueueStore(SMALL)
    with pytest.raises(QueueFull, match="dedup_entries"):
        publish(store.queue, map(UNIQUE.format, range(4)))
    assert store.queue.stats().published == 0
    store.close()


@pytest.mark.parametrize("restart", ["none", "kill", "reopen"])
def test_only_steps_that_have_ended_are_forgotten(restart: str) -> None:
    store = QueueStore({**SMALL, "max_attempts": 1})
    publish(store.queue, map(STEP.format, range(3)), DAY_S)
    queue = store.queue if restart == "none" else getattr(store, restart)()
    with pytest.raises(QueueFull, match=r"3 steps of workflows.*result_entries"):
        publish(queue, [STEP.format(3)], DAY_S)
    done, dead = queue.lease(2)
    queue.ack(done)
    with pytest.raises(QueueFull):
        publish(queue, map(STEP.format, range(3, 5)), DAY_S)  # the second is still leased
    queue.nack(dead)
    assert publish(queue, map(STEP.format, range(3, 5)), DAY_S) == [False, False]
    restarts: list[Callable[[], Queue]] = [lambda: queue, store.kill]
    for restarted in restarts:
        now = restarted()
        found = [now.find(STEP.format(number)) is not None for number in range(5)]
        assert found == [False, False, True, True, True]
        assert now.stats().dedup_evicted == 2
    store.close()


def test_a_step_that_is_blocked_has_not_ended() -> None:
    store = QueueStore(SMALL)
    first = NewMessage(payload=b"")
    store.queue.publish([first, NewMessage(payload=b"", dedup_id=STEP.format(0), after=[0])])
    publish(store.queue, map(STEP.format, range(1, 3)), DAY_S)
    with pytest.raises(QueueFull):
        publish(store.queue, [STEP.format(3)], DAY_S)
    store.close()


def test_the_results_of_steps_that_have_not_ended_stay() -> None:
    """Results, plans and gates since an unfinished step: at most four for each that is kept."""
    store = QueueStore(SMALL)
    publish(store.queue, [PLAN.format("")], DAY_S)
    publish(store.queue, [STEP_RESULT.format("early")], DAY_S)
    publish(store.queue, map(STEP_RESULT.format, range(10)), DAY_S)
    assert store.queue.find(PLAN.format("")) is not None
    publish(store.queue, map(STEP_RESULT.format, range(10, 12)), DAY_S)
    assert store.queue.find(PLAN.format("")) is None
    assert store.queue.find(STEP_RESULT.format(0)) is not None
    store.close()


def test_an_early_forgotten_id_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    store = QueueStore(SMALL)
    with caplog.at_level(logging.WARNING, "penstock.queue"):
        for number in range(3):
            store.queue.enqueue(b"", dedup_id=str(number))
        assert not caplog.records
        for number in range(3, 10):
            store.queue.enqueue(b"", dedup_id=str(number))
        (record,) = caplog.records
        assert "dedup_entries" in record.getMessage()
        store.clock.advance(59)
        publish(store.queue, ["soon"])
        assert len(caplog.records) == 1
        store.clock.advance(1)
        publish(store.queue, ["later"])
        assert len(caplog.records) == 2
        assert " 8 " in f" {caplog.records[1].getMessage()} "
    store.close()


def test_a_snapshot_of_an_older_version_has_no_kinds() -> None:
    """Ids that were written without a kind are found, as those of messages."""
    table = DedupTable(3, 3)
    for number in range(4):
        table.add(Kind.MESSAGE, dedup_hash(UNIQUE.format(number)), 100, number + 1, 1)
    assert table.first_with(dedup_hash(UNIQUE.format(3)), 50) == (4, 1)
    assert table.first_with(dedup_hash(UNIQUE.format(0)), 50) is None
