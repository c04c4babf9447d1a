"""Write imported messages into a new queue, at the times at which they were published.

The queue is filled with a clock that shows the time of each message. So ids, ages and expiry are
as in the other queue. It is built beside its place and renamed when it is complete: after an error
or a crash there is no half of it.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING

from penstock.codec import parse_id
from penstock.errors import InvalidInput
from penstock.importing.record import Imported, ImportFailed, Source
from penstock.model import MAIN_GROUP_NAME, NS, LeasedMessage, NewMessage
from penstock.queue.behaviours import Behaviours
from penstock.queue.queue import open_queue
from penstock.queue.settings import MOST_ATTEMPTS

if TYPE_CHECKING:
    from penstock.queue import Queue


@dataclass(frozen=True, slots=True)
class ImportResult:
    """How many messages were imported, by state, and what was left out."""

    waiting: int
    done: int
    dead: int
    refused: int
    problems: tuple[str, ...]


class _MessageTime:
    """A clock that shows the time of the message being written. It never goes back."""

    def __init__(self) -> None:
        self._ns = 0

    def move_to(self, timestamp_ns: int) -> None:
        self._ns = max(self._ns, timestamp_ns)

    def now_ns(self) -> int:
        return self._ns

    def monotonic_ns(self) -> int:
        return self._ns

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        """Return at once: nothing waits during an import."""


def import_queue(
    source: Source,
    target: str,
    *,
    settings: Mapping[str, object] | None = None,
    skip_refused: bool = False,
    on_message: Callable[[], None] | None = None,
) -> ImportResult:
    """Create the queue `target` with the messages of `source`.

    A message that Penstock refuses (a header that is too long, say) ends the import; with
    `skip_refused` it is left out. Raise InvalidInput if the target exists.
    """
    if "://" in target:
        raise InvalidInput(f"{target} is a URL: import into a directory, and serve that directory.")
    place = Path(target)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidInput(f"{target} exists: import into a new directory.")
    place.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{place.name}.importing-", dir=place.parent))
    try:
        writer = _Writer(str(building / "queue"), source, dict(settings or {}), skip_refused)
        result = writer.write(on_message or _ignore)
        if place.exists():
            place.rmdir()
        os.rename(building / "queue", place)
        _sync_directory(place.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return result


class _Writer:
    """Fills the new queue with one message after another."""

    def __init__(
        self, path: str, source: Source, settings: dict[str, object], skip_refused: bool
    ) -> None:
        self._path, self._source, self._skip_refused = path, source, skip_refused
        if source.max_attempts is not None:
            settings.setdefault("max_attempts", min(source.max_attempts, MOST_ATTEMPTS))
        self._settings = settings
        self._clock = _MessageTime()
        self._counts = {"waiting": 0, "done": 0, "dead": 0}
        self._refused = 0

    def write(self, on_message: Callable[[], None]) -> ImportResult:
        messages = iter(self._source.messages())
        first = next(messages, None)
        if first is not None:
            self._clock.move_to(first.timestamp_ns)
        with open_queue(self._path, self._settings, clock=self._clock) as queue:
            while first is not None:
                self._write_one(queue, first)
                on_message()
                first = next(messages, None)
        problems = tuple(self._source.problems)
        return ImportResult(**self._counts, refused=self._refused, problems=problems)

    def _write_one(self, queue: "Queue", message: Imported) -> None:
        self._clock.move_to(message.timestamp_ns)
        try:
            [published] = queue.publish([self._new(message)])
        except InvalidInput as error:
            if not self._skip_refused:
                raise ImportFailed(
                    f"{self._source.name}: {message.origin} cannot be imported: {error} "
                    "Nothing was created. To leave such messages out, use --skip-refused."
                ) from error
            self._refused += 1
            return
        self._counts[message.state] += 1
        self._settle(queue, message, published.id)

    def _new(self, message: Imported) -> NewMessage:
        ttl = deliver_at = None
        if message.expires_ns is not None:
            ttl = max(message.expires_ns - self._clock.now_ns(), 1) / NS
        if message.deliver_ns is not None and message.deliver_ns > self._clock.now_ns():
            deliver_at = message.deliver_ns / NS
        return NewMessage(
            payload=message.payload,
            priority=message.priority,
            headers=dict(message.headers) or None,
            content_type=message.content_type,
            ttl=ttl,
            deliver_at=deliver_at,
        )

    def _settle(self, queue: "Queue", message: Imported, id: str) -> None:
        """Repeat what happened to the message: its failed deliveries, its end."""
        behaviours, seq = queue.behaviours, parse_id(id)[2]
        failures = max(message.failures, 1) if message.state == "dead" else message.failures
        for number in range(1, failures + 1):
            is_last = number == failures
            delay_ns = max((message.deliver_ns or 0) - self._clock.now_ns(), 0) if is_last else 0
            behaviours.settling.nack(
                _lease(behaviours, seq),
                message.reason,
                delay_ns / NS,
                final=is_last and message.state == "dead",
            )
        if message.state == "done":
            behaviours.settling.ack(_lease(behaviours, seq))


def _lease(behaviours: Behaviours, seq: int) -> list[LeasedMessage]:
    return behaviours.delivering.lease_seq(seq, None, MAIN_GROUP_NAME, "")


def _ignore() -> None:
    pass


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
