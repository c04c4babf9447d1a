"""Every operation: its declarations, its checks, its answer as JSON, its handler and its route."""

import json
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, is_dataclass
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

import penstock
from penstock import operations as exported
from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage, NewMessage, RetryInfo, Stats, Why
from penstock.operations import (
    Browse,
    Cancel,
    CancelDeliverable,
    Compact,
    CreateGroup,
    DeadPage,
    DeleteGroup,
    Discard,
    ExplainWait,
    Extend,
    GetMessage,
    GetRetryInfo,
    GetStats,
    LeaseMessage,
    ListDead,
    ListGroups,
    ListHistory,
    MessageOperation,
    Nack,
    Operation,
    Page,
    Pause,
    Peek,
    Purge,
    Redrive,
    Release,
    ReleaseHolder,
    Resume,
    Runs,
    Schedule,
    Seek,
    Sync,
    Verb,
    following,
    looking,
    operating,
    scheduling,
    settling,
    surveying,
)
from penstock.operations.answers import Answer
from penstock.queue import Queue, gate
from penstock.queue.operation_handlers import run
from penstock.queue.queue import open_queue
from penstock.server.rest.all_endpoints import ENDPOINTS
from penstock.server.rest.endpoint import API, QUEUE

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def operations_in(module: ModuleType) -> set[Any]:
    return {
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Operation) and is_dataclass(value)
    }


MODULES = (following, looking, operating, scheduling, settling, surveying)
DEFINED = {kind for module in MODULES for kind in operations_in(module)}
ALL = sorted(DEFINED, key=lambda kind: kind.__name__)
every_operation = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


@pytest.fixture
def queue() -> Iterator[Queue]:
    with open_queue("memory:", {"max_attempts": 2}, clock=ManualClock()) as opened:
        yield opened


# -- declarations ----------------------------------------------------------------------------------


def test_every_operation_is_exported() -> None:
    assert operations_in(exported) == DEFINED
    assert {kind.__name__ for kind in DEFINED} <= set(exported.__all__)


@every_operation
def test_an_operation_declares_its_right_its_answer_and_where_it_runs(kind: Any) -> None:
    assert isinstance(kind.verb, Verb)
    assert isinstance(kind.answer, Answer)
    assert isinstance(kind.runs, Runs)
    assert kind.writes or kind.idempotent, "an operation that only reads may be sent twice"
    assert not (kind.writes and kind.is_durable), "one of them"
    assert not (kind.writes and kind.verb is Verb.READ), "the right to read must not allow changes"


@every_operation
def test_an_operation_has_a_docstring_of_its_own(kind: Any) -> None:
    # A dataclass without a docstring gets its signature as one.
    assert kind.__doc__.strip() and not kind.__doc__.startswith(f"{kind.__name__}(")


def test_an_operation_is_an_immutable_value() -> None:
    assert Seek(seq=3) == Seek(seq=3) != Seek(seq=4)
    with pytest.raises(FrozenInstanceError):
        Seek(seq=3).seq = 4  # type: ignore[misc]


# -- checks ----------------------------------------------------------------------------------------

