"""One suite of behaviours, over a directory and over a broker: a program need not notice."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import penstock
from penstock import AnyQueue, Schedule
from penstock.aio import AsyncQueue
from penstock.client import AsyncRemoteQueue, RemoteQueue, connect_broker
from penstock.errors import (
    InvalidInput,
    LedgerClosed,
    NoSuchGroup,
    NoSuchMessage,
    NoSuchSchedule,
    QueueFull,
    RateLimited,
    ReceiptInvalid,
    TooLarge,
)
from penstock.model import NewMessage, Published
from penstock.queue import Queue
from tests.server.running import RunningServer

Opens = Callable[..., AnyQueue]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_numbers = count(1)


@pytest.fixture(params=["directory", "broker", "broker over gRPC"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, server: RunningServer
) -> Iterator[Opens]:
    """Opens a new queue with some settings, embedded or of a broker."""
    handles: list[AnyQueue] = []

    def open_queue(metrics: Any = None, **settings: Any) -> AnyQueue:
        if request.param == "directory":
            handle: AnyQueue = penstock.open(
                tmp_path / f"queue-{next(_numbers)}", metrics=metrics, **settings
            )
        else:
            name = f"same/queue-{next(_numbers)}"
            with connect_broker(server.url) as broker:
                broker.create_queue(name, **settings)
            url = server.url if request.param == "broker" else server.server.urls[-1]
            handle = penstock.open(url, queue=name, retry_s=0, metrics=metrics)
        handles.append(handle)
        return handle

    yield open_queue
    for handle in handles:
        handle.close()


@pytest.fixture
def queue(opened: Opens) -> AnyQueue:
    return opened(backoff_base_s=0, max_attempts=2)


def test_it_says_what_it_is(queue: AnyQueue) -> None:
    place = repr(queue.path) if isinstance(queue, Queue) else str(getattr(queue, "url", None))
    assert repr(queue) == f"<{type(queue).__name__} {place}>"


# -- publishing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [{"order": 7, "ä": [1.5, None]}, [1, {"a": True}], {}, []])
def test_a_dict_or_list_is_published_as_json(queue: AnyQueue, payload: Any) -> None:
    id_ = queue.enqueue(payload)
    ids = queue.enqueue_batch([payload, b"bytes", NewMessage(payload=payload, priority=9)])
    ids += [queue.publish([NewMessage(payload=payload, content_type="application/x-own")])[0].id]
    for one in (id_, ids[0], ids[2], ids[3]):
        assert json.loads(queue.get(one).payload) == payload
    types = [queue.get(one).content_type for one in (id_, *ids)]
    assert types == [*["application/json"] * 2, None, "application/json", "application/x-own"]
    (job,) = queue.lease()
    (emitted,) = queue.ack(job, emit=[payload])
    assert json.loads(queue.get(emitted).payload) == payload


@pytest.mark.parametrize(
    "payload",
    [
        None,
        7,
        1.5,
        True,
        {1, 2},
        object(),
        {"a": {1}},
        {"a": float("nan")},
        ["\ud800"],
        {(1, 2): 3},
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_what_is_neither_bytes_text_nor_json_is_refused(queue: AnyQueue, payload: Any) -> None:
    with pytest.raises(InvalidInput, match="payload"):
        queue.enqueue(payload)
    with pytest.raises(InvalidInput, match="payload"):
        queue.enqueue_batch([b"fine", payload])
    assert queue.stats().published == 0


def test_one_payload_is_no_batch(queue: AnyQueue) -> None:
    for one in ({"a": 1}, "text", b"bytes"):
        with pytest.raises(InvalidInput, match="one payload"):
            queue.enqueue_batch(one)  # type: ignore[arg-type]


def test_messages_come_after_others_whatever_carries_them(queue: AnyQueue) -> None:
    first, second, last = queue.publish(
        [
            NewMessage(payload=b"1", max_attempts=1),
            NewMessage(payload=b"2", after=[0]),
            NewMessage(payload=b"3", after=[0, 1], after_failed="run"),
        ]
    )
    other = queue.enqueue(b"4", after=[first.id, second.id])
    assert [queue.state(one) for one in (first.id, second.id, last.id, other)] == [
        "ready",
        "blocked",
        "blocked",
        "blocked",
    ]
    stats = queue.stats()
    assert stats.blocked == stats.groups["main"].blocked == 3 and stats.unfinished == 4
    assert [message.id for message in queue.browse("blocked")] == [second.id, last.id, other]
    why = queue.why(other)
    assert (why.code, why.details["missing"]) == ("blocked", [first.id, second.id])
    queue.nack(queue.lease(), "boom")
    assert [queue.state(one) for one in (second.id, last.id, other)] == ["dead", "ready", "dead"]
    assert {letter.cause for letter in queue.dead()} == {"nack", "dependency"}
    assert queue.redrive([first.id]) == 1
    assert [queue.state(one) for one in (first.id, second.id, other)] == [
        "ready",
        "blocked",
        "blocked",
    ]
    with pytest.raises(NoSuchMessage):
        queue.enqueue(b"5", after=["00000" + first.id[5:]])
    with pytest.raises(InvalidInput):
        queue.enqueue(b"5", after=[0])
    with pytest.raises(InvalidInput):
        queue.publish([NewMessage(payload=b"5", after=[0])])
    assert queue.stats().published == 4


def test_durations_may_be_timedeltas(queue: AnyQueue) -> None:
    hour = timedelta(hours=1)
    id_ = queue.enqueue(b"x", delay=hour, ttl=2 * hour, dedup_id="d", dedup_window_s=hour)
    message = queue.get(id_)
    assert message.deliver_at is not None and message.expires_at is not None
    assert message.deliver_at - message.published_at == pytest.approx(3600, abs=1)
    assert message.expires_at - message.deliver_at == pytest.approx(7200, abs=1)
    queue.enqueue(b"now")
    (job,) = queue.lease(1, lease_s=hour, wait_s=timedelta(seconds=5))
    assert job.deadline - job.published_at == pytest.approx(3600, abs=60)
    queue.extend(job, 2 * hour)
    queue.extend(job.receipt)  # by the queue's own lease
    queue.nack(job, "later", delay=hour)
    info = queue.retry_info(job.id)
    assert info.next_attempt_at is not None and info.last_failure_at is not None
    assert info.next_attempt_at - info.last_failure_at == pytest.approx(3600, abs=1)
    assert queue.dequeue(wait_s=timedelta(0)) is None
    assert queue.stream(print, idle_s=timedelta(0)) == 0


def test_times_may_be_datetimes_with_a_time_zone(opened: Opens) -> None:
    queue = opened(max_attempts=1)
    later = datetime(2050, 1, 2, 3, 4, 5, 678000, tzinfo=timezone(timedelta(hours=2)))
    id_ = queue.enqueue(b"x", deliver_at=later)
    assert queue.get(id_).deliver_at == pytest.approx(later.timestamp(), abs=0.001)
    queue.enqueue(b"dead")
    queue.nack(queue.lease(), "no")
    now = datetime.now(UTC)
    assert queue.redrive(since=now + timedelta(hours=1)) == 0
    assert queue.redrive(since=now - timedelta(hours=1), until=now + timedelta(hours=1)) == 1
    assert queue.seek(time=now - timedelta(hours=1)) == 1
    queue.groups.create("late", time=now + timedelta(hours=1))
    assert queue.stats().groups["late"].ready == 0


@pytest.mark.parametrize("year", [2027, 2050, 2075])
def test_a_datetime_is_exact_to_its_microsecond(queue: AnyQueue, year: int) -> None:
    """A float of Unix seconds is exact to 238 ns only, and to 477 ns from 2038 on."""
    first = datetime(year, 1, 1, tzinfo=UTC)
    moments = [first + timedelta(microseconds=7919 * number + 1) for number in range(20)]
    ids = [queue.enqueue(b"x", deliver_at=moment) for moment in moments]
    batch = [NewMessage(payload=b"x", deliver_at=moment, headers={"a": "b"}) for moment in moments]
    ids += [one.id for one in queue.publish(batch)]
    for id_, moment in zip(ids, moments * 2, strict=True):
        assert queue.get(id_).deliver_at_ns == (moment - EPOCH) // timedelta(microseconds=1) * 1000


def test_a_datetime_without_a_time_zone_is_refused(queue: AnyQueue) -> None:
    naive = datetime(2050, 1, 1)
    calls: list[Callable[[], object]] = [
        lambda: queue.enqueue(b"x", deliver_at=naive),
        lambda: queue.redrive(since=naive),
        lambda: queue.discard(until=naive),
        lambda: queue.seek(time=naive),
        lambda: queue.groups.create("g", time=naive),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="time zone"):
            call()
    assert queue.stats().published == 0


@pytest.mark.parametrize(
    "payload", [b"", b"hello", b"\xff\x00\n", "text: ä €", bytearray(b"x"), memoryview(b"y")]
)
def test_payloads_come_as_they_went(queue: AnyQueue, payload: Any) -> None:
    queue.enqueue(payload)
    message = queue.dequeue()
    assert message is not None
    assert message.payload == (payload.encode() if isinstance(payload, str) else bytes(payload))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"content_type": "image/png"},
        {"content_type": "application/json"},
        {"content_type": "application/json; charset=utf-8"},
        {"content_type": "not a content type \u2028"},
        {"headers": {"Kind": "x"}, "priority": 3},
        {"priority": 9, "ttl": 3600.5, "key": "a b&c=ä/%", "max_attempts": 7, "dedup_id": "d"},
        {"delay": 0.0, "compression": "gzip"},
        {"key": "k" * 1000, "dedup_id": "d" * 1000},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_a_large_payload_comes_as_it_went(queue: AnyQueue, options: dict[str, Any]) -> None:
    payload = bytes(range(256)) * 4096
    id_ = queue.enqueue(payload, **options)
    message = queue.get(id_)
    assert message.payload == payload
    for name in ("priority", "key", "content_type", "max_attempts"):
        if name in options:
            assert getattr(message, name) == options[name]
    assert dict(message.headers) == options.get("headers", {})
    assert message.content_type == options.get("content_type")
    if "dedup_id" in options:
        assert queue.enqueue(payload, **options) == id_


@pytest.mark.parametrize(
    "wrong", [{"priority": "5"}, {"priority": 10}, {"delay": "1"}, {"ttl": float("nan")}], ids=str
)
def test_wrong_options_of_a_large_payload_are_refused(
    queue: AnyQueue, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        queue.enqueue(bytes(100_000), **wrong)
    assert queue.stats().published == 0


def test_every_option_of_a_message_is_kept(queue: AnyQueue) -> None:
    id_ = queue.enqueue(
        b'{"a":  1}',
        priority=9,
        headers={"Kind": "x", "ümlaut": "ä\u2028"},
        key="k",
        ttl=3600,
        max_attempts=7,
        content_type="application/json",
        compression="gzip",
        dedup_id="d",
    )
    message = queue.get(id_)
    assert (message.payload, message.priority, message.key) == (b'{"a":  1}', 9, "k")
    assert dict(message.headers) == {"Kind": "x", "ümlaut": "ä\u2028"}
    assert (message.max_attempts, message.content_type) == (7, "application/json")
    assert message.expires_at == pytest.approx(message.published_at + 3600, abs=1)
    assert message.deliver_at is None


def test_delays_and_times_of_delivery(queue: AnyQueue) -> None:
    soon = queue.enqueue(b"soon", delay=3600)
    at = queue.enqueue(b"at", deliver_at=4_000_000_000.25)
    due_at = queue.get(soon).deliver_at
    assert due_at == pytest.approx(queue.get(soon).published_at + 3600, abs=1)
    assert queue.get(at).deliver_at == pytest.approx(4_000_000_000.25, abs=1e-5, rel=0)
    assert queue.state(soon) == "scheduled"
    assert queue.dequeue() is None


def test_a_ttl_of_nothing_is_over_at_once(queue: AnyQueue) -> None:
    id_ = queue.enqueue(b"x", ttl=0)
    assert queue.state(id_) == "expired"


def test_a_batch_is_published_in_order(queue: AnyQueue) -> None:
    ids = queue.enqueue_batch([b"1", "2", NewMessage(payload=b"3", priority=9)])
    assert [message.id for message in queue.peek(9)] == [ids[2], ids[0], ids[1]]
    assert [message.seq for message in queue.peek(9)] == [3, 1, 2]


def test_one_bad_message_of_a_batch_refuses_all(queue: AnyQueue) -> None:
    with pytest.raises(InvalidInput):
        queue.enqueue_batch([b"1", NewMessage(payload=b"2", priority=10)])
    assert queue.stats().published == 0


def test_duplicates_are_told(queue: AnyQueue) -> None:
    first = queue.enqueue(b"x", dedup_id="once")
    assert queue.enqueue(b"x", dedup_id="once") == first
    messages = [NewMessage(payload=b"x", dedup_id="once"), NewMessage(payload=b"y")]
    published = queue.publish(messages)
    assert published[0] == Published(first, duplicate=True)
    assert not published[1].duplicate
    assert queue.stats().ready == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10},
        {"priority": -1},
        {"priority": "high"},
        {"delay": -1},
        {"delay": float("nan")},
        {"ttl": -1},
        {"headers": {"a": 1}},
        {"headers": {"a": "x" * 70_000}},
        {"key": "x" * 2000},
        {"max_attempts": 0},
        {"compression": "lzma"},
        {"dedup_id": "x" * 2000},
        {"delay": 1, "deliver_at": 4e9},
        {"content_type": 7},
    ],
    ids=str,
)
def test_wrong_options_are_refused_and_nothing_is_published(
    queue: AnyQueue, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        queue.enqueue(b"x", **wrong)
    assert queue.stats().published == 0


@pytest.mark.parametrize("wrong", [None, 7, {1, 2}, "\ud800"], ids=repr)
def test_what_is_no_payload_is_refused(queue: AnyQueue, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        queue.enqueue(wrong)
    with pytest.raises(InvalidInput):
        queue.enqueue_batch("text")
    with pytest.raises(InvalidInput):
        queue.enqueue_batch([])


def test_what_is_too_large_is_refused(opened: Opens) -> None:
    queue = opened(max_payload_bytes=100)
    with pytest.raises(TooLarge):
        queue.enqueue(bytes(101))


def test_a_full_queue_says_so(opened: Opens) -> None:
    queue = opened(max_messages=1)
    queue.enqueue(b"1")
    with pytest.raises(QueueFull):
        queue.enqueue(b"2")


def test_too_fast_is_told_with_when_to_try_again(opened: Opens) -> None:
    queue = opened(rate_per_s=0.001, rate_burst=1)
    queue.enqueue(b"1")
    with pytest.raises(RateLimited) as refused:
        queue.enqueue(b"2")
    assert 900 < refused.value.retry_after_s <= 1000


# -- delivering and settling -----------------------------------------------------------------------


def test_a_leased_message_says_all_about_itself(queue: AnyQueue) -> None:
    id_ = queue.enqueue(b"x", headers={"a": "b"}, priority=3, key="k")
    (job,) = queue.lease(lease_s=60, holder="me")
    assert (job.id, job.seq, job.payload, job.priority, job.key) == (id_, 1, b"x", 3, "k")
    assert (dict(job.headers), job.attempt, job.group) == ({"a": "b"}, 1, "main")
    assert job.deadline == pytest.approx(job.published_at + 60, abs=10)
    assert [event.holder for event in queue.history(id_)][1] == "me"


def test_leased_messages_are_settled_by_object_and_by_receipt(queue: AnyQueue) -> None:
    queue.enqueue_batch([b"1", b"2", b"3"])
    first, second, third = queue.lease(3)
    assert queue.ack(first) == []
    queue.ack([second.receipt, third])
    assert (queue.stats().acked, queue.stats().leased) == (3, 0)


def test_a_failure_is_tried_again_and_then_dead(queue: AnyQueue) -> None:
    id_ = queue.enqueue(b"x")
    queue.nack(queue.lease(), "first")
    (job,) = queue.lease()
    assert job.attempt == 2
    queue.nack(job, "second")
    (letter,) = queue.dead()
    assert (letter.id, letter.attempts, letter.reason, letter.cause) == (id_, 2, "second", "nack")
    assert letter.headers["dlq.failure_reason"] == "second"
    assert 0 < letter.first_failure_ns <= letter.last_failure_ns


def test_a_nack_may_say_when(queue: AnyQueue) -> None:
    queue.enqueue(b"x")
    queue.nack(queue.lease(), "later", delay=3600)
    assert queue.stats().scheduled == 1


def test_release_spends_no_attempt(queue: AnyQueue) -> None:
    queue.enqueue(b"x")
    queue.release(queue.lease())
    assert queue.lease()[0].attempt == 1


def test_a_lease_may_be_extended(queue: AnyQueue) -> None:
    queue.enqueue(b"x")
    (job,) = queue.lease(lease_s=5)
    queue.extend(job, 3600)
    queue.ack(job)


def test_an_ack_may_publish_in_the_same_write(queue: AnyQueue) -> None:
    queue.enqueue(b"first")
    (emitted,) = queue.ack(queue.lease(), emit=[NewMessage(payload=b"next", priority=9)])
    message = queue.get(emitted)
    assert (message.payload, message.priority) == (b"next", 9)


def test_a_receipt_of_the_past_settles_nothing(queue: AnyQueue) -> None:
    queue.enqueue(b"x")
    (old,) = queue.lease()
    queue.nack(old, delay=0)
    queue.lease()
    for settle in (queue.ack, queue.nack, queue.release):
        with pytest.raises(ReceiptInvalid):
            settle(old)
    with pytest.raises(ReceiptInvalid):
        queue.extend(old, 10)


@pytest.mark.parametrize("wrong", ["", "receipt", "AAAA", "ü"])
def test_what_is_no_receipt_settles_nothing(queue: AnyQueue, wrong: str) -> None:
    with pytest.raises((ReceiptInvalid, InvalidInput)):
        queue.ack(wrong)


def test_nothing_to_settle_is_refused(queue: AnyQueue) -> None:
    queue.enqueue(b"x")
    (job,) = queue.lease()
    for wrong in ([], [job, job], 7):
        with pytest.raises(InvalidInput):
            queue.ack(wrong)  # type: ignore[arg-type]


def test_one_message_for_the_length_of_a_block(queue: AnyQueue) -> None:
    queue.enqueue(b"1")
    with queue.lease_one() as job:
        assert job is not None and job.payload == b"1"
    with queue.lease_one() as nothing:
        assert nothing is None
    queue.enqueue(b"2", max_attempts=1)
    with pytest.raises(ZeroDivisionError), queue.lease_one() as job:
        raise ZeroDivisionError("no")
    assert [letter.reason for letter in queue.dead()] == ["ZeroDivisionError: no"]


def test_taken_for_good(queue: AnyQueue) -> None:
    queue.enqueue_batch([b"1", b"2", b"3"])
    assert [message.payload for message in queue.dequeue_batch(2)] == [b"1", b"2"]
    message = queue.dequeue()
    assert message is not None and message.payload == b"3"
    assert queue.dequeue() is None
    assert queue.stats().acked == 3


def test_waiting_ends_when_the_time_is_over(queue: AnyQueue) -> None:
    assert queue.lease(wait_s=0.01) == []
    assert queue.dequeue(wait_s=0.01) is None


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"lease_s": -1}, {"lease_s": 1e9}, {"wait_s": -1}, {"wait_s": "x"}], ids=str
)
def test_wrong_options_of_a_lease_are_refused(queue: AnyQueue, wrong: dict[str, Any]) -> None:
    queue.enqueue(b"x")
    with pytest.raises(InvalidInput):
        queue.lease(**wrong)
    assert queue.stats().leased == 0


def test_a_stream_with_a_handler(queue: AnyQueue) -> None:
    queue.enqueue_batch([b"1", NewMessage(payload=b"x", max_attempts=1), b"3"])
    seen: list[int] = []
    assert queue.stream(lambda job: seen.append(int(job.payload)), idle_s=0) == 2
    assert seen == [1, 3]
    assert queue.stats().dead == 1


def test_a_stream_gives_back_what_it_leased_ahead(queue: AnyQueue) -> None:
    queue.enqueue_batch([b"1", b"2", b"3"])
    for job in queue.stream(idle_s=0):
        with job:
            break
    stats = queue.stats()
    assert (stats.acked, stats.ready, stats.leased) == (1, 2, 0)
    assert queue.lease()[0].attempt == 1


# -- looking ---------------------------------------------------------------------------------------


def test_peek_and_browse_take_nothing(queue: AnyQueue) -> None:
    ids = queue.enqueue_batch([NewMessage(payload=b"%d" % n, priority=n) for n in range(5)])
    later = queue.enqueue(b"later", delay=3600)
    assert [message.payload for message in queue.peek(2)] == [b"4", b"3"]
    assert [message.id for message in queue.browse()] == [*ids, later]
    assert [message.id for message in queue.browse("scheduled")] == [later]
    assert list(queue.browse("done")) == []
    assert queue.stats().ready == 5


def test_a_listing_of_many_pages_is_whole(opened: Opens) -> None:
    queue = opened(max_attempts=1)
    ids = queue.enqueue_batch([b"%d" % n for n in range(1203)])
    assert [message.id for message in queue.browse()] == ids
    queue.nack(queue.lease(2000), "all at once")
    assert len(list(queue.dead())) == 1203


def test_why_and_history(queue: AnyQueue) -> None:
    id_ = queue.enqueue(b"x", delay=3600)
    why = queue.why(id_)
    assert (why.id, why.group, why.state, why.code) == (id_, "main", "scheduled", "delayed")
    assert why.sentence
    history = queue.history(id_)
    assert [event.event for event in history] == ["published"]
    assert history[0].at == pytest.approx(queue.get(id_).published_at, abs=0.001)


def test_why_has_the_key_as_text(queue: AnyQueue) -> None:
    queue.enqueue(b"first", key="zürich")
    why = queue.why(queue.enqueue(b"second", key="zürich"))
    assert why.details == {"key": "zürich", "ahead": 1, "holder_seq": 1}
    assert "key 'zürich'" in why.sentence


def test_stats_have_all_counts(queue: AnyQueue) -> None:
    queue.enqueue_batch([b"1", b"2"])
    queue.ack(queue.lease())
    stats = queue.stats()
    assert (stats.published, stats.acked, stats.ready, stats.next_seq) == (2, 1, 1, 3)
    assert (stats.read_position, stats.groups["main"].read_position) == (2, 2)
    assert stats.groups["main"].ready == 1
    queue.nack(queue.lease(), "no")
    assert queue.stats().retrying == 1
    queue.nack(queue.lease(), "no")
    stats = queue.stats()
    assert (stats.retrying, stats.dead, stats.read_position) == (0, 1, 3)
    queue.discard()
    before = queue.stats()
    assert before.discarded == 1
    queue.enqueue(b"3", dedup_id="three")
    assert queue.stats().dedup_entries == before.dedup_entries + 1
    assert stats.paused is False


def test_retry_info(queue: AnyQueue) -> None:
    id_ = queue.enqueue(b"x", max_attempts=3)
    assert queue.retry_info(id_)[2:] == ("ready", 0, 3, 0, "", 0, 0)
    queue.nack(queue.lease(), "no", delay=3600)
    info = queue.retry_info(id_)
    assert (info.id, info.group, info.state) == (id_, "main", "scheduled")
    assert (info.attempts, info.max_attempts, info.reason) == (1, 3, "no")
    assert info.next_attempt_at is not None and info.last_failure_at is not None
    assert info.next_attempt_at - info.last_failure_at == pytest.approx(3600, abs=1)


class Noted:
    """A collector that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    def observe(self, operation: str, duration_s: float, outcome: str, count: int) -> None:
        assert duration_s >= 0
        self.seen.append((operation, outcome, count))


