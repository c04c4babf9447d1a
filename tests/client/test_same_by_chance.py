"""Any commands, on a directory and on a broker: the same answers, errors and counts."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.client import RemoteBroker, connect_broker
from penstock.errors import PenstockError
from penstock.model import LeasedMessage, NewMessage
from penstock.queue import Queue
from tests.server.running import RunningServer

SETTINGS: dict[str, Any] = {"max_attempts": 2, "backoff_base_s": 0, "sync": "never"}
COUNTS = (
    "ready",
    "scheduled",
    "leased",
    "parked",
    "dead",
    "published",
    "acked",
    "nacked",
    "cancelled",
    "redriven",
)
_numbers = count(1)

places = st.integers(0, 30)  # of a message or lease, counted round and round
groups = st.sampled_from(["main", "main", "audit", "late"])
COMMANDS = st.one_of(
    st.tuples(
        st.just("enqueue"),
        st.fixed_dictionaries(
            {},
            optional={
                "priority": st.integers(-1, 10),
                "key": st.sampled_from(["a", "b"]),
                "dedup_id": st.sampled_from(["x", "y"]),
                "delay": st.sampled_from([0, 3600]),
                "ttl": st.sampled_from([0, 3600]),
                "max_attempts": st.integers(0, 3),
            },
        ),
    ),
    st.tuples(st.just("enqueue_batch"), st.integers(0, 4)),
    st.tuples(st.just("lease"), st.integers(0, 4), groups),
    st.tuples(st.just("lease_dead"), st.integers(1, 3), groups),
    st.tuples(st.sampled_from(["ack", "nack", "release", "extend"]), places),
    st.tuples(st.just("ack_and_emit"), places),
    st.tuples(st.just("dequeue"), groups),
    st.tuples(st.just("peek"), st.integers(0, 5), groups),
    st.tuples(
        st.just("browse"), st.sampled_from([None, "ready", "leased", "dead", "done"]), groups
    ),
    st.tuples(st.sampled_from(["state", "why", "history", "cancel", "redrive"]), places),
    st.tuples(st.sampled_from(["redrive_all", "discard_all", "purge"]), groups),
    st.tuples(st.sampled_from(["pause", "resume", "dead"])),
    st.tuples(st.just("seek"), st.sampled_from(["beginning", "end"]), groups),
    st.tuples(st.sampled_from(["create_group", "delete_group"]), groups),
)


class Side:
    """One of the two, and what it answered so far."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.ids: list[str] = []
        self.jobs: list[LeasedMessage] = []
        self.acked: set[str] = set()
        self._payloads = count(1)

    def do(self, command: tuple[Any, ...]) -> object:
        """The answer, in words that are the same for both."""
        name, *arguments = command
        try:
            return getattr(self, f"_{name}")(*arguments)
        except PenstockError as error:
            return type(error).__name__

    def counts(self) -> dict[str, dict[str, int]]:
        stats = self.queue.stats()
        return {
            group: {name: getattr(counts, name) for name in COUNTS if hasattr(counts, name)}
            for group, counts in stats.groups.items()
        } | {"all": {name: getattr(stats, name) for name in COUNTS}}

    # -- commands ----------------------------------------------------------------------------------

    def _payload(self) -> bytes:
        return b"%d" % next(self._payloads)

    def _enqueue(self, options: dict[str, Any]) -> object:
        (published,) = self.queue.publish([NewMessage(payload=self._payload(), **options)])
        self.ids.append(published.id)
        return published.duplicate

    def _enqueue_batch(self, size: int) -> object:
        self.ids += self.queue.enqueue_batch([self._payload() for _ in range(size)])
        return size

    def _lease(self, n: int, group: str) -> object:
        return self._leased(self.queue.lease(n, group=group))

    def _lease_dead(self, n: int, group: str) -> object:
        return self._leased(self.queue.lease_dead(n, group=group))

    def _leased(self, jobs: list[LeasedMessage]) -> object:
        self.jobs += jobs
        return [(job.payload, job.attempt, job.priority, job.key, job.group) for job in jobs]

    def _job(self, place: int) -> LeasedMessage | None:
        """One that was not acked: doing that again is the one thing that may differ."""
        left = [job for job in self.jobs if job.receipt not in self.acked]
        return left[place % len(left)] if left else None

    def _ack(self, place: int) -> object:
        job = self._job(place)
        if job is None:
            return None
        self.queue.ack(job)
        self.acked.add(job.receipt)
        return "acked"

    def _ack_and_emit(self, place: int) -> object:
        job = self._job(place)
        if job is None:
            return None
        emitted = self.queue.ack(job, emit=[self._payload()])
        self.acked.add(job.receipt)
        self.ids += emitted
        return len(emitted)

    def _nack(self, place: int) -> None:
        job = self._job(place)
        if job is not None:
            self.queue.nack(job, "why not")

    def _release(self, place: int) -> None:
        job = self._job(place)
        if job is not None:
            self.queue.release(job)

    def _extend(self, place: int) -> None:
        job = self._job(place)
        if job is not None:
            self.queue.extend(job, 600)

    def _dequeue(self, group: str) -> object:
        message = self.queue.dequeue(group=group)
        return message and message.payload

    def _peek(self, n: int, group: str) -> object:
        return [message.payload for message in self.queue.peek(n, group=group)]

    def _browse(self, state: str | None, group: str) -> object:
        return [message.payload for message in self.queue.browse(state, group=group)]

    def _id(self, place: int) -> str | None:
        return self.ids[place % len(self.ids)] if self.ids else None

    def _state(self, place: int) -> object:
        id_ = self._id(place)
        return id_ and self.queue.state(id_)

    def _why(self, place: int) -> object:
        id_ = self._id(place)
        return id_ and self.queue.why(id_).code

    def _history(self, place: int) -> object:
        id_ = self._id(place)
        return id_ and [(one.event, one.group, one.attempt) for one in self.queue.history(id_)]

    def _cancel(self, place: int) -> object:
        id_ = self._id(place)
        return id_ and self.queue.cancel(id_)

    def _redrive(self, place: int) -> object:
        id_ = self._id(place)
        return id_ and self.queue.redrive(id_)

    def _redrive_all(self, group: str) -> object:
        return self.queue.redrive(group=group)

    def _discard_all(self, group: str) -> object:
        return self.queue.discard(group=group)

    def _purge(self, group: str) -> object:
        return self.queue.purge(group=group)

    def _pause(self) -> None:
        self.queue.pause()

    def _resume(self) -> None:
        self.queue.resume()

    def _dead(self) -> object:
        return sorted((one.payload, one.attempts, one.reason) for one in self.queue.dead())

    def _seek(self, to: str, group: str) -> object:
        return self.queue.seek(to, group=group)

    def _create_group(self, group: str) -> None:
        self.queue.groups.create(group)

    def _delete_group(self, group: str) -> None:
        self.queue.groups.delete(group)


@pytest.fixture(scope="module")
def broker(server: RunningServer) -> Iterator[RemoteBroker]:
    with connect_broker(server.url) as broker:
        yield broker


@settings(max_examples=60)
@given(commands=st.lists(COMMANDS, max_size=25))
def test_both_answer_alike(
    broker: RemoteBroker, tmp_path_factory: pytest.TempPathFactory, commands: list[tuple[Any, ...]]
) -> None:
    number = next(_numbers)
    path: Path = tmp_path_factory.mktemp("queue")
    name = f"chance/queue-{number}"
    broker.create_queue(name, **SETTINGS)
    with penstock.open(path, **SETTINGS) as embedded:
        here, there = Side(embedded), Side(broker.queue(name))  # type: ignore[arg-type]
        for command in commands:
            assert there.do(command) == here.do(command), command
        assert there.counts() == here.counts()
    broker.delete_queue(name)
