"""Schedules: each tick is one message, whatever happens; and what is put, shown and refused."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from threading import Condition
from typing import Any

import pytest

import penstock
from penstock import NewMessage, Schedule
from penstock.clock import ManualClock
from penstock.errors import (
    DiskFull,
    InvalidInput,
    NoSuchSchedule,
    PayloadTooLarge,
    ReadOnly,
    TooLarge,
)
from penstock.ledger.memory_files import MemoryFiles
from penstock.model import NS
from penstock.operations.answers import rfc3339
from penstock.operations.scheduling import decode_schedule, encode_schedule
from penstock.queue import Queue, scheduling
from penstock.queue.firing import DUE_HEADER, MOST_AT_ONCE, NAME_HEADER
from penstock.queue.queue import open_queue
from penstock.queue.schedule_times import CronTimes
from tests.harness.crash_states import crash_states
from tests.harness.journal import RecordedFiles
from tests.harness.queue_plots import open_queue_in
from tests.harness.queue_store import QueueStore
from tests.queue.test_schedule_times import BERLIN, LORD_HOWE, NEW_YORK, between

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def store() -> QueueStore:
    return QueueStore(clock=ManualClock(now_s=START.timestamp()))


def fired(queue: Queue) -> list[tuple[str, str]]:
    """Take all messages: of each, the schedule and the time on the clock of UTC."""
    found = []
    while messages := queue.dequeue_batch(1000):
        found += [(m.headers[NAME_HEADER], m.headers[DUE_HEADER][5:16]) for m in messages]
    return found


def every(seconds: float, name: str = "beat", **options: Any) -> Schedule:
    return Schedule(name, b"x", every_s=seconds, **options)


# -- ticks -----------------------------------------------------------------------------------------


def test_a_tick_is_a_message_with_the_options_of_the_schedule(store: QueueStore) -> None:
    message = NewMessage(
        payload={"a": 1}, headers={"h": "v"}, priority=9, key="k", ttl=60, max_attempts=2
    )
    state = store.queue.put_schedule(Schedule("daily", message, cron="0 13 * * *"))
    assert state.next_ns == (START + timedelta(hours=1)).timestamp() * NS
    store.clock.advance(3599)
    assert store.queue.stats().ready == 0
    store.clock.advance(1)
    found = store.queue.get(store.queue.lease(1)[0].id)
    assert (found.payload, found.priority, found.key, found.max_attempts) == (b'{"a":1}', 9, "k", 2)
    assert found.content_type == "application/json"
    assert found.headers == {
        "h": "v",
        NAME_HEADER: "daily",
        DUE_HEADER: "2026-01-01T13:00:00.000000Z",
    }
    assert found.expires_at_ns == store.clock.now_ns() + 60 * NS


def test_its_history_names_the_schedule_and_the_tick(store: QueueStore) -> None:
    store.queue.put_schedule(every(60))
    store.clock.advance(60)
    (found,) = store.queue.lease(1)
    history = [(event.event, event.reason) for event in store.queue.history(found.id)]
    assert history[:2] == [
        ("published", ""),
        ("schedule_fired", "schedule beat, due at 2026-01-01T12:01:00.000000Z"),
    ]
    assert [event for event, _ in history] == ["published", "schedule_fired", "leased"]
    state = store.queue.schedules()[0]
    assert (state.last_message_id, state.fired) == (found.id, 1)


def test_an_interval_counts_from_the_time_it_was_put(store: QueueStore) -> None:
    store.clock.advance(7)
    store.queue.put_schedule(every(30))
    for _ in range(4):
        store.clock.advance(20)
        store.queue.stats()
    times = [at for _, at in fired(store.queue)]
    assert len(times) == 2
    assert store.queue.schedules()[0].next_ns == store.clock.now_ns() + 10 * NS


def test_a_schedule_runs_while_the_queue_is_paused_and_nothing_is_delivered(
    store: QueueStore,
) -> None:
    store.queue.put_schedule(every(60))
    store.queue.pause()
    store.clock.advance(60)
    assert store.queue.stats().ready == 1
    assert store.queue.dequeue() is None
    store.queue.resume()
    assert store.queue.dequeue() is not None


def test_each_group_gets_the_message(store: QueueStore) -> None:
    store.queue.groups.create("audit")
    store.queue.put_schedule(every(60))
    store.clock.advance(60)
    assert store.queue.dequeue() is not None
    assert store.queue.dequeue(group="audit") is not None


def test_many_that_are_due_at_once_are_published_in_parts(store: QueueStore) -> None:
    for number in range(2 * MOST_AT_ONCE + 5):
        store.queue.put_schedule(every(60, f"s{number}"))
    store.clock.advance(60)
    seen = [store.queue.stats().ready for _ in range(3)]
    assert seen == [MOST_AT_ONCE, 2 * MOST_AT_ONCE, 2 * MOST_AT_ONCE + 5]
    assert len(set(fired(store.queue))) == 2 * MOST_AT_ONCE + 5


# -- missed ticks ----------------------------------------------------------------------------------


def after_downtime(store: QueueStore, schedule: Schedule, down_s: float) -> list[str]:
    store.queue.put_schedule(schedule)
    store.close()
    store.clock.advance(down_s)
    store.open()
    for _ in range(20):
        store.queue.stats()
    return [at for _, at in fired(store.queue)]


def test_skip_drops_what_was_missed(store: QueueStore) -> None:
    assert after_downtime(store, every(600, misfire="skip"), 3600 * 5 + 300) == []
    state = store.queue.schedules()[0]
    assert (state.fired, state.last_missed_ns) == (0, (START + timedelta(hours=5)).timestamp() * NS)
    store.clock.advance(300)
    assert [at for _, at in fired(store.queue)] == ["01-01T17:10"]


def test_skip_keeps_a_tick_within_the_grace(store: QueueStore) -> None:
    found = after_downtime(store, every(600, misfire="skip", grace_s=60), 3600 + 60)
    assert found == ["01-01T13:00"]
    assert store.queue.schedules()[0].last_missed_ns > 0


def test_once_publishes_one_message_for_all_that_were_missed(store: QueueStore) -> None:
    assert after_downtime(store, every(600, misfire="once"), 3600 * 5 + 300) == ["01-01T17:00"]
    state = store.queue.schedules()[0]
    assert state.last_missed_ns == (START + timedelta(hours=4, minutes=50)).timestamp() * NS


def test_once_is_the_tick_that_is_due_now_if_there_is_one(store: QueueStore) -> None:
    assert after_downtime(store, every(600, misfire="once"), 3600) == ["01-01T13:00"]


def test_all_publishes_every_tick(store: QueueStore) -> None:
    found = after_downtime(store, every(600, misfire="all"), 3600 * 2 + 300)
    minutes = [f"01-01T{h}:{m:02}" for h in (12, 13) for m in range(0, 60, 10)]
    assert found == [*minutes[1:], "01-01T14:00"]


def test_all_has_a_bound_and_keeps_the_newest(store: QueueStore) -> None:
    found = after_downtime(store, every(600, misfire="all", catch_up_max=3), 86400 + 300)
    assert found == ["01-02T11:40", "01-02T11:50", "01-02T12:00"]
    state = store.queue.schedules()[0]
    assert state.last_missed_ns == datetime(2026, 1, 2, 11, 30, tzinfo=UTC).timestamp() * NS


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
def test_years_of_missed_minutes_take_no_time(store: QueueStore, misfire: str) -> None:
    """Half a million ticks are not looked at one by one."""
    schedule = Schedule("minutes", b"", cron="* * * * *", time_zone=BERLIN, misfire=misfire)
    looked_at = 0
    after = CronTimes.after

    def counted(self: CronTimes, at_ns: int) -> int | None:
        nonlocal looked_at
        looked_at += 1
        return after(self, at_ns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CronTimes, "after", counted)
        found = after_downtime(store, schedule, 3 * 365 * 86400 + 30)
    assert len(found) == {"skip": 1, "once": 1, "all": 101}[misfire]
    assert looked_at < 2000


# -- putting, pausing, removing --------------------------------------------------------------------


def test_the_same_schedule_again_changes_nothing(store: QueueStore) -> None:
    first = store.queue.put_schedule(every(60))
    store.clock.advance(50)
    before = store.queue.core.ledger.events.next_seq
    assert store.queue.put_schedule(every(60)) == first
    assert store.queue.core.ledger.events.next_seq == before


def test_a_new_message_keeps_the_times(store: QueueStore) -> None:
    first = store.queue.put_schedule(every(60))
    store.clock.advance(50)
    assert store.queue.put_schedule(Schedule("beat", b"y", every_s=60)).next_ns == first.next_ns
    store.clock.advance(10)
    assert [m.payload for m in store.queue.dequeue_batch(9)] == [b"y"]


def test_new_times_begin_when_they_are_put(store: QueueStore) -> None:
    store.queue.put_schedule(every(60))
    store.clock.advance(50)
    assert store.queue.put_schedule(every(100)).next_ns == store.clock.now_ns() + 100 * NS


def test_a_paused_schedule_leaves_its_ticks_out(store: QueueStore) -> None:
    store.queue.put_schedule(every(60, misfire="all"))
    assert store.queue.pause_schedule("beat").next_ns == 0
    store.clock.advance(630)
    assert store.queue.stats().ready == 0
    state = store.queue.resume_schedule("beat")
    assert (state.paused, state.next_ns) == (False, store.clock.now_ns() + 30 * NS)
    assert state.last_missed_ns == 0
    store.clock.advance(30)
    assert len(fired(store.queue)) == 1


def test_putting_it_again_does_not_resume_it_unless_it_says_so(store: QueueStore) -> None:
    store.queue.put_schedule(every(60))
    store.queue.pause_schedule("beat")
    assert store.queue.put_schedule(every(60)).paused
    assert store.queue.put_schedule(Schedule("beat", b"y", every_s=60)).paused
    assert not store.queue.put_schedule(every(60, paused=False)).paused
    assert store.queue.put_schedule(every(60, paused=True)).paused


def test_a_removed_schedule_is_gone_and_its_messages_stay(store: QueueStore) -> None:
    store.queue.put_schedule(every(60))
    store.clock.advance(60)
    store.queue.stats()
    assert store.queue.remove_schedule("beat") is True
    assert store.queue.remove_schedule("beat") is False
    store.clock.advance(600)
    assert len(fired(store.queue)) == 1
    assert store.queue.schedules() == []


def test_a_name_that_is_used_again_begins_anew(store: QueueStore) -> None:
    store.queue.put_schedule(every(60))
    store.clock.advance(60)
    store.queue.stats()
    store.queue.remove_schedule("beat")
    state = store.queue.put_schedule(every(60))
    assert (state.fired, state.last_due_ns) == (0, 0)
    assert store.kill().schedules() == [state]


@pytest.mark.parametrize("call", ["pause_schedule", "resume_schedule", "schedule"])
def test_a_schedule_that_does_not_exist_is_named(store: QueueStore, call: str) -> None:
    with pytest.raises(NoSuchSchedule, match="no schedule 'none'"):
        getattr(store.queue, call)("none")


def test_the_next_ten_times_are_shown(store: QueueStore) -> None:
    store.queue.put_schedule(Schedule("night", b"p", cron="30 2 * * *", time_zone=BERLIN))
    details = store.queue.schedule("night")
    assert details.message.payload == b"p"
    expected = between(CronTimes("30 2 * * *", BERLIN), START, START + timedelta(days=30))
    assert details.next_times_ns == [at.timestamp() * NS for at in expected[:10]]
    assert len(store.queue.schedule("night", times=3).next_times_ns) == 3
    store.queue.pause_schedule("night")
    assert store.queue.schedule("night").next_times_ns == []


def test_schedules_are_listed_by_name(store: QueueStore) -> None:
    for name in ("b", "c", "a"):
        store.queue.put_schedule(every(60, name))
    assert [one.name for one in store.queue.schedules()] == ["a", "b", "c"]


# -- refusals --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "no time": (lambda: Schedule("a", b""), "give cron or every_s"),
    "two times": (lambda: Schedule("a", b"", cron="* * * * *", every_s=5), "give cron or every_s"),
    "an empty name": (lambda: every(60, ""), "schedule name"),
    "a name with a slash": (lambda: every(60, "a/b"), "schedule name"),
    "an interval of nothing": (lambda: every(0), "every_s is 0"),
    "a negative interval": (lambda: every(-5), "every_s is -5"),
    "an interval of a thousand years": (lambda: every(3e10), "every_s is "),
    "an interval that is no number": (lambda: every(float("nan")), "every_s is nan"),
    "a zone for an interval": (lambda: every(5, time_zone="UTC"), "time_zone is for cron"),
    "a policy that does not exist": (lambda: every(5, misfire="maybe"), "misfire is 'maybe'"),
    "a catch-up of none": (lambda: every(5, catch_up_max=0), "catch_up_max is 0"),
    "a grace of a week": (lambda: every(5, grace_s=7 * 86400), "grace_s is "),
    "paused that is no flag": (lambda: every(5, paused="yes"), "paused is 'yes'"),
    "a dedup id": (
        lambda: Schedule("a", NewMessage(payload=b"", dedup_id="x"), every_s=5),
        "no dedup_id",
    ),
    "a time of delivery": (
        lambda: Schedule("a", NewMessage(payload=b"", deliver_at=5), every_s=5),
        "no deliver_at",
    ),
    "an endless cron expression": (lambda: Schedule("a", b"", cron="1," * 500), "256"),
    "cron that is no text": (lambda: Schedule("a", b"", cron=5), "cron is 5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_schedule_is_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(InvalidInput, match=message):
        make()


def test_what_a_queue_refuses_changes_nothing(store: QueueStore) -> None:
    store.open(max_payload_bytes=100)
    before = store.queue.core.ledger.events.next_seq
    with pytest.raises(InvalidInput, match="cron is '61"):
        store.queue.put_schedule(Schedule("a", b"", cron="61 * * * *"))
    with pytest.raises(InvalidInput, match="time_zone is 'Mars/Base'"):
        store.queue.put_schedule(Schedule("a", b"", cron="1 * * * *", time_zone="Mars/Base"))
    with pytest.raises(PayloadTooLarge):
        store.queue.put_schedule(Schedule("a", b"x" * 101, every_s=5))
    with pytest.raises(InvalidInput, match="priority is 99"):
        store.queue.put_schedule(Schedule("a", NewMessage(payload=b"", priority=99), every_s=5))
    with pytest.raises(InvalidInput, match="takes a Schedule"):
        store.queue.put_schedule("a")  # type: ignore[arg-type]
    assert store.queue.core.ledger.events.next_seq == before
    assert store.queue.schedules() == []


def test_schedules_are_limited_in_number_and_bytes(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TooLarge, match="maximum is 262144"):
        store.queue.put_schedule(Schedule("a", b"x" * 200_000, every_s=5))
    monkeypatch.setattr(scheduling, "MAX_SCHEDULES_BYTES", 1000)
    store.queue.put_schedule(Schedule("a", b"x" * 500, every_s=5))
    with pytest.raises(TooLarge, match="1000"):
        store.queue.put_schedule(Schedule("b", b"x" * 500, every_s=5))
    store.queue.put_schedule(Schedule("a", b"y" * 501, every_s=5))  # in place of the other
    monkeypatch.setattr(scheduling, "MAX_SCHEDULES", 1)
    with pytest.raises(InvalidInput, match="1 schedules, which is the maximum"):
        store.queue.put_schedule(every(5, "b"))
    store.queue.remove_schedule("a")
    assert store.queue.core.state.schedules.size_bytes == 0


def test_without_the_library_an_interval_runs_and_a_cron_expression_says_what_to_install(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue.put_schedule(Schedule("cron", b"", cron="0 13 * * *"))
    store.queue.put_schedule(every(3600))
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(InvalidInput, match=r"pip install 'penstock\[schedules\]'"):
        store.queue.put_schedule(Schedule("other", b"", cron="0 13 * * *"))
    store.kill()
    store.clock.advance(3600)
    assert [name for name, _ in fired(store.queue)] == ["beat"]
    assert "cronsim" in {one.name: one.trouble for one in store.queue.schedules()}["cron"]
    monkeypatch.undo()
    store.reopen()
    assert [name for name, _ in fired(store.queue)] == ["cron"]


# -- a queue that cannot take the message ----------------------------------------------------------


def test_a_full_queue_keeps_the_tick_until_there_is_room(store: QueueStore) -> None:
    store.open(max_messages=1, when_full="reject")
    store.queue.enqueue(b"old")
    store.queue.put_schedule(every(60))
    store.clock.advance(60)
    assert store.queue.stats().ready == 1
    assert store.queue.dequeue() is not None
    store.clock.advance(1)
    assert [at for _, at in fired(store.queue)] == ["01-01T12:01"]


def test_a_full_queue_that_drops_the_oldest_does_so(store: QueueStore) -> None:
    store.open(max_messages=2, when_full="drop_oldest")
    store.queue.enqueue_batch([b"one", b"two"])
    store.queue.put_schedule(every(60))
    store.clock.advance(60)
    assert [m.payload for m in store.queue.dequeue_batch(9)] == [b"two", b"x"]


def test_a_message_that_the_queue_no_longer_allows_is_left_out_and_says_why(
    store: QueueStore,
) -> None:
    store.queue.put_schedule(Schedule("large", b"x" * 200, every_s=60))
    store.queue.put_schedule(every(60))
    store.reopen(max_payload_bytes=100)
    store.clock.advance(60)
    assert [name for name, _ in fired(store.queue)] == ["beat"]
    (large,) = [one for one in store.queue.schedules() if one.name == "large"]
    assert "200 bytes" in large.trouble
    assert large.last_missed_ns == store.clock.now_ns()
    store.reopen(max_payload_bytes=1000)
    store.clock.advance(60)
    assert sorted(name for name, _ in fired(store.queue)) == ["beat", "large"]


def test_a_reader_shows_schedules_and_fires_none(store: QueueStore) -> None:
    store.queue.put_schedule(every(60))
    store.close()
    store.clock.advance(60)
    reader = store.look()
    assert [one.name for one in reader.schedules()] == ["beat"]
    assert reader.stats().ready == 0
    with pytest.raises(ReadOnly):
        reader.put_schedule(every(30))
    reader.close()


# -- restarts, kills, clock changes ----------------------------------------------------------------


def test_a_snapshot_has_the_schedules(store: QueueStore) -> None:
    store.queue.put_schedule(every(60))
    store.queue.put_schedule(Schedule("night", b"", cron="30 2 * * *", time_zone=BERLIN))
    store.queue.pause_schedule("night")
    store.clock.advance(60)
    before = store.queue.schedules()
    store.reopen()
    assert store.queue.schedules() == before
    assert store.reopen().schedules() == before
    for name in ("beat", "night"):
        store.queue.remove_schedule(name)
    assert store.reopen().schedules() == []


def test_compaction_removes_the_records_of_what_is_done(store: QueueStore) -> None:
    store.open(segment_entries=10, snapshot_every=20)
    store.queue.put_schedule(every(60))
    for _ in range(200):
        store.clock.advance(60)
        assert len(fired(store.queue)) == 1
    for _ in range(2):
        store.reopen()
        store.queue.compact()
    assert store.queue.stats().first_seq > 150
    assert store.queue.core.ledger.events.first_seq > 100
    before = store.queue.schedules()
    assert before[0].fired == 200
    assert store.kill().schedules() == before


def test_a_clock_that_goes_back_repeats_no_tick(store: QueueStore) -> None:
    store.queue.put_schedule(every(60, misfire="all"))
    store.clock.advance(150)
    assert len(fired(store.queue)) == 2
    store.clock.jump(-3600)
    store.kill()
    assert fired(store.queue) == []
    for _ in range(10):
        store.clock.advance(60)
        store.queue.stats()
    assert len(fired(store.queue)) == 10


def test_a_kill_between_the_message_and_its_event_repeats_no_tick(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue.put_schedule(every(60))
    store.queue.put_schedule(every(60, "other"))
    store.clock.advance(60)
    with monkeypatch.context() as patch:
        patch.setattr(store.queue.core, "record", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.queue.stats()
    store.kill()
    for _ in range(3):
        assert store.queue.stats().ready == 2
    assert [one.fired for one in store.queue.schedules()] == [1, 1]
    assert len(set(fired(store.queue))) == 2


def test_an_interrupt_between_the_message_and_its_event_repeats_no_tick(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process lives on: the state is folded from the logs."""
    store.queue.put_schedule(every(60))
    store.clock.advance(60)
    with monkeypatch.context() as patch:
        patch.setattr(store.queue.core, "record", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.queue.stats()
    assert store.queue.stats().ready == 1
    store.clock.advance(60)
    assert [at for _, at in fired(store.queue)] == ["01-01T12:01", "01-01T12:02"]


def test_a_disk_that_is_full_keeps_the_tick_and_breaks_no_call(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue.put_schedule(every(60))
    store.clock.advance(60)
    with monkeypatch.context() as patch:
        log = store.queue.core.ledger.messages
        patch.setattr(log, "append_batch_stamped", raise_disk_full)
        assert store.queue.stats().ready == 0
    store.clock.advance(1)
    assert store.queue.stats().ready == 1


def test_an_event_log_that_is_full_loses_nothing(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue.put_schedule(every(60))
    store.clock.advance(60)
    with monkeypatch.context() as patch:
        patch.setattr(store.queue.core, "record", raise_disk_full)
        assert store.queue.stats().ready == 1
    (before,) = store.queue.schedules()
    assert before.fired == 1
    assert store.kill().schedules() == [before]
    (message,) = store.queue.peek()
    events = [event.event for event in store.queue.history(message.id)]
    assert events == ["published", "schedule_fired"]


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def raise_disk_full(*_: object) -> None:
    raise DiskFull("no space is left")


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_leaves_each_tick_with_one_message(seed: int) -> None:
    """Nothing is synced but the schedule itself: any part of either log may be lost."""
    clock = ManualClock(now_s=START.timestamp())
    store = QueueStore({"segment_bytes": 2000, "snapshot_every": 10}, recorded=True, clock=clock)
    store.queue.put_schedule(every(60, misfire="all", catch_up_max=1000))
    store.queue.sync()
    begun_ns = store.queue.schedules()[0].put_ns
    random = Random(seed)
    for _ in range(3):
        for _ in range(random.randint(1, 12)):
            store.clock.advance(60)
            store.queue.stats()
            if random.random() < 0.2:
                store.queue.sync()
        store.cut_power(seed)
        store.queue.stats()
    found = [m.headers[DUE_HEADER] for m in store.queue.browse()]
    now_ns = store.queue.core.clock.now_ns()
    ticks = [rfc3339(at) for at in range(begun_ns + 60 * NS, now_ns + 1, 60 * NS)]
    assert sorted(found) == ticks
    assert store.queue.schedules()[0].fired == len(ticks)


def test_a_tick_whose_message_is_lost_in_a_power_cut_is_published_once_with_a_new_seq() -> None:
    """The event of the tick may survive: it does not count, and the seq it names stays unused."""
    recorded, clock = RecordedFiles(), ManualClock()
    queue = open_queue_in(recorded, clock)
    queue.put_schedule(every(60))
    clock.advance(60)
    recorded.mark("due")
    queue.stats()
    queue.sync()
    outcomes = set()
    for state in crash_states(recorded.journal, life="tick"):
        if "due" not in state.marks:
            continue
        files = state.files()
        found = open_queue_in(files, clock)
        found.stats()  # publishes what is due
        for again in (found, open_queue_in(MemoryFiles(files.image()), clock)):
            (message,) = again.browse()
            assert message.headers[DUE_HEADER] == rfc3339(clock.now_ns()), state.name
            assert again.schedules()[0].fired == 1, state.name
            assert again.stats().next_seq == message.seq + 1, state.name
        damage = found.core.ledger.damage
        assert all(one.torn for one in damage), state.name
        lost = any((one.first_lost_seq, one.last_lost_seq) == (1, 1) for one in damage)
        outcomes.add((message.seq, lost))
    assert outcomes == {(1, False), (2, True)}


def test_a_tick_lost_in_a_power_cut_is_published_after_a_second_crash_in_recovery() -> None:
    recorded, clock = RecordedFiles(), ManualClock()
    queue = open_queue_in(recorded, clock)
    queue.put_schedule(every(60))
    clock.advance(60)
    recorded.mark("due")
    queue.stats()
    queue.sync()
    for before in crash_states(recorded.journal, life="tick", cuts=1):
        if "due" not in before.marks or not before.name.endswith("newest kept"):
            continue
        recovered = before.recorded()
        open_queue_in(recovered, clock)
        for state in crash_states(recovered.journal, life=before.name, cuts=1):
            again = open_queue_in(state.files(), clock)
            again.stats()  # publishes what is due
            assert len(list(again.browse())) == 1, state.name


SCHEDULES = (
    Schedule("berlin", b"", cron="30 2 * * *", time_zone=BERLIN),
    Schedule("new-york", b"", cron="30 2 * * *", time_zone=NEW_YORK),
    Schedule("lord-howe", b"", cron="15 2 * * *", time_zone=LORD_HOWE),
    Schedule("hours", b"", cron="0 * * * *", time_zone=LORD_HOWE),
    Schedule("leap-day", b"", cron="0 12 29 2 *", time_zone=BERLIN),
    Schedule("weekdays", b"", cron="0 9 * * mon-fri", time_zone=NEW_YORK),
    Schedule("beat", b"", every_s=5 * 3600),
)


MORE = [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20)]


@pytest.mark.parametrize("misfire", ["all", "once"])
@pytest.mark.parametrize("seed", [0, *MORE])
def test_a_year_of_ticks_with_restarts_kills_and_clock_steps(seed: int, misfire: str) -> None:
    """From one leap year's new year to the next: both changes of the clocks, in three zones."""
    random = Random(seed)
    start = datetime(2028, 1, 1, tzinfo=UTC)
    store = QueueStore(
        {"snapshot_every": 300, "segment_entries": 500},
        clock=ManualClock(now_s=start.timestamp()),
    )
    for one in SCHEDULES:
        fields = {**encode_schedule(one), "misfire": misfire, "catch_up_max": 1000}
        store.queue.put_schedule(decode_schedule(one.name, fields))
    begun_ns = store.queue.core.clock.now_ns()
    found: list[tuple[str, int]] = []
    down_until: list[tuple[int, int]] = []  # when ticks were missed

    def take() -> None:
        while messages := store.queue.dequeue_batch(1000):
            for message in messages:
                due = datetime.fromisoformat(message.headers[DUE_HEADER])
                found.append((message.headers[NAME_HEADER], round(due.timestamp()) * NS))

    year_ns = 366 * 86400 * NS
    while store.queue.core.clock.now_ns() < begun_ns + year_ns:
        before_ns = store.queue.core.clock.now_ns()
        step_s = random.choice([60, 3600, 9000, 20_000, 50_000])
        event = random.randrange(20)
        if event == 0:
            store.close()
            store.clock.advance(random.choice([60, 86400]))
            store.open()
        elif event == 1:
            store.clock.advance(step_s)
            store.kill()
        elif event == 2:
            store.clock.jump(random.choice([-86400, -60, 3600, 30000]))
        elif event == 3:
            store.queue.compact()
        else:
            store.clock.advance(step_s)
        now_ns = store.queue.core.clock.now_ns()
        for _ in range(3):
            store.queue.stats()
            if random.random() < 0.02:
                store.kill()  # right after it fired, with nothing else written
        down_until.append((before_ns, now_ns))
        take()
    end_ns = store.queue.core.clock.now_ns()
    assert len(set(found)) == len(found), "a tick was published twice"
    expected = set()
    for record in store.queue.core.state.schedules:
        times = store.queue.schedule(record.schedule.name, times=0)
        name, timing = times.state.name, record.schedule
        if timing.cron is not None:
            ticks = between(
                CronTimes(timing.cron, timing.time_zone or ""),
                datetime.fromtimestamp(begun_ns / NS, UTC) + timedelta(seconds=1),
                datetime.fromtimestamp(end_ns / NS, UTC) + timedelta(seconds=1),
            )
            expected |= {(name, round(at.timestamp()) * NS) for at in ticks}
        else:
            step_ns = 5 * 3600 * NS
            expected |= {(name, at) for at in range(begun_ns + step_ns, end_ns + 1, step_ns)}
    if misfire == "all":
        assert set(found) == expected
        assert len([one for one in found if one[0] == "leap-day"]) == 1
    else:
        assert set(found) <= expected
        for name in {name for name, _ in expected}:
            # Each time span in which ticks were due has a message for the newest of them.
            got = {at for one, at in found if one == name}
            due = sorted(at for one, at in expected if one == name)
            for first, last in down_until:
                within = [at for at in due if first < at <= last]
                assert not within or within[-1] in got
    store.close()


# -- the timer of an embedded queue ----------------------------------------------------------------


class Jumping(ManualClock):
    """A clock that jumps to the end of each sleep, for so many; then it sleeps for real."""

    def __init__(self, jumps: int) -> None:
        super().__init__(now_s=START.timestamp())
        self._left = jumps
        self._changed = Condition()
        self.sleeps: list[float | None] = []

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        with self._changed:
            self.sleeps.append(timeout_s)
            self._changed.notify_all()
        if self._left and timeout_s is not None:
            self._left -= 1
            self.advance(timeout_s)
        else:
            condition.wait()

    def wait_for(self, is_so: Callable[[list[float | None]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self.sleeps), 60), self.sleeps


def test_an_open_queue_publishes_by_itself_and_sleeps_until_the_next_tick() -> None:
    clock = Jumping(jumps=3)
    with open_queue("memory:", {"sync": "never", "min_free_bytes": 0}, clock=clock) as queue:
        assert clock.sleeps == []  # no schedule, no thread
        queue.put_schedule(every(20))
        clock.wait_for(lambda sleeps: len(sleeps) == 4)
        assert clock.sleeps == [20, 20, 20, 20]
        assert queue.core.ledger.messages.next_seq == 4  # without any call
        queue.put_schedule(every(5, "sooner"))
        clock.wait_for(lambda sleeps: sleeps[-1] == 5)


def test_a_far_tick_is_not_slept_for_at_a_stretch() -> None:
    """A clock that is set forward is noticed: a timer runs by another clock."""
    clock = Jumping(jumps=1)
    with open_queue("memory:", {"sync": "never", "min_free_bytes": 0}, clock=clock) as queue:
        queue.put_schedule(every(86400))
        clock.wait_for(lambda sleeps: len(sleeps) == 2)
        assert clock.sleeps == [30, 30]


def test_a_wait_for_a_message_ends_with_the_tick() -> None:
    with penstock.open("memory:", sync="never", min_free_bytes=0) as queue:
        queue.put_schedule(every(1))
        message = queue.dequeue(wait_s=60)
        assert message is not None
        assert message.headers[NAME_HEADER] == "beat"
