"""Whichever file call fails in the life of a queue: what it holds in memory is what its logs say.

A life is lived again and again, and each time another call of it fails. What was answered is true;
what was refused did not happen, or is unknown where the queue had to stop; and after every step,
what the open queue shows is what another process would find in its files.
"""

import errno
import logging
from collections.abc import Callable, Iterator

import pytest

from penstock.clock import ManualClock
from penstock.errors import PenstockError, ReceiptInvalid
from penstock.ledger.memory_files import MemoryFiles
from penstock.model import LeasedMessage
from penstock.queue import NewMessage, Queue
from penstock.queue.queue import open_core
from tests.harness.faults import FAILS_WITH, SHORT_WRITE, Fault, FaultyFiles
from tests.harness.queue_plots import state_of

PATH = "/queue"
ROOM_BYTES = 1 << 16
PARTS = 8
SETTINGS = {
    "segment_bytes": 700,
    "min_free_bytes": 0,
    "auto_compact": False,
    "max_attempts": 2,
    "snapshot_every": 12,
}
FAULTS = {
    "EIO": (errno.EIO, FAILS_WITH[errno.EIO]),
    "ENOSPC": (errno.ENOSPC, FAILS_WITH[errno.ENOSPC]),
    "EMFILE": (errno.EMFILE, FAILS_WITH[errno.EMFILE]),
    "short write": (SHORT_WRITE, frozenset({"pwrite"})),
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("penstock.ledger", "penstock.queue"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)


class FaultyQueueLife:
    """A queue over files of which some call fails, and what it was answered."""

    def __init__(self, sync: str, fault: Fault) -> None:
        self.disk = MemoryFiles(mapped_room_bytes=ROOM_BYTES)
        self.files = FaultyFiles(self.disk, fault)
        self.settings = {**SETTINGS, "sync": sync}
        self.clock = ManualClock()
        self.queue: Queue | None = None
        self.published: list[str] = []
        self.done: list[str] = []
        self.leased: list[LeasedMessage] = []
        self.errors: list[PenstockError] = []

    def live(self) -> None:
        for step in (self.open, *self.steps(), self.close):
            try:
                step()
            except PenstockError as error:
                self.errors.append(error)
            if self.files.failures:  # nothing is wrong before
                self.compare()
        self.compare()

    def opened(self) -> Queue:
        """The queue; opened anew, as by another process, where it had to stop."""
        if self.queue is None or self.queue.core.ledger.is_stopped:
            self.open()
        assert self.queue is not None
        return self.queue

    def open(self) -> None:
        if self.queue is not None:  # the process that had to stop has ended
            self.disk = MemoryFiles(self.disk.image(), mapped_room_bytes=ROOM_BYTES)
            self.files.files, self.queue = self.disk, None
        self.queue = self.queue_over(self.files)

    def queue_over(self, files: "MemoryFiles | FaultyFiles") -> Queue:
        return Queue(
            open_core(PATH, self.settings, files=files, clock=self.clock, on_dirty=lambda: None)
        )

    def close(self) -> None:
        if self.queue is not None:
            self.queue.close()

    def compare(self) -> None:
        """What this process has in memory is what the next one finds."""
        alive = self.queue is not None and not self.queue.core.ledger.is_stopped
        if self.queue is not None and alive:
            self.queue.sync()  # what was recorded, and refused because it could not be synced
        copy = MemoryFiles(self.disk.image(), mapped_room_bytes=ROOM_BYTES)
        if not copy.exists(f"{PATH}/queue.json"):
            assert not self.published
            return
        found = self.queue_over(copy)
        if self.queue is not None and alive:
            assert state_of(found) == state_of(self.queue), "memory is not what the log says"
        for id_ in self.published:
            assert found.get(id_), "an answered message is gone"
        for id_ in self.done:
            assert found.state(id_) == "done", "a settled message is back"

    # -- the life ----------------------------------------------------------------------------------

    def steps(self) -> Iterator[Callable[[], object]]:
        for number in range(2):
            yield from (self.publish, self.publish_batch, self.lease, self.ack, self.dequeue)
            yield from (self.lease, self.nack, self.time_passes, self.lease, self.ack_and_emit)
            yield from ((self.make_group, self.cancel), (self.compact, self.redrive))[number]
            yield from ((self.seek,), (self.purge,))[number]
            yield from (self.reopen, self.lease, self.release)

    def publish(self) -> None:
        self.published.append(self.opened().enqueue(b"plain"))

    def publish_batch(self) -> None:
        new = [
            NewMessage(payload=b"." * 40, priority=9, dedup_id="once"),
            NewMessage(payload=b"", key="k"),
            NewMessage(payload=b"", key="k", delay=1),
        ]
        self.published += [p.id for p in self.opened().publish(new) if not p.duplicate]

    def lease(self) -> None:
        self.leased += self.opened().lease(2)

    def settle(self, settle: Callable[[LeasedMessage], object]) -> LeasedMessage | None:
        queue = self.opened()
        if not self.leased:
            return None
        one = self.leased.pop(0)
        settle(one)
        assert queue is self.queue
        return one

    def ack(self) -> None:
        one = self.settle(lambda one: self.opened().ack(one.receipt))
        self.done += [one.id] if one else []

    def ack_and_emit(self) -> None:
        emitted: list[str] = []
        one = self.settle(lambda one: emitted.extend(self.opened().ack(one, emit=[b"a", b"b"])))
        self.published += emitted
        self.done += [one.id] if one else []

    def nack(self) -> None:
        self.settle(lambda one: self.opened().nack(one, "it failed"))

    def release(self) -> None:
        self.settle(lambda one: self.opened().release(one))

    def dequeue(self) -> None:
        message = self.opened().dequeue()
        self.done += [message.id] if message else []

    def time_passes(self) -> None:
        self.clock.advance(40)
        self.opened().stats()

    def make_group(self) -> None:
        self.opened().groups.create("audit")

    def redrive(self) -> None:
        self.opened().redrive()

    def cancel(self) -> None:
        if self.published:
            self.opened().cancel(self.published[-1])
            self.done.append(self.published[-1])

    def seek(self) -> None:
        self.done = []  # some of it is to be done again
        self.leased = []
        self.opened().seek("beginning")

    def purge(self) -> None:
        self.opened().purge()

    def compact(self) -> None:
        self.published = []  # some of it may go
        self.done = []
        self.opened().compact()

    def reopen(self) -> None:
        self.opened().close()
        self.open()


def fail_every_call(sync: str, kind: str, part: int) -> int:
    """One life for each call that can fail so, of a part of them; how many there are in all."""
    error, methods = FAULTS[kind]
    sound = FaultyQueueLife(sync, Fault(nth=0, methods=methods))
    sound.live()
    assert not [error for error in sound.errors if not isinstance(error, ReceiptInvalid)]
    calls = sound.files.chosen_calls
    for nth in range(1 + part, calls + 1, PARTS):
        life = FaultyQueueLife(sync, Fault(nth, error, methods=methods))
        try:
            life.live()
        except Exception as problem:
            where = life.files.failures[:1]
            raise AssertionError(f"{kind} at call {nth} {where}: {problem!r}") from problem
    return calls


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("sync", ["always", "never"])
def test_memory_is_what_the_log_says_whichever_call_fails(sync: str, kind: str, part: int) -> None:
    assert fail_every_call(sync, kind, part) > 20
