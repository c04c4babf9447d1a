"""The beanstalk protocol on one connection: answers in order, limits, and the jobs it holds.

Puts, and what is done to a job that the connection has reserved, do not wait for each other: their
answers wait for the disk together. Any other command that cannot be answered at once blocks those
after it.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from penstock.broker import Broker, Caller, Settlement
from penstock.broker.limits import SMALL_BYTES
from penstock.errors import Unavailable
from penstock.server.beanstalk import jobs, putting
from penstock.server.beanstalk.answers import Answer, answer_of, as_it_is
from penstock.server.beanstalk.command_reader import CommandReader
from penstock.server.beanstalk.commands import Put, Unreadable, is_http, parse
from penstock.server.beanstalk.quick_commands import QUICK
from penstock.server.beanstalk.reserved_jobs import ReservedJobs, give_back
from penstock.server.beanstalk.reserving import QuickReserve, Reservation
from penstock.server.beanstalk.statistics import of_server
from penstock.server.beanstalk.tubes import Tube, Tubes
from penstock.server.coroutines import rest_of
from penstock.server.listening import peer_address
from penstock.server.ticks import NEVER

if TYPE_CHECKING:
    from penstock.server.beanstalk.listener import BeanstalkListener

_MOST_UNANSWERED = 2000  # answers that wait for the disk; then reading is paused
_MOST_UNANSWERED_BYTES = 4 << 20  # of their bodies
_MOST_CORKED_BYTES = 64 * 1024
_BODY_BYTES_PER_S = 64 * 1024  # minimum rate of a body that takes longer than its time limit


class Connection:
    """One connection: a protocol of asyncio."""

    transport: asyncio.Transport

    def __init__(self, listener: "BeanstalkListener", loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._service = listener.service
        self._held = listener.service.held
        self.broker: Broker = listener.service.broker
        self.tubes: Tubes = listener.tubes
        self.loop = loop
        self.deadline = NEVER
        self.caller: Caller = listener.caller_of("")
        self.is_closed = False
        self.is_draining = False  # puts are refused; closed when no job is reserved
        self.is_ending = False  # nothing is read any more; closed when all is answered
        self.has_ended = False  # the client has closed its sending side: no reserve waits
        self.is_producer = self.is_worker = False
        self.used: Tube  # these two are set with the transport
        self.watched: list[Tube]
        self.turn = 0  # the tube that the next reserve begins with
        self.jobs = ReservedJobs()
        self.reservation: Reservation | None = None  # that waits for a job
        self.quick_reserve = QuickReserve(self)
        self._reader = CommandReader(self)
        self.must_wait = False  # no command can be read now, for one of these reasons:
        self._is_blocked = self._is_yielding = self._is_write_paused = False
        self._is_read_paused = False
        self._counted = 0  # bytes received and kept, in `Held`
        self._answers: deque[Answer | bytes] = deque()  # in the order of the commands
        self._unanswered_bytes = 0
        self._corked: list[bytes] = []
        self._corked_bytes = 0
        self._unsent = 0  # bytes that the client has not read yet, in `Held`

    # -- the connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.caller = self._listener.caller_of(peer_address(transport) or "unknown")
        self._listener.opened(self)
        self.used = self.tubes.default()
        self.watched = [self.used]
        self.used.using += 1
        self.used.watching += 1
        service = self._service
        service.connections.add(self)
        service.ticks.watch(self)
        if service.connection_count > service.settings.max_connections:
            self._listener.count_refusal("OUT_OF_MEMORY")
            transport.write(b"OUT_OF_MEMORY\r\n")
            transport.close()
        elif service.is_stopping:  # it was accepted just before that
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the jobs back: they are ready again at once."""
        self.is_closed = True
        service = self._service
        service.connections.discard(self)
        self.deadline = NEVER
        service.ticks.forget(self)
        self._held.bytes -= self._counted + self._unsent
        self._counted = self._unsent = 0
        if self.reservation is not None:
            self.reservation.end()
        give_back(self)
        self.used.using -= 1
        for tube in self.watched:
            tube.watching -= 1
        for tube in (self.used, *self.watched):
            self.tubes.dropped(tube)
        self._reader.clear()
        self._corked.clear()
        self._listener.closed(self)

    def eof_received(self) -> bool:
        """Answer the commands received so far, then close. A reserve stops waiting."""
        self.has_ended = True
        self._end_waiting()
        return True

    def shutdown(self) -> None:
        """Accept no puts and no reserves. Close when no job is reserved and all is answered."""
        self.is_draining = True
        self._end_waiting()

    def _end_waiting(self) -> None:
        if self.reservation is not None:
            self.reservation.give_up("TIMED_OUT")
        self._end_if_done()

    def end(self) -> None:
        """Read no more commands. Close when all is answered."""
        self.is_ending = True
        self._look_whether_to_wait()

    def _end_if_done(self) -> None:
        """Close if all is answered, and no job is reserved that the client may still settle."""
        if self._answers or self._is_blocked or self._is_yielding or self.is_closed:
            return
        if self.is_ending or self.has_ended or self.jobs.first_end(self.loop.time()) == NEVER:
            self.flush()
            self.transport.close()

    def deadline_passed(self) -> None:
        """Close a connection whose command took too long to arrive, or that reads no answers."""
        self.deadline = NEVER
        if self._is_write_paused:
            self.transport.abort()
        elif not self._is_read_paused:  # else the server did not read
            self._listener.count_refusal("slow")
            self.transport.close()

    # -- reading -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self.is_ending:
            self._reader.feed(data)
            if not self._is_yielding:
                self._read_on()

    def _read_on(self) -> None:
        """Read commands. Set the deadline of an unfinished one, and pause or resume reading."""
        reader = self._reader
        was_in_body = reader.is_in_body
        reader.read_on()
        must_wait, rest = self.must_wait, reader.rest
        if must_wait and rest:
            if not self._is_read_paused and not self.is_ending:
                self._is_read_paused = True
                self.transport.pause_reading()
        elif self._is_read_paused and not self.transport.is_closing():
            self._is_read_paused = False
            self.transport.resume_reading()
        size = (len(rest) if must_wait else 0) + reader.body_bytes
        if size != self._counted:
            self._count_held(size)
        if not self._is_write_paused:
            if must_wait or not reader.is_unfinished:
                self.deadline = NEVER
            elif self.deadline == NEVER or (was_in_body and not reader.is_in_body):
                self.deadline = self.loop.time() + self._service.settings.header_timeout_s
        if self.is_draining or self.is_ending or self.has_ended:
            self._end_if_done()

    def _count_held(self, size: int) -> None:
        """Count bytes that are kept. Close if all connections together keep too many."""
        self._held.bytes += size - self._counted
        self._counted = size
        if self.must_wait and not self._held.has_room_for_body(size):
            self._listener.count_refusal("OUT_OF_MEMORY")
            self.transport.abort()

    def expect_body(self, size: int) -> None:
        """Set the deadline of a body that has not arrived as a whole."""
        allowed_s = self._service.settings.body_timeout_s + size / _BODY_BYTES_PER_S
        self.deadline = self.loop.time() + allowed_s

    def refusal_of_size(self, size: int) -> str | None:
        """Return why a body of this size is not to be read."""
        if size > self._service.settings.max_body_bytes:
            return "JOB_TOO_BIG"
        return None if self._held.has_room_for_body(size) else "OUT_OF_MEMORY"

    def yield_turn(self) -> None:
        """Read on in the next turn of the loop, after the other connections had theirs."""
        if not self._is_yielding:
            self._is_yielding = True
            self._look_whether_to_wait()
            self.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_yielding = False
        self._reader.begin_turn()
        self._look_whether_to_wait()
        if not self.transport.is_closing():
            self._read_on()

    def _look_whether_to_wait(self) -> None:
        self.must_wait = (
            self._is_blocked
            or self._is_yielding
            or self._is_write_paused
            or self.is_ending
            or len(self._answers) >= _MOST_UNANSWERED
            or self._unanswered_bytes >= _MOST_UNANSWERED_BYTES
        )

    # -- commands ----------------------------------------------------------------------------------

    def put_batch(self, bodies: list[bytes], size: int) -> None:
        putting.put_batch(self, bodies, size)

    def put(self, head: Put, body: bytes) -> None:
        putting.put(self, head, body)

    def run_line(self, line: bytes) -> None:
        """Run any command but a put."""
        try:
            name, arguments = parse(line)
        except Unreadable as error:
            self.refuse_line(line, str(error))
            return
        self._listener.commands[name] += 1
        try:
            quick = QUICK.get(name)
            if quick is not None:
                quick(self, name, *arguments)
            else:
                self.run(name, jobs.SLOW[name](self, *arguments))
        except Exception as error:  # of a command that has no place among the answers yet
            self.refuse(self.text_of(error, name))

    def count(self, name: str, commands: int = 1) -> None:
        self._listener.commands[name] += commands

    def run(self, name: str, work: Coroutine[Any, Any, bytes]) -> None:
        """Run a command that asks the broker several times. Later commands wait for it."""
        self.go_on(self.block(name), work)

    def go_on(self, answer: Answer, work: Coroutine[Any, Any, bytes]) -> None:
        """Answer with what a coroutine returns."""
        try:
            awaited = work.send(None)
        except StopIteration as done:
            answer.give(done.value)
        except Exception as error:
            answer.fail(error)
        else:
            answer.make = as_it_is
            answer.wait_for(self.task(rest_of(work, awaited)))

    def task(self, work: Coroutine[Any, Any, bytes]) -> "asyncio.Task[bytes]":
        task, tasks = self.loop.create_task(work), self._service.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def block(self, name: str) -> Answer:
        """Return the place of an answer that later commands wait for."""
        answer = Answer(self, name, as_it_is)
        self._answers.append(answer)
        self.wait_for(answer)
        return answer

    def wait_for(self, answer: Answer) -> None:
        """Read no command before this answer is known."""
        answer.blocks = self._is_blocked = self.must_wait = True

    async def settle(self, settlement: Settlement) -> bool:
        """Settle a job. Return whether that was possible."""
        (outcome,) = await self.broker.settle(self.caller, [settlement])
        return outcome.ok

    async def statistics(self) -> bytes:
        """Return the text of `stats`."""
        return await of_server(self, self._listener)

    # -- answering ---------------------------------------------------------------------------------

    def fail(self, answer: Answer, error: BaseException) -> None:
        """Answer commands that failed."""
        answer.give((self.text_of(error, answer.command).encode() + b"\r\n") * answer.count)

    def text_of(self, error: BaseException, command: str) -> str:
        """Return the answer to a command that failed, and count it."""
        is_stopping = self._service.is_stopping or self.is_draining
        if command == "put" and is_stopping and isinstance(error, Unavailable):
            text = "DRAINING"
        else:
            text = answer_of(error, command)
        self._listener.count_refusal(text)
        return text

    def refuse(self, text: str) -> None:
        """Answer a command with an error."""
        self._listener.count_refusal(text)
        self.answer(text.encode() + b"\r\n")

    def refuse_line(self, line: bytes, text: str) -> None:
        """Answer a line that is no command. Close the connection if it is one of HTTP."""
        if is_http(line):
            self.close_http()
        else:
            self.refuse(text)

    def close_http(self) -> None:
        """Close a connection of an HTTP client.

        A browser or a server can be made to send a request here, whose body has commands.
        """
        self._listener.refuse_http(self.caller.client)
        self.is_ending = self.must_wait = True
        self.transport.abort()

    def answer(self, data: bytes) -> None:
        """Send an answer, after those of earlier commands."""
        if self._answers:
            self._answers.append(data)
        else:
            self._send(data)

    def expect(self, answer: Answer, size: int = 0) -> None:
        """Keep the place of an answer that the broker gives later. `size`: of the bodies."""
        answers = self._answers
        answers.append(answer)
        if size:
            answer.size = size
            self._unanswered_bytes += size
            self._held.bytes += size
        if len(answers) >= _MOST_UNANSWERED or size > SMALL_BYTES:
            self._look_whether_to_wait()

    def forget(self, answer: Answer) -> None:
        """Remove the last answer that is expected."""
        self._answers.pop()
        self._uncount(answer)

    def answered(self, answer: Answer) -> None:
        """An answer is known. Send it, and those after it, if it is the first."""
        if answer.size:
            self._uncount(answer)
        if self.is_closed:
            return
        answers = self._answers
        if answers and answers[0] is answer:
            while answers:
                first = answers[0]
                data = first if isinstance(first, bytes) else first.data
                if data is None:
                    break
                answers.popleft()
                self._send(data)
        if answer.blocks:
            self._is_blocked = False
        if self.must_wait:
            self._look_whether_to_wait()
        reader = self._reader
        if (reader.rest or self._is_read_paused) and not (self.must_wait or reader.is_reading):
            self.yield_turn()  # not within the call that gave the answer
        elif self.is_draining or self.is_ending or self.has_ended:
            self._end_if_done()

    def _uncount(self, answer: Answer) -> None:
        size, answer.size = answer.size, 0
        self._unanswered_bytes -= size
        self._held.bytes -= size

    def _send(self, data: bytes) -> None:
        if not self._corked:
            self._service.cork(self)
        self._corked.append(data)
        self._corked_bytes += len(data)
        if self._corked_bytes > _MOST_CORKED_BYTES:
            self.flush()

    def end_turn(self) -> None:
        """Send the corked answers at the end of a turn of the loop."""
        if not self._is_yielding:
            self._reader.begin_turn()
        self.flush()

    def flush(self) -> None:
        corked = self._corked
        if corked:
            self._corked, self._corked_bytes = [], 0
            if not self.transport.is_closing():
                self.transport.write(corked[0] if len(corked) == 1 else b"".join(corked))

    def pause_writing(self) -> None:
        self._is_write_paused = self.must_wait = True
        self._unsent = self.transport.get_write_buffer_size()
        self._held.bytes += self._unsent
        self.deadline = self.loop.time() + self._service.settings.idle_timeout_s

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._held.bytes -= self._unsent
        self._unsent = 0
        self.deadline = NEVER
        self.yield_turn()


def new_connection(
    listener: "BeanstalkListener", loop: asyncio.AbstractEventLoop
) -> asyncio.Protocol:
    """Return a new connection. Event loops need its methods only, not the base class."""
    return cast(asyncio.Protocol, Connection(listener, loop))
