"""Kill a process that writes to a queue, open what it leaves, and compare with what it said."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.ledger import Ledger, read_entry
from penstock.queue import Queue
from penstock.queue.queue import open_queue
from penstock.torture.child import SETTINGS, Told
from penstock.torture.children import Children


class Finding(NamedTuple):
    """A promise that was broken."""

    kind: str  # lost, came back, changed, twice, miscounted, failed, damage
    detail: str


class Killer:
    """Starts writers and kills them, one at a time."""

    def __init__(self) -> None:
        self._children = Children("penstock.torture.child")

    def run_and_kill(
        self,
        place: Path,
        sync: str,
        seed: str,
        told: Told,
        after_answers: int,
        *,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Start a writer and kill it after a number of answers; 0: while it opens, or soon after.

        `beside` is called once, after half of the answers, while the writer goes on.
        Raise ChildFailed if the writer ended by itself.
        """
        half, last = told.answers + (after_answers + 1) // 2, told.answers + after_answers
        self._children.start(f"{place} {sync} {seed}")
        if beside is not None and after_answers:
            self._children.hear(told, upto=half)
            beside()
        self._children.hear(told, upto=last)
        self._children.send(signal.SIGKILL)
        self._children.hear_the_rest(told)

    def close(self) -> None:
        """End the processes."""
        self._children.close()


def check_killed(place: Path, sync: str, told: Told) -> list[Finding]:
    """Open a queue whose writer was killed, and return the promises that it breaks."""
    try:
        with open_queue(str(place), {**SETTINGS, "sync": sync}) as queue:
            return check(queue, told)
    except PenstockError as error:
        return [Finding("failed", f"the queue does not open: {error}")]


def check(queue: Queue, told: Told) -> list[Finding]:
    """Return what differs from what was acknowledged, and what was never asked for."""
    findings = []

    def found(kind: str, detail: str) -> None:
        findings.append(Finding(kind, detail))

    states = {}
    for id_, payload in told.published.items():
        try:
            states[id_] = state = queue.state(id_)
            if queue.get(id_).payload.decode() != payload:
                found("changed", f"message {payload} has another payload")
        except PenstockError as error:
            found("lost", f"message {payload} was acknowledged: {error}")
            continue
        if id_ in told.acked or id_ in told.cancelled:
            if state != "done":
                found("came back", f"message {payload} was acked or cancelled, and is {state}")
        elif id_ not in told.acking and id_ not in told.cancelling and state == "done":
            found("lost", f"message {payload} is done, and was never acked")
    deliveries = queue.core.state.groups[0].deliveries
    for id_, attempt in told.nacked.items():
        if id_ not in told.cancelling and states.get(id_, "done") != "done":
            known = deliveries.get(queue.get(id_).seq)
            if known is None or known.attempt < attempt:
                found("lost", f"attempt {attempt} of message {told.published[id_]} is forgotten")
    payloads = [message.payload.decode() for message in queue.browse()]
    for ended in ("done", "cancelled"):
        payloads += [message.payload.decode() for message in queue.browse(ended)]
    if len(payloads) != len(set(payloads)):
        found("twice", f"{len(payloads) - len(set(payloads))} messages are in the queue twice")
    if foreign := set(payloads) - told.attempted:
        found("changed", f"{len(foreign)} messages were never published: {min(foreign)}")
    stats = queue.stats()
    waiting = stats.ready + stats.scheduled + stats.leased + stats.parked + stats.dead
    if not stats.published == waiting + stats.acked + stats.cancelled == len(payloads):
        found("miscounted", f"{stats.published} published; the states add up to another number")
    return findings


def read_beside(place: Path, told: Told, seen: set[str]) -> list[Finding]:
    """Read a queue beside its writer: everything acknowledged so far must be there.

    Adds the payloads to `seen`, to be compared when the writer has said all it did.
    """
    findings = []
    known = dict(told.published)
    with open_queue(str(place), {}, read_only=True, create=False) as queue:
        for id_, payload in known.items():
            try:
                if queue.get(id_).payload.decode() != payload:
                    findings.append(Finding("changed", f"a reader found other bytes in {payload}"))
            except PenstockError as error:
                findings.append(Finding("lost", f"a reader does not find {payload}: {error}"))
        seen.update(message.payload.decode() for message in queue.browse())
    return findings


def read_from_disk_again(place: Path) -> None:
    """Drop a queue's files from the page cache, so that they are read from the disk.

    Only Linux can do so.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for path in place.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())  # only clean pages can be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def lose_newest_message(place: Path, told: Told) -> None:
    """Cut a file before the newest acknowledged message, as a disk that lies about fsync would."""
    with open_queue(str(place), {}, read_only=True, create=False) as queue:
        seq = max(queue.get(id_).seq for id_ in told.published)
    with Ledger.open(str(place), read_only=True) as ledger:
        offset = read_entry(ledger.messages, seq).offset
        name = [each.name for each in ledger.messages.segments.all if each.base_seq <= seq][-1]
    os.truncate(place / "messages" / name, offset)
