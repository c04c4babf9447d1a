"""Push messages to a holder, limited by its credit in number and in bytes.

This part does not depend on the transport; WebSockets and webhooks share it. It waits for messages
and for credit, counts unsettled messages, and releases them when the holder disconnects.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.broker.access import INSIDE, Caller
from penstock.broker.broker import Broker
from penstock.broker.store import Outcome, Settlement, payload_bytes
from penstock.checking import check_number, check_whole
from penstock.errors import NoSuchQueue, Overloaded, PenstockError, TooManyRequests
from penstock.model import MAIN_GROUP_NAME, NS, LeasedMessage
from penstock.names import QueueName
from penstock.queue.messages import size_of
from penstock.queue.settings import MAX_LEASE_S, MIN_LEASE_S

MOST_CREDIT = 10_000
_SHORTEST_WAIT_S = 1.0
_MOST_AT_ONCE = 100  # leased by one call, so that other consumers have their turn


def check_credit(credit: object) -> int:
    """Return a checked credit: the maximum number of unsettled messages. 0 stops the flow."""
    return check_whole("credit", credit, 0, MOST_CREDIT)


class _Holding(NamedTuple):
    """A message that is not settled."""

    until_ns: int  # end of its lease
    size: int


class Consumer:
    """Leases messages of one queue for one holder, as its credit allows.

    A message counts against the credit until it is settled or its lease ends. Its bytes count
    against `max_unsettled_bytes` and `max_bytes`; one message may always be unsettled.
    """

    def __init__(
        self,
        broker: Broker,
        caller: Caller,
        queue: QueueName,
        *,
        credit: int,
        max_bytes: int | None = None,
        at_once_bytes: int | None = None,
        check_room: Callable[[int], None] | None = None,
        group: str = MAIN_GROUP_NAME,
        lease_s: float | None = None,
        holder: str = "",
    ) -> None:
        """`at_once_bytes` limits the messages that `next` returns; one is always allowed.

        `check_room` raises Overloaded if there is no memory to send messages of this size: they
        are released, and leased again later.
        """
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._caller = caller
        self._queue = queue
        self._group = group
        if lease_s is not None:
            check_number("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S)
        self._lease_s = lease_s
        self._holder = holder
        self._credit = check_credit(credit)
        self._max_bytes = max_bytes
        self._at_once_bytes = at_once_bytes
        self._check_room = check_room
        self._held: dict[str, _Holding] = {}  # by receipt
        self._held_bytes = 0
        self._being_settled: set[str] = set()
        self._asking: Future[list[LeasedMessage]] | None = None
        self._changed = asyncio.Event()  # the credit, the held messages, or `_closed`
        self._found_queue = False
        self._closed = False

    @property
    def unsettled(self) -> int:
        """Return the number of unsettled messages."""
        self._drop_overdue()
        return len(self._held)

    @property
    def unsettled_bytes(self) -> int:
        """Return the size of the unsettled messages."""
        self._drop_overdue()
        return self._held_bytes

    @property
    def credit(self) -> int:
        return self._credit

    def set_credit(self, credit: int, max_bytes: int | None = None) -> None:
        """Change the maximum number and size of unsettled messages. Those already held stay."""
        self._credit = check_credit(credit)
        self._max_bytes = max_bytes
        self._changed.set()
        if self._free() <= 0:
            self._stop_asking()

    async def next(self) -> list[LeasedMessage]:
        """Wait for messages and credit, and return the next messages; none after `close`."""
        while not self._closed:
            if self._free() <= 0:
                await self._wait(self._until_next_deadline_s())
                continue
            began_s = self._loop.time()
            try:
                leased = await self._lease()
                if leased and self._check_room is not None:
                    self._check_room_for(leased)
            except TooManyRequests as error:
                await self._wait(error.retry_after_s)
                continue
            except Overloaded:
                await self._wait(_SHORTEST_WAIT_S)
                continue
            if leased is None:
                continue  # the credit was withdrawn, or the consumer was closed
            taken = self._take(leased)
            if taken:
                return taken
            if self._loop.time() - began_s < _SHORTEST_WAIT_S:
                # The lease did not wait: waiting is switched off, or the broker stops. Without a
                # pause, this would be a busy loop.
                await self._wait(_SHORTEST_WAIT_S)
        return []

    def settle(self, settlements: Sequence[Settlement]) -> Future[list[Outcome]]:
        """Settle like `Broker.settle`. Settled messages free their credit."""
        settled = self._broker.settle(self._caller, settlements)
        self._being_settled.update(one.receipt for one in settlements)
        settled.add_done_callback(lambda done: self._settled(settlements, done))
        return settled

    def close(self) -> None:
        """Release all unsettled messages, without using up an attempt."""
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        self._stop_asking()
        self._give_back([one for one in self._held if one not in self._being_settled])
        self._held.clear()
        self._held_bytes = 0

    # -- asking ------------------------------------------------------------------------------------

    async def _lease(self) -> list[LeasedMessage] | None:
        broker = self._broker
        if self._found_queue and not broker.has_queue(self._queue):
            # A lease would create the deleted queue again.
            raise NoSuchQueue(f"queue {self._queue} was deleted")
        room = max(self._most_bytes() - self._held_bytes, 1)
        if self._at_once_bytes is not None:
            room = min(room, self._at_once_bytes)
        self._asking = asking = broker.lease(
            self._caller,
            self._queue,
            n=min(self._free(), _MOST_AT_ONCE),
            lease_s=self._lease_s,
            wait_s=broker.settings.max_wait_s,
            group=self._group,
            holder=self._holder,
            max_bytes=room,
        )
        try:
            leased = await asking
        except asyncio.CancelledError:
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                # The messages arrived at the moment of the cancellation.
                self._give_back([one.receipt for one in asking.result()])
            task = asyncio.current_task()
            if self._asking is None and not (task and task.cancelling()):
                return None  # cancelled by `_stop_asking`
            raise
        finally:
            self._asking = None
        self._found_queue = broker.has_queue(self._queue)
        return leased

    def _check_room_for(self, leased: list[LeasedMessage]) -> None:
        assert self._check_room is not None
        try:
            self._check_room(payload_bytes(leased))
        except Overloaded:
            self._give_back([one.receipt for one in leased])
            raise

    def _stop_asking(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()  # the broker releases what it leased

    def _take(self, leased: list[LeasedMessage]) -> list[LeasedMessage]:
        """Hold leased messages. Release those above the credit, or all if closed."""
        room = 0 if self._closed else max(self._free(), 0)
        taken, rest = leased[:room], leased[room:]
        for one in taken:
            holding = _Holding(one.ticket.deadline_ns, size_of(one.message))
            self._held[one.receipt] = holding
            self._held_bytes += holding.size
        self._give_back([one.receipt for one in rest])
        return taken

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait until something changes, or for `timeout_s`."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    # -- counting ----------------------------------------------------------------------------------

    def _free(self) -> int:
        if len(self._held) >= self._credit or self._is_full():
            self._drop_overdue()
        return 0 if self._is_full() else self._credit - len(self._held)

    def _is_full(self) -> bool:
        return self._held_bytes >= self._most_bytes()

    def _most_bytes(self) -> int:
        most = self._broker.settings.max_unsettled_bytes
        # 0: one message at a time.
        return most if self._max_bytes is None else max(min(self._max_bytes, most), 1)

    def _drop_overdue(self) -> None:
        """Forget messages whose lease has ended: the queue delivers them again."""
        now_ns = self._broker.clock.now_ns()
        overdue = [receipt for receipt, one in self._held.items() if one.until_ns <= now_ns]
        for receipt in overdue:
            self._let_go(receipt)

    def _let_go(self, receipt: str) -> None:
        found = self._held.pop(receipt, None)
        if found is not None:
            self._held_bytes -= found.size

    def _until_next_deadline_s(self) -> float | None:
        if not self._held:
            return None
        first_ns = min(one.until_ns for one in self._held.values())
        return max(first_ns - self._broker.clock.now_ns(), 0) / NS

    def _settled(self, settlements: Sequence[Settlement], done: Future[list[Outcome]]) -> None:
        self._being_settled.difference_update(one.receipt for one in settlements)
        if done.cancelled() or done.exception() is not None:
            return  # the outcome is unknown; the leases end by themselves
        for settlement, outcome in zip(settlements, done.result(), strict=True):
            if settlement.verdict == "extend" and outcome.ok:
                known = self._held.get(settlement.receipt)
                if known is not None and settlement.lease_s is not None:
                    until_ns = self._broker.clock.now_ns() + round(settlement.lease_s * NS)
                    self._held[settlement.receipt] = known._replace(until_ns=until_ns)
            elif outcome.ok or outcome.status == "gone":
                self._let_go(settlement.receipt)
        self._changed.set()

    def _give_back(self, receipts: Sequence[str]) -> None:
        if not receipts or not self._broker.is_open:
            return
        try:
            released = self._broker.settle(
                INSIDE, [Settlement("release", receipt) for receipt in receipts]
            )
        except PenstockError:
            return  # their leases end by themselves
        released.add_done_callback(_ignore_error)


def _ignore_error(done: Future[list[Outcome]]) -> None:
    """Retrieve the error of a future that is not awaited, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()
