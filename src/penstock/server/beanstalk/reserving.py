"""A reserve: lease a job of the first watched tube that has one, or wait for it in all of them."""

import asyncio
from asyncio import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker import Settlement
from penstock.errors import NoSuchQueue, PenstockError, Unavailable
from penstock.model import NS, LeasedMessage
from penstock.server.beanstalk.answers import Answer
from penstock.server.beanstalk.mapping import lease_ns_of
from penstock.server.beanstalk.tubes import Tube
from penstock.server.coroutines import error_of
from penstock.server.ticks import NEVER

if TYPE_CHECKING:
    from penstock.server.beanstalk.connection import Connection

SAFETY_S = 1.0  # the last part of a time to run, in which a reserve does not wait
_MOST_RESERVED = 100_000  # jobs of one connection
_MOST_WAIT_S = 10**8
_TOLERANCE_NS = NS // 2  # times to run are whole seconds


def reserve(connection: "Connection", name: str, timeout_s: int = -1) -> None:
    """Reserve a job. A negative timeout waits without a limit, as none does."""
    connection.is_worker = True
    if len(connection.jobs) >= _MOST_RESERVED:
        connection.refuse("OUT_OF_MEMORY")
    elif len(connection.watched) == 1:
        connection.quick_reserve.start(name, timeout_s)
    else:
        Reservation(connection, connection.block(name), timeout_s).start()


# -- handing over ----------------------------------------------------------------------------------


