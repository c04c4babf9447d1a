"""The jobs that one connection has reserved, and which of them runs out first."""

from operator import attrgetter
from typing import TYPE_CHECKING

from penstock.broker import Settlement
from penstock.broker.access import INSIDE
from penstock.errors import PenstockError
from penstock.model import LeasedMessage, Receipt, Ticket
from penstock.operations import LeaseMessage, Redrive
from penstock.server.beanstalk.mapping import RELEASED
from penstock.server.beanstalk.tubes import Tube
from penstock.server.ticks import NEVER

if TYPE_CHECKING:
    from penstock.server.beanstalk.connection import Connection

_RELEASED_AT_ONCE = 100  # by one call, so that other connections have their turn
_ends = attrgetter("ends")


class Job:
    """A job that a connection has reserved. It does not keep the body."""

    __slots__ = (
        "ends",
        "id",
        "is_by_id",
        "message_id",
        "seq",
        "ticket",
        "ttr_s",
        "tube",
        "was_dead",
    )

    def __init__(self, id: int, tube: Tube, leased: LeasedMessage, ttr_s: int, ends: float) -> None:
        message, ticket = leased
        self.id = id
        self.tube = tube
        self.seq = message[1]
        self.message_id = message[0]
        self.ticket: Ticket = ticket
        self.ttr_s = ttr_s
        self.ends = ends  # in the loop's time
        self.is_by_id = self.was_dead = False  # of reserve-job

    @property
    def read(self) -> Receipt:
        """Return the receipt as the broker reads it."""
        identity, group, _, attempt, nonce, _, _ = self.ticket
        return Receipt(identity, group, attempt, self.seq, nonce)

    @property
    def receipt(self) -> str:
        return self.read.pack()


class ReservedJobs(dict[int, Job]):
    """Jobs by id.

    The first end is remembered: a reserve that finds nothing asks for it, and must not look at all
    jobs each time. It is exact as long as that job is there and was not touched; else no job ends
    before it.
    """

    __slots__ = ("_first", "_first_end")

    def __init__(self) -> None:
        super().__init__()
        self._first: Job | None = None
        self._first_end = NEVER

    def keep(self, one: LeasedMessage, tube: Tube, ttr_s: int, now: float) -> Job:
        """Add a leased job. Its tube has a number."""
        id_ = tube.base | one[0][1]
        ends = now + ttr_s
        job = self[id_] = Job(id_, tube, one, ttr_s, ends)
        if ends < self._first_end:
            self._first, self._first_end = job, ends
        return job

    def ends_within(self, seconds: float, now: float) -> bool:
        """Return whether a job runs out so soon."""
        latest = now + seconds
        return self._first_end <= latest and self.first_end(now) <= latest

    def first_end(self, now: float) -> float:
        """Return when the first job runs out; NEVER if there is none. Forget those that did."""
        first = self._first
        if first is None or first.ends <= now or not self._is_exact(first):
            for job in [job for job in self.values() if job.ends <= now]:
                del self[job.id]
            first = self._first = min(self.values(), key=_ends, default=None)
            self._first_end = NEVER if first is None else first.ends
        return self._first_end

    def _is_exact(self, first: Job) -> bool:
        return first.ends == self._first_end and self.get(first.id) is first


# -- giving back -----------------------------------------------------------------------------------


def give_back(connection: "Connection") -> None:
    """Release all jobs of a connection that is closed, a part at a time."""
    jobs, connection.jobs = list(connection.jobs.values()), ReservedJobs()
    broker = connection.broker
    if jobs and broker.is_open:
        receipts = [job.receipt for job in jobs[:_RELEASED_AT_ONCE] if not job.is_by_id]
        broker.release(receipts)
        by_id = [job for job in jobs[:_RELEASED_AT_ONCE] if job.is_by_id]
        more = jobs[_RELEASED_AT_ONCE:]
        if by_id or more:
            broker.background.run(_release_all(connection, by_id, more))


async def _release_all(connection: "Connection", by_id: list[Job], more: list[Job]) -> None:
    for start in range(0, len(more), _RELEASED_AT_ONCE):
        part = more[start : start + _RELEASED_AT_ONCE]
        by_id += [job for job in part if job.is_by_id]
        settlements = [Settlement("release", job.receipt) for job in part if not job.is_by_id]
        try:
            if settlements:
                await connection.broker.settle(INSIDE, settlements)
        except PenstockError:
            continue  # their leases run out
    for job in by_id:
        try:
            await release_by_id(connection, job, 0)
        except PenstockError:
            continue


async def release_by_id(connection: "Connection", job: Job, delay_s: int) -> bool:
    """Make a job of `reserve-job` ready, also if it was delayed or buried before."""
    if not job.was_dead:
        nack = Settlement("nack", job.receipt, reason=RELEASED, delay_s=delay_s)
        return await connection.settle(nack)
    if not await connection.settle(Settlement("release", job.receipt)):
        return False
    broker, caller, queue = connection.broker, connection.caller, job.tube.queue
    await broker.run(caller, Redrive((job.message_id,)), queue)
    if delay_s:
        for one in await broker.run(caller, LeaseMessage(job.seq), queue):
            nack = Settlement("nack", one.receipt, reason=RELEASED, delay_s=delay_s)
            await connection.settle(nack)
    return True