BAD: dict[str, Callable[[], object]] = {
    "a state that does not exist": lambda: Browse("lost"),
    "a limit of 0": lambda: Browse(limit=0),
    "a limit that is too high": lambda: Browse(limit=looking.MAX_ROWS + 1),
    "a limit that is text": lambda: Browse(limit="10"),  # type: ignore[arg-type]
    "a limit that is a bool": lambda: Browse(limit=True),
    "a budget of 0": lambda: Browse(budget=0),
    "a negative seq": lambda: Browse(after_seq=-1),
    "a key that is no text": lambda: Browse(key=b"a"),  # type: ignore[arg-type]
    "text without an UTF-8 form": lambda: Browse(text="\ud800"),
    "a bad group name": lambda: Browse(group="no/group"),
    "an empty group name": lambda: DeleteGroup(""),
    "a negative time": lambda: Browse(since=-1),
    "a time that is too late": lambda: Browse(until=1e12),
    "a time that is no number": lambda: Browse(since=float("nan")),
    "a time that is text": lambda: Browse(since="noon"),  # type: ignore[arg-type]
    "a time without a time zone": lambda: Browse(since=NOON.replace(tzinfo=None)),
    "a time of pandas that is none": lambda: Browse(since=pd.NaT),
    "a peek at nothing": lambda: Peek(0),
    "a history of nothing": lambda: ListHistory("id", limit=0),
    "ids that are a number": lambda: ListDead(7),  # type: ignore[arg-type]
    "a reason that is no text": lambda: Redrive(reason=7),  # type: ignore[arg-type]
    "a negative limit": lambda: Redrive(limit=-1),
    "a discard since a naive time": lambda: Discard(since=NOON.replace(tzinfo=None)),
    "no position": lambda: Seek(),
    "two positions": lambda: Seek("end", seq=1),
    "a position that does not exist": lambda: Seek("middle"),
    "two positions of a group": lambda: CreateGroup("audit", to="end", time=NOON),
    "no messages to cancel": lambda: CancelDeliverable(0),
}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD.keys())
def test_a_bad_argument_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_a_time_is_a_datetime_or_unix_seconds() -> None:
    seconds = NOON.timestamp()
    assert Browse(since=NOON, until=NOON) == Browse(since=seconds, until=seconds)
    assert Redrive(since=NOON) == Redrive(since=seconds)
    assert Seek(time=NOON) == Seek(time=seconds)
    assert CreateGroup("audit", time=NOON).time == seconds


def test_one_id_is_a_list_of_one() -> None:
    assert ListDead("a").ids == Redrive(["a"]).ids == Discard(iter(["a"])).ids == ("a",)  # type: ignore[arg-type]


def test_a_group_starts_at_the_beginning_by_default() -> None:
    assert CreateGroup("audit") == CreateGroup("audit", to="beginning")


def test_an_internal_field_is_no_argument() -> None:
    with pytest.raises(TypeError):
        Peek(max_bytes=10)  # type: ignore[call-arg]
    peek = Peek(3)
    assert peek.with_internal("max_bytes", 10).max_bytes == 10 != peek.max_bytes


# -- answers as JSON -------------------------------------------------------------------------------

# Operations whose routes make the JSON.
BY_ROUTE = {Browse, GetMessage, GetStats, ListDead, ListHistory, Peek}
STATE = scheduling.ScheduleState(
    *("nightly", "30 2 * * *", 0.0, "UTC", "once", 60.0, 100, False),
    *(7, 2_000_000_000, 1_000_000_000, 0, "", 3, 0, ""),
)
RECORDS = {
    following.AwaitEnding: True,
    following.GetEndings: [following.Ending("id", 3, "expired")],
    following.ListAwaited: [following.Ending("id", 4)],
    looking.FindMessage: "01HF7YAT00000000G0000000G1",
    ExplainWait: Why("id", "main", "leased", "leased", "It is leased.", {"holder": "ann"}),
    GetRetryInfo: RetryInfo("id", "main", "scheduled", 1, 5, 2_000_000_000, "no", 1_000_000, 0),
    surveying.GetLimits: surveying.Limits([surveying.Limit("max_messages", 1, 2, "refused")]),
    surveying.GetStorage: surveying.StorageReport(
        [surveying.SegmentState("messages", 1, 9, 5, 99, True, 2_000_000_000)],
        1,
        0.5,
        2,
        [surveying.DamageReport("messages/1.log", 1, 2, 3, "torn", True)],
        [surveying.QuarantineFile("a", 7)],
        "",
    ),
    surveying.ListConsumers: surveying.Consumers(
        1,
        [surveying.Holder("ann", 1, 1_000_000, 2_000_000)],
        [surveying.HeldLease("id", 7, "ann", 1, 1_000_000, 2_000_000)],
        False,
    ),
    surveying.ListDeadReasons: surveying.DeadReasons(
        [surveying.DeadReason("no #", 3, 1_000_000, 2_000_000, "id", "nack")], 3, 0, False
    ),
    surveying.ListKeys: surveying.KeyBacklogs([surveying.KeyBacklog("k", 3, "id")], 1, False),
    surveying.PreviewSeek: surveying.SeekPreview(1, 2, 3, 4),
    scheduling.PutSchedule: STATE,
    scheduling.PauseSchedule: STATE,
    scheduling.ResumeSchedule: STATE,
    scheduling.ListSchedules: scheduling.Schedules([STATE]),
    scheduling.GetSchedule: scheduling.ScheduleDetails(
        STATE,
        NewMessage(payload=b"x", headers={"a": "b"}, ttl=5, delay=1.5, key="k", priority=9),
        [1_000_000_000, 2_000_000_000],
    ),
}
VALUES: dict[Any, Any] = {int: 3, bool: False, list[str]: ["audit", "main"], None: None}


