"""The embedded queue's public face, for threads. `penstock.aio` is the same for asyncio.

Every method does its work on the core and then waits until the work is as durable as the sync
policy promises.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar, Unpack

from penstock.checking import Duration
from penstock.clock import Clock
from penstock.ledger import Damage
from penstock.ledger.compaction import CompactionResult
from penstock.ledger.files import Files
from penstock.model import (
    MAIN_GROUP_NAME,
    DeadLetter,
    HistoryEvent,
    LeasedMessage,
    Message,
    NewMessage,
    Payload,
    Published,
    PublishOptions,
    new_message,
)
from penstock.operations import Leased, Operation
from penstock.queue.behaviours import as_list, as_new, several, wait_ns_of
from penstock.queue.core import QueueCore
from penstock.queue.facade import A, Blocking, Groups, QueueMethods
from penstock.queue.handle import Handle
from penstock.queue.measuring import MetricsCollector, check_collector, measured
from penstock.queue.opening import open_core
from penstock.queue.operation_handlers import run
from penstock.queue.retry import RetryPolicy
from penstock.queue.settings import YEARS_S
from penstock.queue.streaming import Stopper, Streaming, is_stopped

__all__ = ["Queue", "open_core", "open_queue"]

_T = TypeVar("_T")
NO_WAIT = 0.0  # a sentinel: `is` is faster than `==`


def open_queue(
    path: str,
    settings: Mapping[str, object],
    *,
    read_only: bool = False,
    create: bool = True,
    files: Files | None = None,
    clock: Clock | None = None,
    on_damage: Callable[[Damage], None] | None = None,
    metrics: MetricsCollector | None = None,
    retry_policy: RetryPolicy | None = None,
) -> "Queue":
    """Open a queue's directory, or make one. Settings given here are stored with the queue."""
    check_collector(metrics)
    core = open_core(
        path,
        settings,
        read_only=read_only,
        create=create,
        files=files,
        clock=clock,
        on_damage=on_damage,
        retry_policy=retry_policy,
    )
    try:
        queue = Queue(core)
        return queue if metrics is None else measured(queue, metrics, core.clock)
    except BaseException:  # an interrupt
        core.close()
        raise


