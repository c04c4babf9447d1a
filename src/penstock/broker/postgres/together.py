"""The usual calls that one broker forwards to another: those of one turn to one queue travel
together.

Publish one message, lease one message of group `main`, ack one message: each is answered without a
future, and its parts are not packed one by one. The owner writes publishes that follow each other
in one step. A call takes a fifth of the CPU time of one of its own.

    forwarder  [number, "together", [namespace, name, kind, argument, kind, argument, …]]
    owner      [number, [result, result, …]]
               [number, [result, …], None, [index, …]]    some of them: others take longer

    kind            argument    result
    PLAIN           payload     id
    content type    payload     id
    OPTIONS         NewMessage  id, or what was published if it is a duplicate
    LEASE           max_bytes   list of leased messages
    ACK             receipt     None if it is done, else the outcome

Each result may be an error instead.
"""

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.broker.limits import SMALL_BYTES
from penstock.broker.postgres import wire
from penstock.broker.store import Outcome, Pending, Settlement, payload_bytes
from penstock.errors import PenstockError, Unavailable
from penstock.model import MAIN_GROUP_NAME, Published, Receipt, TypedPayload
from penstock.names import QueueName

if TYPE_CHECKING:
    from penstock.broker.embedded.open_queue import OpenQueue

PLAIN, OPTIONS, LEASE, ACK = range(4)
Kind = int | str  # a text is the content type of a payload
_new_tuple = tuple.__new__
# The kind and argument of a call, who waits for it, and why it was not carried out.
OnRefused = Callable[[Kind, Any, Pending, Exception], None]
# Carry out a call in the general way.
Carry = Callable[[str, Sequence[Any]], Future[Any]]