def hand_over(
    connection: "Connection", one: LeasedMessage, tube: Tube, answer: Answer | None
) -> None:
    """Answer a reserve with a leased job. `answer`: None if no place is kept for it yet.

    Its lease may have another length than its time to run, if the reserve waited or another broker
    has the queue. Then it is extended first. A tube gets its number with its first job.
    """
    ticket, ttr_ns = one[1], lease_ns_of(one[0])
    is_numbered = ticket[0] == tube.identity or connection.tubes.learn(tube, ticket[0])
    off_ns = ticket[5] - connection.broker.clock.now_ns() - ttr_ns
    if is_numbered and -_TOLERANCE_NS < off_ns < _TOLERANCE_NS:
        data = _take(connection, one, tube, ttr_ns // NS)
        if answer is None:
            connection.answer(data)
        else:
            answer.give(data)
        return
    if answer is None:
        answer = connection.block("reserve")
    connection.go_on(answer, _prepare(connection, one, tube, ttr_ns // NS))


async def _prepare(connection: "Connection", one: LeasedMessage, tube: Tube, ttr_s: int) -> bytes:
    """Give a job its id, and its lease the right length. Return the answer."""
    is_ready = False
    try:
        await connection.tubes.job_id(tube, one.ticket.identity, one.seq)
        if not await connection.settle(Settlement("extend", one.receipt, lease_s=ttr_s)):
            raise Unavailable("the lease ended before it could be extended")
        is_ready = not connection.is_closed
    finally:
        if not is_ready:
            connection.broker.give_back([one])
    tube.ttr_s = ttr_s
    return _take(connection, one, tube, ttr_s) if is_ready else b""


def _take(connection: "Connection", one: LeasedMessage, tube: Tube, ttr_s: int) -> bytes:
    """Note that the connection has a job. Return the answer."""
    watched = connection.watched
    if len(watched) > 1 and tube in watched:
        connection.turn = watched.index(tube) + 1
    job, body = connection.jobs.keep(one, tube, ttr_s, connection.loop.time()), one[0][2]
    return b"RESERVED %d %d\r\n%s\r\n" % (job.id, len(body), body)


class QuickReserve:
    """A reserve of the only watched tube, as long as it need not wait for a job.

    A connection has one of these, because it has one reserve at a time.
    """

    __slots__ = ("_answer", "_connection", "_name", "_timeout_s", "_tube")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._answer: Answer | None = None  # its place, if it waits for the disk
        self._name = ""
        self._timeout_s = 0
        self._tube: Tube

    def start(self, name: str, timeout_s: int) -> None:
        connection = self._connection
        tube, broker = connection.watched[0], connection.broker
        self._name, self._timeout_s, self._tube, self._answer = name, timeout_s, tube, None
        if tube.paused_until or not broker.has_queue(tube.queue):
            self._wait()
            return
        try:
            found = broker.lease_one(connection.caller, tube.queue, self, lease_ns_of)
        except PenstockError as error:
            self.fail(error)
            return
        if isinstance(found, list):
            self.succeed(found)
        else:
            self._answer = connection.block(name)
            if found is not None:
                found.add_done_callback(self._leased)

    def _leased(self, leasing: "Future[list[LeasedMessage]]") -> None:
        error = error_of(leasing)
        if error is None:
            self.succeed(leasing.result())
        else:
            self.fail(error)

    def succeed(self, leased: list[LeasedMessage]) -> None:
        connection = self._connection
        if connection.is_closed:
            connection.broker.give_back(leased)
        elif leased:
            hand_over(connection, leased[0], self._tube, self._answer)
        else:
            self._wait()

    def fail(self, error: BaseException) -> None:
        connection, answer = self._connection, self._answer
        if isinstance(error, NoSuchQueue):
            self._wait()
        elif answer is None:
            connection.refuse(connection.text_of(error, self._name))
        else:
            answer.fail(error)

    def _wait(self) -> None:
        """There is no job that is ready."""
        connection = self._connection
        if not connection.is_closed:
            answer = self._answer or connection.block(self._name)
            Reservation(connection, answer, self._timeout_s).wait()


# -- waiting ---------------------------------------------------------------------------------------


class Reservation:
    """One reserve that is not answered yet. At most one of a connection at a time."""

    __slots__ = (
        "_answer",
        "_connection",
        "_index",
        "_is_waiting",
        "_timers",
        "_tubes",
        "_until",
        "_waits",
        "is_over",
        "tube",
    )

    def __init__(self, connection: "Connection", answer: Answer, timeout_s: int) -> None:
        """A negative `timeout_s` waits without a limit."""
        self._connection = connection
        self._answer = answer
        limit_s = min(timeout_s, _MOST_WAIT_S)
        self._until = NEVER if limit_s < 0 else connection.loop.time() + limit_s
        self._tubes: list[Tube] = []
        self._index = 0
        self._waits: dict[Tube, Future[Any]] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._is_waiting = False
        self.is_over = False  # it has a job or an answer; jobs that come later are given back

    # -- without waiting ---------------------------------------------------------------------------

    def start(self) -> None:
        """Try the tubes one after the other, beginning after the one that had the last job."""
        connection = self._connection
        connection.reservation = self
        watched = connection.watched
        if len(watched) > 1:
            turn = connection.turn % len(watched)
            self._tubes = [*watched[turn:], *watched[:turn]]
        else:
            self._tubes = watched
        self._index = 0
        self._try_next()

    def _try_next(self) -> None:
        connection = self._connection
        broker, has_queue = connection.broker, connection.broker.has_queue
        while self._index < len(self._tubes):
            tube = self._tubes[self._index]
            self._index += 1
            if tube.paused_until or not has_queue(tube.queue):
                continue
            self.tube = tube
            try:
                found = broker.lease_one(connection.caller, tube.queue, self, lease_ns_of)
            except NoSuchQueue:
                continue
            except PenstockError as error:
                self.fail(error)
                return
            if found is None:
                return
            if isinstance(found, Future):
                found.add_done_callback(partial(self._tried, tube))
                return
            if found:
                self.succeed(found)
                return
        self.wait()

    def _tried(self, tube: Tube, future: "Future[list[LeasedMessage]]") -> None:
        error = error_of(future)
        if error is not None:
            if isinstance(error, NoSuchQueue):
                self._try_next()
            else:
                self.fail(error)
        elif future.result():
            self.succeed(future.result())
        else:
            self._try_next()

    def succeed(self, leased: list[LeasedMessage]) -> None:
        """Receive the leased job."""
        connection = self._connection
        if self.is_over or connection.is_closed:
            connection.broker.give_back(leased)
            return
        self.end()
        hand_over(connection, leased[0], self.tube, self._answer)

    def fail(self, error: BaseException) -> None:
        if not self.is_over:
            self.end()
            self._answer.fail(error)

    # -- waiting -----------------------------------------------------------------------------------

    def wait(self) -> None:
        """No tube has a job that is ready. Wait in all of them."""
        connection, loop = self._connection, self._connection.loop
        connection.reservation = self
        now = loop.time()
        if connection.jobs.ends_within(SAFETY_S, now):
            self.give_up("DEADLINE_SOON")
            return
        longest_s = connection.broker.settings.max_wait_s
        is_over = self._until <= now or connection.is_draining or connection.has_ended
        if is_over or not longest_s:
            self.give_up("TIMED_OUT")
            return
        if not self._is_waiting:
            self._is_waiting = True
            for tube in connection.watched:
                tube.waiting += 1
            if self._until != NEVER:
                self._timers.append(loop.call_at(self._until, self.give_up, "TIMED_OUT"))
            soonest = connection.jobs.first_end(now)
            if soonest != NEVER:
                at = soonest - SAFETY_S
                self._timers.append(loop.call_at(at, self.give_up, "DEADLINE_SOON"))
        for tube in connection.watched:
            self._wait_in(tube)

    def _wait_in(self, tube: Tube) -> None:
        """Wait for a job of one tube. Create it if it does not exist."""
        connection = self._connection
        if self.is_over or tube in self._waits or tube.paused_until:
            return
        if not connection.broker.has_queue(tube.queue):
            if not connection.broker.settings.create_on_use:
                timer = connection.loop.call_later(SAFETY_S, self._wait_in, tube)
                self._timers.append(timer)
                return
            waiting: Future[Any] = asyncio.ensure_future(self._create(tube))
        else:
            try:
                waiting = self._lease_in(tube)
            except PenstockError as error:
                self.fail(error)
                return
        self._waits[tube] = waiting
        waiting.add_done_callback(partial(self._waited, tube))

    def _lease_in(self, tube: Tube) -> "Future[list[LeasedMessage]]":
        connection = self._connection
        wait_s = connection.broker.settings.max_wait_s
        return connection.broker.lease(
            connection.caller, tube.queue, lease_s=tube.ttr_s, wait_s=wait_s
        )

    async def _create(self, tube: Tube) -> list[LeasedMessage]:
        await self._connection.tubes.create(tube)
        return []

    def _waited(self, tube: Tube, waiting: "Future[list[LeasedMessage]]") -> None:
        if self._waits.get(tube) is waiting:
            del self._waits[tube]
        if waiting.cancelled():
            return
        error = waiting.exception()
        leased = [] if error is not None else waiting.result()
        if self.is_over:
            if leased:
                self._connection.broker.give_back(leased)
            return
        if error is not None and not isinstance(error, NoSuchQueue):
            self.fail(error)
        elif leased:
            self.tube = tube
            self.succeed(leased)
        elif self._connection.is_draining:
            self.give_up("TIMED_OUT")
        else:
            self._wait_in(tube)  # the longest wait of the broker is over, or the tube is new

    def pause_changed(self, tube: Tube) -> None:
        """A pause of a tube began or ended: wait in it no more, or again."""
        if not self._is_waiting:
            return
        if tube.paused_until:
            waiting = self._waits.pop(tube, None)
            if waiting is not None:
                waiting.cancel()
        elif tube in self._connection.watched:
            self._wait_in(tube)

    def give_up(self, text: str) -> None:
        """Answer without a job."""
        if not self.is_over:
            self.end()
            self._answer.give(text.encode() + b"\r\n")

    def end(self) -> None:
        """Stop. Jobs that come later are given back."""
        self.is_over = True
        self._connection.reservation = None
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            for tube in self._connection.watched:
                tube.waiting -= 1
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        waits, self._waits = self._waits, {}
        for waiting in waits.values():
            waiting.cancel()