@every_operation
def test_the_answer_survives_json(kind: Any) -> None:
    if kind is LeaseMessage:
        with pytest.raises(TypeError, match="not offered over HTTP"):
            kind.answer.encode([])
        return
    if kind in BY_ROUTE:
        with pytest.raises(TypeError, match="is encoded by its route"):
            kind.answer.encode(None)
        return
    answers_none = kind in (Pause, Resume)  # their JSON only confirms
    value = None if answers_none else RECORDS.get(kind) or VALUES[kind.answer.kind]
    assert kind.answer.decode(json.loads(json.dumps(kind.answer.encode(value)))) == value


# -- handlers --------------------------------------------------------------------------------------


def prepared(queue: Queue) -> tuple[str, LeasedMessage, str]:
    """Return the id of a ready message (a gate), a leased message and the id of a dead letter."""
    dead = queue.enqueue(b"dead", max_attempts=1)
    queue.nack(queue.lease()[0], "broken")
    queue.enqueue(b"leased")
    leased = queue.lease(holder="ann")[0]
    ready = queue.enqueue(b"ready", headers={gate.HEADER: gate.CLOSED})
    queue.run(CreateGroup("audit", to="end"))
    queue.put_schedule(Schedule("nightly", b"x", cron="30 2 * * *"))
    return ready, leased, dead