def as_call(kind: Kind, argument: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the method of a queue that does the same, and its arguments."""
    if kind == LEASE:
        return "lease", (1, None, MAIN_GROUP_NAME, "", False, lambda: argument)
    if kind == ACK:
        return "settle", ([Settlement("ack", argument)],)
    return "publish", ([_message(kind, argument)],)


def _message(kind: Kind, argument: Any) -> Any:
    """Return a message to publish."""
    if type(kind) is str:
        return _new_tuple(TypedPayload, (argument, kind))
    return wire.unpacked(argument) if type(argument) is list else argument


class Gathered:
    """Calls that this broker forwards, until they are answered."""

    __slots__ = ("_on_refused", "_parts", "_waiting")

    def __init__(self, queue: QueueName, on_refused: OnRefused) -> None:
        self._on_refused = on_refused
        self._parts: list[Any] = [queue.namespace, queue.name]
        self._waiting: list[tuple[Kind, Any, Pending] | None] = []

    def add(self, kind: Kind, argument: Any, pending: Pending) -> None:
        """Add a call. Raise TypeError, and do nothing, if its argument cannot travel."""
        self._parts += (kind, wire.packed(argument) if kind == OPTIONS else argument)
        self._waiting.append((kind, argument, pending))

    @property
    def is_empty(self) -> bool:
        """Return whether there is no call: the only one could not travel."""
        return not self._waiting

    def packed(self, number: int) -> list[Any]:
        """Return them as one value to send."""
        parts, self._parts = self._parts, []
        return wire.packed_as_it_is(number, "together", parts)

    def succeed(self, results: list[Any]) -> None:
        """Receive the results of all."""
        for waiting, found in zip(self._waiting, results, strict=True):
            assert waiting is not None
            self._answer(waiting, found)

    def succeed_some(self, results: list[Any], indexes: list[int]) -> bool:
        """Receive the results of some. Return whether these were the last ones."""
        for index, found in zip(indexes, results, strict=True):
            waiting, self._waiting[index] = self._waiting[index], None
            if waiting is not None:
                self._answer(waiting, found)
        return not any(self._waiting)

    def fail(self, error: Exception) -> None:
        for waiting in self._waiting:
            if waiting is not None:
                self._on_refused(*waiting, error)

    def _answer(self, waiting: tuple[Kind, Any, Pending], found: Any) -> None:
        kind, argument, pending = waiting
        if type(found) is str:
            pending.succeed([_new_tuple(Published, (found, False))])
        elif found is None:
            pending.succeed([_new_tuple(Outcome, (argument, "done", "", ()))])
        else:
            result = wire.unpacked(found)
            if isinstance(result, Exception):
                self._on_refused(kind, argument, pending, result)
            else:
                pending.succeed(result if type(result) is list else [result])


class Together:
    """Calls that another broker forwarded."""

    __slots__ = (
        "_calls",
        "_left",
        "_number",
        "_on_undelivered",
        "_results",
        "_send",
        "_slow",
        "queue",
    )

    def __init__(
        self,
        number: int,
        parts: list[Any],
        send: Callable[[list[Any]], bool],
        on_undelivered: Callable[[QueueName, Any], None],
    ) -> None:
        """`send` returns False if the other broker is not connected: `on_undelivered` gets the
        leased messages."""
        self._number = number
        self._send = send
        self._on_undelivered = on_undelivered
        self.queue = QueueName(parts[0], parts[1])
        self._calls = list(zip(parts[2::2], parts[3::2], strict=True))
        self._left = len(self._calls)
        self._results: list[Any] = [None] * self._left
        self._slow: set[int] = set()  # are answered each by itself

    def carry_out(self, queue: "OpenQueue") -> None:
        """Carry out the calls in an open queue, in their order."""
        index = 0
        while index < len(self._calls):
            kind, argument = self._calls[index]
            if kind == LEASE:
                self._carry(index, _lease, queue, argument)
            elif kind == ACK:
                self._carry(index, _ack, queue, argument)
            else:
                index = self._publish(queue, index)
                continue
            index += 1

    def carry_out_slowly(self, carry: Carry) -> None:
        """Carry out the calls in a queue that is busy, or not open."""
        for index, (kind, argument) in enumerate(self._calls):
            self._carry(index, _slowly, carry, kind, argument)

    def _publish(self, queue: "OpenQueue", start: int) -> int:
        """Publish messages that follow each other. Return the index of the next call."""
        messages: list[Any] = []
        for kind, argument in self._calls[start:]:
            if kind in (LEASE, ACK):
                break
            messages.append(_message(kind, argument))
        end = start + len(messages)
        if len(messages) > 1:
            answers = _Answers(self, start, end)
            try:
                if queue.publish_together(answers, messages):
                    return end
            except PenstockError as error:
                answers.fail(error)
                return end
        for index, message in enumerate(messages, start):
            self._carry(index, _publish, queue, message)
        return end

    def _carry(self, index: int, call: Callable[..., Any], *arguments: Any) -> None:
        """Begin a call. It returns as those of `DirectQueue` do."""
        answer = _Answer(self, index)
        try:
            found = call(answer, *arguments)
        except PenstockError as error:
            answer.fail(error)
            return
        if found is None:
            return  # it is told later
        if not isinstance(found, Future):
            answer.succeed(found)
            return
        self._slow.add(index)
        found.add_done_callback(answer.ended)
        self._done(1)

    def put_ids(self, start: int, ids: list[str]) -> None:
        """Note the ids of messages that were published together."""
        self._results[start : start + len(ids)] = ids
        self._done(len(ids))

    def put(self, index: int, result: Any) -> None:
        """Note the result of one call. The last one sends them all."""
        if index in self._slow:
            self._deliver([index], [result])
        elif type(result) is list and payload_bytes(result) > SMALL_BYTES:
            self._slow.add(index)  # the others need not wait until it is sent
            self._deliver([index], [result])
            self._done(1)
        else:
            self._results[index] = result
            self._done(1)

    def _done(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self._send_all()

    def _send_all(self) -> None:
        """Send the results of the calls that are not slow."""
        if not self._slow:
            self._deliver(None, self._results)
            return
        indexes = [index for index in range(len(self._results)) if index not in self._slow]
        if indexes:
            self._deliver(indexes, [self._results[index] for index in indexes])

    def _deliver(self, indexes: list[int] | None, results: list[Any]) -> None:
        packed = [one if one is None or type(one) is str else wire.packed(one) for one in results]
        if indexes is None:
            is_sent = self._send(wire.packed_as_it_is(self._number, packed))
        else:
            is_sent = self._send(wire.packed_as_it_is(self._number, packed, None, indexes))
        if not is_sent:
            for one in results:
                if type(one) is list and one:
                    self._on_undelivered(self.queue, one)


# -- the calls; each returns as those of `DirectQueue` do ------------------------------------------


def _lease(pending: Pending, queue: "OpenQueue", max_bytes: int) -> Any:
    return queue.lease_one_for(pending, lambda: max_bytes)


def _ack(pending: Pending, queue: "OpenQueue", receipt: str) -> Any:
    return queue.ack_one_for(pending, receipt, Receipt.unpack(receipt))


def _publish(pending: Pending, queue: "OpenQueue", message: Any) -> Any:
    return queue.publish_for(pending, (message,))


def _slowly(pending: Pending, carry: Carry, kind: Kind, argument: Any) -> Any:
    return carry(*as_call(kind, argument))


class _Answer:
    """Receives the result of one call."""

    __slots__ = ("_index", "_together")

    def __init__(self, together: Together, index: int) -> None:
        self._together = together
        self._index = index

    def succeed(self, result: Any) -> None:
        found: Any = None
        one = result[0] if result else None
        if type(one) is Published:
            found = one if one.duplicate else one[0]
        elif type(one) is Outcome:
            found = None if one[1] == "done" else one
        else:
            found = result
        self._together.put(self._index, found)

    def fail(self, error: BaseException) -> None:
        self._together.put(self._index, error)

    def ended(self, done: Future[Any]) -> None:
        if done.cancelled():
            self.fail(Unavailable("the broker is stopping: try again in a moment"))
        elif (error := done.exception()) is not None:
            self.fail(error)
        else:
            self.succeed(done.result())


class _Answers:
    """Receives the ids of messages that were published together."""

    __slots__ = ("_end", "_start", "_together")

    def __init__(self, together: Together, start: int, end: int) -> None:
        self._together = together
        self._start = start
        self._end = end

    def succeed(self, ids: list[str]) -> None:
        self._together.put_ids(self._start, ids)

    def fail(self, error: BaseException) -> None:
        for index in range(self._start, self._end):
            self._together.put(index, error)