def test_a_collector_is_told_of_each_operation(opened: Opens) -> None:
    noted = Noted()
    queue = opened(metrics=noted, backoff_base_s=0, max_attempts=2)
    queue.enqueue(b"1")
    queue.enqueue(b"2", priority=9)
    queue.enqueue_batch([b"3", b"4", b"5"])
    assert queue.lease(10, group="main", holder="me")[0].payload == b"2"
    assert queue.lease() == []
    with pytest.raises(InvalidInput):
        queue.enqueue(b"x", priority=77)
    queue.purge()
    assert noted.seen == [
        ("enqueue", "ok", 1),
        ("enqueue", "ok", 1),
        ("enqueue_batch", "ok", 3),
        ("lease", "ok", 5),
        ("lease", "ok", 0),
        ("enqueue", "InvalidInput", 0),
        ("purge", "ok", 0),
    ]
    operations: Any = queue.metrics()["operations"]
    assert operations["enqueue"]["calls"] == 3
    assert (operations["enqueue"]["failed"], operations["enqueue"]["messages"]) == (1, 2)
    assert operations["lease"]["duration_s"]["samples"] == 2


def test_settlements_are_counted_by_message(opened: Opens) -> None:
    noted = Noted()
    queue = opened(metrics=noted)
    queue.enqueue_batch([b"%d" % n for n in range(6)])
    jobs = queue.lease(6)
    queue.ack(jobs[0])
    queue.ack(jobs[1].receipt)
    queue.release(job for job in jobs[2:4])
    with jobs[4]:
        pass
    queue.nack([jobs[5]], "no")
    assert noted.seen[2:] == [
        ("ack", "ok", 1),
        ("ack", "ok", 1),
        ("release", "ok", 2),
        ("ack", "ok", 1),
        ("nack", "ok", 1),
    ]