class Queue(Handle, QueueMethods, Streaming, Blocking):
    """A durable queue in a directory. Thread-safe; a context manager that closes it.

    >>> import penstock, tempfile
    >>> with penstock.open(tempfile.mkdtemp()) as queue:
    ...     id = queue.enqueue(b"hello")
    ...     with queue.lease_one() as job:
    ...         print(job.payload.decode())
    hello
    """

    def __init__(self, core: QueueCore) -> None:
        super().__init__(core, self)
        self._max_plain_bytes = self._behaviours.max_plain_bytes
        self._publish_plain = self._behaviours.publishing.publish_plain
        fast_path = self._behaviours.fast_path
        self._take, self._lease, self._ack = fast_path.take, fast_path.lease, fast_path.ack
        self._commits = core.settings.sync == "always"
        self.groups = Groups(self)

    # -- publishing --------------------------------------------------------------------------------

    def enqueue(self, payload: Payload, **options: Unpack[PublishOptions]) -> str:
        """Publish a message; its id. A duplicate's answer is the id of the first.

        Options are those of `NewMessage`, by name: priority, delay, deliver_at, ttl, headers, key,
        dedup_id, dedup_window_s, max_attempts, content_type, compression.
        """
        if not options and type(payload) is bytes and len(payload) <= self._max_plain_bytes:
            publish = self._publish_plain  # a local: callables in attributes are slow to call
            id_ = publish(payload)
            if self._commits:
                self._ledger.commit()
            return id_
        message = new_message(payload, options)
        return self.publish([message])[0].id

    def enqueue_batch(self, messages: Iterable[Payload | NewMessage]) -> list[str]:
        """Publish several messages, all or none; their ids in the same order."""
        if type(messages) is not list:
            messages = as_list(messages)
        if self._behaviours.all_plain(messages):
            ids = self._behaviours.publishing.publish_plain_batch(messages)  # type: ignore[arg-type]
            self._commit()
            return ids
        return [published.id for published in self.publish(as_new(messages))]

    def publish(self, messages: Iterable[NewMessage]) -> list[Published]:
        """As `enqueue_batch`, and says which messages were duplicates."""
        if type(messages) is not list:
            messages = as_list(messages)
        published = self._behaviours.publishing.publish(messages)
        self._commit()
        return published

    # -- delivering --------------------------------------------------------------------------------

    def lease(
        self,
        n: int = 1,
        lease_s: Duration | None = None,
        wait_s: Duration = NO_WAIT,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
        stopper: Stopper | None = None,
    ) -> list[LeasedMessage]:
        """Up to `n` messages, each to be settled before its deadline; waits for the first.

        `stopper.stop()` ends the wait; with one that is stopped already, nothing is leased.
        """
        if stopper is not None and is_stopped(stopper):
            return []
        if wait_s is not NO_WAIT:
            wait_ns_of(wait_s)  # refuses a bad one, also where nobody has to wait
        if n == 1 and lease_s is None and group is MAIN_GROUP_NAME and not holder:
            lease = self._lease
            leased = lease()
            if leased is not None:
                if self._commits:
                    self._ledger.commit()
                return [leased]
        return self._until(
            wait_s, lambda: self._behaviours.delivering.lease(n, lease_s, group, holder), stopper
        )

    @contextmanager
    def lease_one(
        self,
        *,
        lease_s: Duration | None = None,
        wait_s: Duration = NO_WAIT,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> Iterator[LeasedMessage | None]:
        """One message for the length of a `with` block: acked at its end, nacked if it raises.

        None if there was no message.
        """
        leased = self.lease(1, lease_s=lease_s, wait_s=wait_s, group=group, holder=holder)
        if not leased:
            yield None
            return
        with leased[0] as job:
            yield job

    def dequeue(self, wait_s: Duration = NO_WAIT, group: str = MAIN_GROUP_NAME) -> Message | None:
        """Take the next message for good, without a lease; None if there is none."""
        if wait_s is not NO_WAIT:
            wait_ns_of(wait_s)
        if group is MAIN_GROUP_NAME:
            take = self._take
            message = take()
            if message is not None:
                if self._commits:
                    self._ledger.commit()
                return message
        taken = self.dequeue_batch(1, wait_s=wait_s, group=group)
        return taken[0] if taken else None

    def dequeue_batch(
        self, n: int, wait_s: Duration = NO_WAIT, group: str = MAIN_GROUP_NAME
    ) -> list[Message]:
        """Take up to `n` messages for good."""
        return self._until(wait_s, lambda: self._behaviours.delivering.take(n, group))

    def _until(
        self, wait_s: Duration, attempt: Callable[[], list[_T]], stopper: Stopper | None = None
    ) -> list[_T]:
        """Try, and wait for an arrival or a due time, until something came or the time is over."""
        core, wait_ns = self._core, wait_ns_of(wait_s)
        if not wait_ns:
            found = attempt()
        else:
            waking = self._waking(stopper, core.arrived)
            with waking, core.lock, core.change, core.expecting():
                ends_ns = core.clock.monotonic_ns() + wait_ns
                while not (found := attempt()):
                    left_ns = ends_ns - core.clock.monotonic_ns()
                    if left_ns <= 0 or is_stopped(stopper):
                        break
                    core.wait(left_ns)
                    self._ledger.check_open()
        self._commit()
        return found

    # -- settling ----------------------------------------------------------------------------------

    def ack(
        self, leased: Leased | Iterable[Leased], *, emit: Sequence[Payload | NewMessage] = ()
    ) -> list[str]:
        """The work is done. With `emit`, follow-up messages are published in the same write."""
        ack = self._ack
        if type(leased) is LeasedMessage and not emit and ack(leased):
            if self._commits:
                self._ledger.commit()
            return []
        ids = self._behaviours.settling.ack(several(leased), as_new(emit))
        self._commit()
        return ids

    def _jobs(
        self,
        group: str,
        lease_s: Duration | None,
        idle_s: Duration | None,
        batch: int,
        stopper: Stopper | None,
    ) -> Iterator[LeasedMessage]:
        wait_s = YEARS_S if idle_s is None else idle_s
        while not is_stopped(stopper):
            leased = self.lease(batch, lease_s=lease_s, wait_s=wait_s, group=group, stopper=stopper)
            if not leased:
                return
            with self._one_by_one(leased, stopper) as jobs:
                yield from jobs

    # -- looking -----------------------------------------------------------------------------------

    def browse(
        self, state: str | None = None, *, group: str = MAIN_GROUP_NAME
    ) -> Iterator[Message]:
        """Messages by state, without consuming; all that are not done by default."""
        return self._behaviours.inspecting.browse(state, group)

    def history(self, id: str, *, group: str | None = None) -> list[HistoryEvent]:
        """Everything that happened to a message."""
        return self._behaviours.inspecting.history(id, group)

    def dead(self, *, group: str = MAIN_GROUP_NAME) -> Iterator[DeadLetter]:
        """The dead letters, oldest first, with the reason of their death in headers `dlq.…`."""
        self.stats()  # lets happen what is due, durably
        return self._behaviours.inspecting.dead(group)

    def lease_dead(
        self,
        n: int = 1,
        *,
        lease_s: Duration | None = None,
        group: str = MAIN_GROUP_NAME,
        holder: str = "",
    ) -> list[LeasedMessage]:
        """Lease dead letters, oldest first: an ack settles them for good, anything else leaves
        them dead."""
        leased = self._behaviours.delivering.lease_dead(n, lease_s, group, holder)
        self._commit()
        return leased

    def compact(
        self, *, on_progress: Callable[[CompactionResult], None] | None = None
    ) -> CompactionResult:
        """Give back disk space that no group and no retention setting needs."""
        return self._core.compacting.compact(on_progress)

    def run(self, operation: Operation[A]) -> A:
        """Run any operation of `penstock.operations` and return its answer."""
        events = self._ledger.events
        before = events.next_seq
        answer = run(self._behaviours, operation)
        if operation.writes or events.next_seq != before:  # leases may have been found to be over
            self._commit()
        return answer

    def close(self) -> None:
        """Save a snapshot, sync, let go of the directory. May be called again."""
        self._core.close()

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _commit(self) -> None:
        if self._commits:
            self._ledger.commit()