CASES: dict[Any, tuple[Callable[[str, LeasedMessage, str], Any], Any]] = {
    Browse: (lambda ready, leased, dead: Browse("ready"), Page),
    Cancel: (lambda ready, leased, dead: Cancel(ready), True),
    CancelDeliverable: (lambda ready, leased, dead: CancelDeliverable(10), 2),
    Compact: (lambda ready, leased, dead: Compact(), int),
    CreateGroup: (lambda ready, leased, dead: CreateGroup("audit"), False),
    DeleteGroup: (lambda ready, leased, dead: DeleteGroup("audit"), None),
    Discard: (lambda ready, leased, dead: Discard(dead), 1),
    looking.FindMessage: (lambda ready, leased, dead: looking.FindMessage("x"), str),
    ExplainWait: (lambda ready, leased, dead: ExplainWait(dead), Why),
    Extend: (lambda ready, leased, dead: Extend(leased, 60), None),
    following.AwaitEnding: (lambda ready, leased, dead: following.AwaitEnding(dead), True),
    following.GetEndings: (
        lambda ready, leased, dead: following.GetEndings([ready, dead], check=True),
        list,
    ),
    following.ListAwaited: (lambda ready, leased, dead: following.ListAwaited(), []),
    following.OpenGate: (lambda ready, leased, dead: following.OpenGate(ready), True),
    following.Resolve: (lambda ready, leased, dead: following.Resolve(ready, 1), False),
    GetMessage: (lambda ready, leased, dead: GetMessage(ready), looking.Row),
    GetRetryInfo: (lambda ready, leased, dead: GetRetryInfo(dead), RetryInfo),
    GetStats: (lambda ready, leased, dead: GetStats(), Stats),
    LeaseMessage: (lambda ready, leased, dead: LeaseMessage(1), list),
    ListDead: (lambda ready, leased, dead: ListDead(), DeadPage),
    ListGroups: (lambda ready, leased, dead: ListGroups(), ["audit", "main"]),
    ListHistory: (lambda ready, leased, dead: ListHistory(dead), list),
    Nack: (lambda ready, leased, dead: Nack(leased, "broken"), None),
    Pause: (lambda ready, leased, dead: Pause(), None),
    Peek: (lambda ready, leased, dead: Peek(5), list),
    Purge: (lambda ready, leased, dead: Purge(group="main"), int),
    Redrive: (lambda ready, leased, dead: Redrive(reason="broken"), 1),
    Release: (lambda ready, leased, dead: Release(leased), None),
    ReleaseHolder: (lambda ready, leased, dead: ReleaseHolder("ann"), 1),
    Resume: (lambda ready, leased, dead: Resume(), None),
    Seek: (lambda ready, leased, dead: Seek("end"), 4),
    Sync: (lambda ready, leased, dead: Sync(), None),
    surveying.GetLimits: (lambda ready, leased, dead: surveying.GetLimits(), surveying.Limits),
    surveying.GetStorage: (
        lambda ready, leased, dead: surveying.GetStorage(),
        surveying.StorageReport,
    ),
    surveying.ListConsumers: (
        lambda ready, leased, dead: surveying.ListConsumers(),
        surveying.Consumers,
    ),
    surveying.ListDeadReasons: (
        lambda ready, leased, dead: surveying.ListDeadReasons(),
        surveying.DeadReasons,
    ),
    surveying.ListKeys: (lambda ready, leased, dead: surveying.ListKeys(), surveying.KeyBacklogs),
    surveying.PreviewSeek: (
        lambda ready, leased, dead: surveying.PreviewSeek("end"),
        surveying.SeekPreview,
    ),
    scheduling.GetSchedule: (
        lambda ready, leased, dead: scheduling.GetSchedule("nightly"),
        scheduling.ScheduleDetails,
    ),
    scheduling.ListSchedules: (
        lambda ready, leased, dead: scheduling.ListSchedules(),
        scheduling.Schedules,
    ),
    scheduling.PauseSchedule: (
        lambda ready, leased, dead: scheduling.PauseSchedule("nightly"),
        scheduling.ScheduleState,
    ),
    scheduling.PutSchedule: (
        lambda ready, leased, dead: scheduling.PutSchedule(Schedule("hourly", b"x", every_s=3600)),
        scheduling.ScheduleState,
    ),
    scheduling.RemoveSchedule: (
        lambda ready, leased, dead: scheduling.RemoveSchedule("nightly"),
        True,
    ),
    scheduling.ResumeSchedule: (
        lambda ready, leased, dead: scheduling.ResumeSchedule("nightly"),
        scheduling.ScheduleState,
    ),
}


@every_operation
def test_a_queue_runs_the_operation(kind: Any, queue: Queue) -> None:
    make, expected = CASES[kind]
    operation = make(*prepared(queue))
    answer = run(queue.behaviours, operation) if kind.instead else queue.run(operation)
    assert isinstance(answer, expected) if isinstance(expected, type) else answer == expected


def test_a_queue_in_memory_runs_operations() -> None:
    with penstock.open("memory:") as queue:
        id_ = queue.enqueue(b"x")
        assert [row.message.id for row in queue.run(Peek(3))] == [id_]
        assert queue.run(Cancel(id_)) is True
        assert queue.run(Cancel(id_)) is False


# -- routes ----------------------------------------------------------------------------------------


@every_operation
def test_an_operation_with_a_route_is_reachable_over_http(kind: Any) -> None:
    if kind.route is None:
        return
    method, path, status = kind.route
    below = f"{API}/messages/{{id}}" if issubclass(kind, MessageOperation) else QUEUE
    named = "{schedule}" if "/schedules" in path else "{group}"
    path = below + path.replace("{name}", named)
    (endpoint,) = [one for one in ENDPOINTS if (one.method, one.path) == (method, path)]
    assert (endpoint.verb, endpoint.status) == (kind.verb, status)