def test_a_collector_that_fails_fails_no_operation(
    opened: Opens, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def observe(self, operation: str, duration_s: float, outcome: str, count: int) -> None:
            raise RuntimeError("no metrics today")

    queue = opened(metrics=Failing())
    assert queue.get(queue.enqueue(b"x")).payload == b"x"
    assert [r.message for r in caplog.records if "collector" in r.message] == [
        "the metrics collector failed; further failures are not logged"
    ]


def test_what_is_no_collector_is_refused(opened: Opens) -> None:
    with pytest.raises(InvalidInput, match="metrics is"):
        opened(metrics=7)


def test_a_stream_is_stopped_from_outside(queue: AnyQueue) -> None:
    stopper, handled = penstock.Stopper(), []
    queue.enqueue_batch([b"%d" % n for n in range(5)])

    def handle(job: penstock.LeasedMessage) -> None:
        handled.append(job.payload)
        if len(handled) == 2:
            stopper.stop()

    assert queue.stream(handle, stopper=stopper) == 2
    stats = queue.stats()
    assert (stats.acked, stats.ready, stats.leased, stats.retrying) == (2, 3, 0, 0)
    assert queue.stream(handle, stopper=stopper) == 0  # it stays stopped


def test_a_stream_that_waits_is_stopped_from_another_thread(queue: AnyQueue) -> None:
    stopper = penstock.Stopper()
    ended: list[object] = []

    def consume() -> None:
        ended.append([job.payload for job in queue.stream(stopper=stopper)])
        ended.append(queue.lease(1, wait_s=3600, stopper=stopper))

    thread = Thread(target=consume)
    thread.start()
    stopper.stop()
    thread.join(60)
    assert ended == [[], []]


def test_what_is_not_there(queue: AnyQueue, opened: Opens) -> None:
    elsewhere = opened().enqueue(b"x")
    ours = queue.enqueue(b"x")
    gone = elsewhere[:-1] + ("0" if elsewhere[-1] != "0" else "Z")
    for call in (queue.get, queue.state, queue.why, queue.retry_info, queue.history, queue.cancel):
        with pytest.raises((NoSuchMessage, InvalidInput)):
            call(gone)
        with pytest.raises(InvalidInput):
            call("not an id")
        with pytest.raises(InvalidInput):
            call("../" + ours[3:])
    for look in (queue.peek, queue.lease):
        with pytest.raises(NoSuchGroup):
            look(1, group="nobody")


# -- operating -------------------------------------------------------------------------------------


def test_groups_read_independently(queue: AnyQueue) -> None:
    queue.enqueue_batch([b"1", b"2"])
    queue.groups.create("audit")
    queue.groups.create("late", to="end")
    queue.groups.create("audit", to="end")  # there already: it stays where it is
    assert set(queue.groups) == {"main", "audit", "late"}
    assert "audit" in queue.groups and len(queue.groups) == 3
    assert [job.payload for job in queue.lease(9, group="audit")] == [b"1", b"2"]
    assert queue.lease(group="late") == []
    queue.groups.delete("late")
    with pytest.raises(NoSuchGroup):
        queue.groups.delete("late")


def test_seek_goes_anywhere(queue: AnyQueue) -> None:
    ids = queue.enqueue_batch([b"1", b"2", b"3"])
    published_at = queue.get(ids[0]).published_at
    queue.dequeue_batch(3)
    assert queue.seek("beginning") == 1
    assert queue.stats().ready == 3
    assert queue.seek("end") == 4
    assert queue.seek(seq=2) == 2
    assert queue.seek(id=ids[2]) == 3
    assert queue.seek(time=published_at - 10) == 1
    for wrong in ({}, {"to": "somewhere"}, {"to": "end", "seq": 1}):
        with pytest.raises(InvalidInput):
            queue.seek(**wrong)


def test_dead_letters_are_redriven_and_discarded(opened: Opens) -> None:
    queue = opened(max_attempts=1)
    ids = queue.enqueue_batch([b"1", b"2", b"3", b"4"])
    for n, job in enumerate(queue.lease(4)):
        queue.nack(job, f"reason {n}")
    assert queue.redrive(ids[0]) == 1
    assert queue.redrive(reason="reason 1") == 1
    assert queue.redrive(until=1000.0) == 0
    assert queue.discard([ids[2]]) == 1
    assert queue.redrive(limit=5) == 1
    assert (queue.stats().dead, queue.stats().ready) == (0, 3)
    with pytest.raises(NoSuchMessage):
        queue.redrive(ids[2])


def test_dead_letters_are_leased(opened: Opens) -> None:
    queue = opened(max_attempts=1)
    queue.enqueue(b"x")
    queue.nack(queue.lease(), "no")
    (job,) = queue.lease_dead(lease_s=60)
    queue.release(job)
    queue.ack(queue.lease_dead())
    assert queue.stats().dead == 0


def test_cancel_purge_pause_and_compact(queue: AnyQueue) -> None:
    ids = queue.enqueue_batch([b"1", b"2", b"3"])
    assert queue.cancel(ids[0]) is True
    assert queue.cancel(ids[0]) is False
    queue.pause()
    assert (queue.lease(), queue.stats().paused) == ([], True)
    queue.resume()
    assert queue.purge() == 2
    told: list[object] = []
    result = queue.compact(on_progress=told.append)
    assert result.bytes_freed >= 0


def test_sync_returns_when_all_is_on_disk(opened: Opens) -> None:
    queue = opened(sync="never")
    queue.enqueue(b"x")
    queue.sync()
    assert queue.stats().ready == 1


# -- the handle ------------------------------------------------------------------------------------


def test_a_closed_queue_says_so(opened: Opens) -> None:
    queue = opened()
    queue.close()
    queue.close()
    with pytest.raises(LedgerClosed):
        queue.enqueue(b"x")


def test_closing_the_view_for_tasks_leaves_the_queue_open(queue: AnyQueue) -> None:
    async def main() -> None:
        view = queue.for_tasks()
        await view.enqueue_batch([b"a", b"b", b"c"])
        jobs = view.stream()
        await view.ack(await anext(jobs))
        await view.close()
        await view.close()
        with pytest.raises(LedgerClosed):
            await anext(jobs)
        calls: list[Callable[[], Any]] = [
            lambda: view.enqueue(b"x"),
            lambda: view.enqueue(b"x", key="k"),
            lambda: view.lease(),
            lambda: view.lease(2, wait_s=5),
            lambda: view.dequeue(),
            lambda: view.stats(),
            lambda: view.compact(),
            lambda: view.groups.names(),
        ]
        for call in calls:
            with pytest.raises(LedgerClosed):
                await call()

    asyncio.run(main())
    stats = queue.stats()
    assert (stats.published, stats.acked, stats.ready, stats.leased) == (3, 1, 2, 0)
    queue.enqueue(b"d")


def test_closing_the_queue_closes_its_view_for_tasks(queue: AnyQueue) -> None:
    async def main() -> None:
        view = queue.for_tasks()
        await view.enqueue_batch([b"a", b"b", b"c"])
        jobs = view.stream()
        await view.ack(await anext(jobs))
        queue.close()
        with pytest.raises(LedgerClosed):
            await anext(jobs)
        with pytest.raises(LedgerClosed):
            await view.enqueue(b"x")
        await view.close()

    asyncio.run(main())
    place: Any = queue.path if isinstance(queue, Queue) else getattr(queue, "url", None)
    with penstock.open(place) as again:
        stats = again.stats()
    assert (stats.acked, stats.ready, stats.leased) == (1, 2, 0)


def public(cls: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for base in reversed(cls.__mro__)
        for name, value in vars(base).items()
        if not name.startswith("_") and inspect.isfunction(value)
    }


@pytest.mark.parametrize(("here", "there"), [(Queue, RemoteQueue), (AsyncQueue, AsyncRemoteQueue)])
def test_it_has_every_method_with_the_same_parameters(here: type, there: type) -> None:
    ours, theirs = public(here), public(there)
    assert set(ours) <= set(theirs)
    assert set(theirs) - set(ours) <= {"details", "for_tasks"}
    for name in set(ours) & set(theirs):
        assert str(ours[name]).partition(" ->")[0] == str(theirs[name]).partition(" ->")[0], name


# -- schedules -------------------------------------------------------------------------------------


def test_schedules_are_put_shown_paused_and_removed(queue: AnyQueue) -> None:
    message = NewMessage(
        payload={"a": 1}, headers={"h": "v"}, priority=9, key="k", ttl=60, delay=1.5, max_attempts=2
    )
    night = Schedule(
        "night", message, cron="30 2 * * *", time_zone="Europe/Berlin", misfire="all", grace_s=5
    )
    state = queue.put_schedule(night)
    assert (state.cron, state.time_zone, state.misfire) == (night.cron, "Europe/Berlin", "all")
    assert (state.grace_s, state.catch_up_max, state.payload_bytes) == (5, 100, 7)
    assert queue.put_schedule(night) == state
    beat = queue.put_schedule(Schedule("beat", "text", every_s=timedelta(hours=1), paused=True))
    assert (beat.every_s, beat.paused, beat.next_ns) == (3600, True, 0)
    assert queue.schedules() == [beat, state]
    details = queue.schedule("night")
    assert (details.state, details.message) == (state, message)
    assert (len(details.next_times_ns), details.next_times_ns[0]) == (10, state.next_ns)
    assert queue.schedule("beat", times=3).next_times_ns == []
    assert not queue.resume_schedule("beat").paused
    assert queue.pause_schedule("beat").paused
    assert (queue.remove_schedule("beat"), queue.remove_schedule("beat")) == (True, False)
    with pytest.raises(NoSuchSchedule, match="no schedule 'beat'"):
        queue.schedule("beat")
    with pytest.raises(InvalidInput, match="cron is '61"):
        queue.put_schedule(Schedule("bad", b"", cron="61 * * * *"))
    with pytest.raises(InvalidInput, match="time_zone is 'Mars/Base'"):
        queue.put_schedule(Schedule("bad", b"", cron="1 * * * *", time_zone="Mars/Base"))


def test_schedules_of_a_queue_for_tasks(queue: AnyQueue) -> None:
    async def story() -> None:
        tasks = queue.for_tasks()
        await tasks.put_schedule(Schedule("beat", b"x", every_s=1))
        assert [one.name for one in await tasks.schedules()] == ["beat"]
        message = await tasks.dequeue(wait_s=30)
        assert message is not None
        assert message.headers["schedule.name"] == "beat"
        assert (await tasks.schedule("beat")).state.fired >= 1
        assert await tasks.remove_schedule("beat")
        await tasks.close()

    asyncio.run(story())


def test_a_nack_can_make_a_dead_letter_at_once(opened: Opens) -> None:
    queue = opened(max_attempts=20)
    id_ = queue.enqueue(b"x")
    queue.nack(queue.lease(), "no such user", dead=True)
    assert queue.state(id_) == "dead"
    assert queue.retry_info(id_).reason == "no such user"


def test_a_message_is_found_by_its_dedup_id(opened: Opens) -> None:
    queue = opened()
    id_ = queue.enqueue(b"x", dedup_id="order 7 & 8", dedup_window_s=60)
    assert queue.find("order 7 & 8") == id_
    assert queue.find("order 9") is None
