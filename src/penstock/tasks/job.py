"""A job: one call of a task, published. Its state is the state of its message."""

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from penstock.checking import Duration, check_seconds
from penstock.errors import NoSuchMessage, PenstockError
from penstock.model import RetryInfo, Why
from penstock.queue.facade import AnyQueue
from penstock.queue.settings import YEARS_S
from penstock.tasks.arguments import Arguments
from penstock.tasks.ending import FORGOTTEN, End, how_it_ended, how_removed_ones_ended
from penstock.tasks.envelope import unpack
from penstock.tasks.progress import JobProgress
from penstock.tasks.results import dedup_id_of

if TYPE_CHECKING:
    from penstock.tasks.registry import Tasks

T = TypeVar("T")

_ANY = msgspec.json.Decoder(Any)
_ENDED = ("done", "dead", "expired", "cancelled")


class ResultError(PenstockError):
    """There is no result of a job, or not yet."""


class NotFinished(ResultError):
    """The job is not finished. Wait longer, or look at why()."""


class JobFailed(ResultError):
    """The job is a dead letter, was cancelled or has expired."""


class NoResult(ResultError):
    """The job is done, and its result was not kept, or not that long."""


class Job(Generic[T]):
    """A published call of a task. `T` is what the function returns."""

    __slots__ = ("_arguments", "_result_key", "_tasks", "id", "is_duplicate", "queue_name")

    def __init__(
        self,
        tasks: "Tasks",
        queue_name: str,
        id: str,
        arguments: Arguments | None = None,
        *,
        result_key: str = "",
        is_duplicate: bool = False,
    ) -> None:
        self._tasks = tasks
        self._arguments = arguments  # of the task, to read the result by its annotation
        self._result_key = result_key or dedup_id_of(id)
        self.queue_name = queue_name
        self.id = id
        self.is_duplicate = is_duplicate  # an earlier job stands for this call: its id is `id`

    def __repr__(self) -> str:
        return f"<Job {self.id} in {self.queue_name}>"

    @property
    def _queue(self) -> AnyQueue:
        return self._tasks.queue(self.queue_name)

    def state(self) -> str:
        """Return the state: ready, scheduled, leased, parked, dead, done, expired, cancelled."""
        return self._queue.state(self.id)

    def why(self) -> Why:
        """Return why the job is not running now, or what it does."""
        return self._queue.why(self.id)

    def progress(self) -> JobProgress | None:
        """Return what the running attempt said last of its progress; None if it said nothing."""
        details: Any = self._queue.why(self.id).details
        if "progress" not in details:
            return None
        return JobProgress(details["progress"], details["note"], details["progress_at"])

    def retry_info(self) -> RetryInfo:
        """Return the attempts so far, the last reason and the time of the next attempt."""
        return self._queue.retry_info(self.id)

    def cancel(self) -> bool:
        """Cancel the job. An attempt that runs is interrupted when its lease is renewed next.

        Return False if it was done already.
        """
        return self._queue.cancel(self.id)

    def result(self, wait_s: Duration = 0) -> T:
        """Return what the function returned; wait for it up to `wait_s`.

        Raise NotFinished, JobFailed or NoResult.
        """
        wait_s = check_seconds("wait_s", wait_s, 0, YEARS_S)
        if (found := self._look()) is None and wait_s:
            self._queue.wait_ended(self.id, wait_s)
            found = self._look()  # also at the deadline: a job that expired wakes no wait
        return self._finished(found)

    async def aresult(self, wait_s: Duration = 0) -> T:
        """Do the same without blocking the event loop, nor a thread while it waits."""
        wait_s = check_seconds("wait_s", wait_s, 0, YEARS_S)
        found = await asyncio.to_thread(self._look)
        if found is None and wait_s:
            async with self._queue.for_tasks() as queue:
                await queue.wait_ended(self.id, wait_s)
            found = await asyncio.to_thread(self._look)
        return await asyncio.to_thread(self._finished, found)

    def _finished(self, found: bytes | None) -> T:
        if found is None:
            raise NotFinished(f"job {self.id} is not finished: {self.why().sentence}")
        return self._read(found)

    def _look(self) -> bytes | None:
        """Return the payload of the result; None if the job is not finished."""
        queue = self._queue
        found = queue.find(self._result_key)
        if found is None:
            end = self._end()
            if end is None:
                return None
            found = queue.find(self._result_key)  # it may have ended between the two looks
            if found is None:
                raise self._error_of(end)
        try:
            return queue.get(found).payload
        except NoSuchMessage:
            raise NoResult(f"the result of job {self.id} was removed by retention") from None

    def _error_of(self, end: End) -> ResultError:
        """Return what to raise for a job that ended without a result."""
        if end.state == FORGOTTEN:
            return NoResult(f"job {self.id} has no result: how it ended is not known any more")
        if end.state != "done":
            because = f": {end.reason}" if end.reason else ""
            return JobFailed(f"job {self.id} is {end.state}{because}")
        return NoResult(f"job {self.id} is done, and has no result: {self._advice()}")

    def _end(self) -> End | None:
        """Return how the job ended; None if it is not finished."""
        queue = self._queue
        try:
            state = queue.state(self.id)
            if state not in _ENDED:
                return None
            if state == "done" and queue.find(self._result_key) is not None:
                return End("done")
            end = how_it_ended(queue, self.id) if state == "done" else End(state)
            if end.state == "done":
                return end
            reason = queue.retry_info(self.id).reason.partition("\n")[0]
            return End(end.state, reason or end.reason)
        except NoSuchMessage:  # removed by compaction, which keeps what is not done
            return how_removed_ones_ended(queue, [self.id]).get(self.id)

    def _advice(self) -> str:
        """Return what to do for a result that is not kept."""
        for limit in self._queue.limits().limits:
            if limit.name == "result_entries" and limit.used >= limit.most:
                return (
                    f"the queue keeps the newest {int(limit.most):,} results; read it sooner, or "
                    f"raise result_entries (or set keep_result_s of the task, if it is not set)"
                )
        return (
            "its function raised Discard, or keep_result_s of the task is not set, or that time "
            "is over"
        )

    def _read(self, payload: bytes) -> T:
        envelope = unpack(payload)
        if envelope is None or envelope.result_of != self.id:
            raise NoResult(f"the result of job {self.id} cannot be read")
        if envelope.error:
            raise NoResult(f"the result of job {self.id} was not kept: {envelope.error}")
        decoder = _ANY if self._arguments is None else self._arguments.result_decoder
        try:
            value: Any = decoder.decode(envelope.value)
        except msgspec.MsgspecError as error:
            raise NoResult(
                f"the result of job {self.id} is not what the function's annotation says: {error}"
            ) from None
        result: T = value
        return result
