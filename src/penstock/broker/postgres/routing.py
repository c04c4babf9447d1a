"""Where a call is carried out: in this broker if it owns the queue, else in the owner.

The owner is asked from the database when a queue is first used, and remembered until a call shows
that it is another one. A call is forwarded once: a broker that does not own the queue refuses it.
"""

import asyncio
import logging
from asyncio import Future
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from penstock.broker.background import Background
from penstock.broker.embedded.commit_loop import CommitLoop, HeldResult
from penstock.broker.embedded.open_queue import OpenQueue
from penstock.broker.embedded.shelf import Shelf
from penstock.broker.postgres.channel import Caller, ChannelLost, NotSent, OnError, Peer
from penstock.broker.postgres.elsewhere import Elsewhere
from penstock.broker.postgres.membership import OwnedElsewhere
from penstock.broker.postgres.methods import ADDING, METHODS, done, is_repeatable, refuse_gone
from penstock.broker.postgres.together import Kind, Together, as_call
from penstock.broker.store import Outcome, Pending, Settlement, payload_bytes
from penstock.errors import NoSuchQueue, PenstockError, Unavailable
from penstock.names import QueueName

log = logging.getLogger("penstock.broker")
_T = TypeVar("_T")

RETRY_S = 0.05
_UNWATCH_AFTER_S = 10.0
_ASK_S = 2.0  # for the answer of another broker to a question
OfShelf = Mapping[str, Callable[..., Awaitable[Any]]]


class Router:
    """Calls of queues. Also the service that answers the calls of other brokers."""

    def __init__(
        self,
        shelf: Shelf,
        commits: CommitLoop,
        background: Background,
        of_shelf: OfShelf,
        *,
        key: bytes,
        patience_s: float,
        refresh: Callable[[], Awaitable[None]],
        on_ready: Callable[[QueueName], None],
        on_question: Callable[[Any], Coroutine[Any, Any, Any]],
    ) -> None:
        """`of_shelf`: methods that need the queue closed, or delete it. `refresh`: read the
        catalogue. `on_ready`: messages are ready in a queue that is watched. `on_question`:
        answer a question of another broker."""
        self._shelf = shelf
        self._commits = commits
        self._background = background
        self._of_shelf = of_shelf
        self._key = key
        self._patience_s = patience_s
        self._refresh = refresh
        self._tell_listener = on_ready
        self._on_question = on_question
        self._loop = asyncio.get_running_loop()
        self._owners: dict[QueueName, str] = {}  # addresses of other brokers, as last known
        self._peers: dict[str, Peer] = {}
        self._watched: Counter[QueueName] = Counter()
        self._watching: dict[QueueName, set[Caller]] = {}  # other brokers, by what they watch
        self._opening: dict[QueueName, Future[OpenQueue]] = {}
        self._lost: dict[QueueName, Future[None]] = {}  # queues that are being closed
        self._is_open = True

    def stop(self) -> None:
        """Take no more calls of other brokers."""
        self._is_open = False

    def close(self) -> None:
        for peer in list(self._peers.values()):
            peer.close()

    # -- calls of this broker ----------------------------------------------------------------------

    def call(self, queue: QueueName, method: str, *arguments: Any) -> "Future[Any]":
        """Carry out a method of a queue: here if it is open here, else where its owner is."""
        found = self.free(queue)
        if found is not None:
            return self._call_here(found, method, arguments)
        peer = self._ready_peer(queue)
        if peer is None:
            return self.find_and_call(queue, method, *arguments)
        return self._forward_at_once(peer, queue, method, arguments)

    def elsewhere(self, queue: QueueName) -> Elsewhere | None:
        """Return the queue at its owner, if that is known, connected, and not this broker."""
        peer = self._ready_peer(queue)
        return None if peer is None else Elsewhere(peer, queue, self._call_again)

    def _ready_peer(self, queue: QueueName) -> Peer | None:
        """Return the owner of a queue if a call can be sent to it at once."""
        address = self._owners.get(queue)
        peer = None if address is None else self._peers.get(address)
        if peer is None or not peer.is_connected:
            return None
        if queue in self._watched and queue not in peer.watched:
            return None  # it is asked first to watch the queue
        return peer

    def find_and_call(self, queue: QueueName, method: str, *arguments: Any) -> "Future[Any]":
        """Carry out a method of a queue that is not open here, as far as is known."""
        return self._commits.run(partial(self._find_and_call, queue, method, arguments))

    def free(self, queue: QueueName) -> OpenQueue | None:
        """Return the queue if it is open here and can be used now."""
        found = self._shelf.get(queue)
        if found is None or queue in self._lost or not found.is_free():
            return None
        return found

    def _call_here(self, found: OpenQueue, method: str, arguments: Any) -> "Future[Any]":
        quotas = self._shelf.quotas
        if method in ADDING:
            quotas.check_bytes(found.name.namespace)
        answer: Future[Any] = METHODS[method](found, *arguments)
        if quotas.is_counting:
            quotas.note(found, answer)
        return answer

    def _forward_at_once(
        self, peer: Peer, queue: QueueName, method: str, arguments: Any
    ) -> "Future[Any]":
        """Forward to a connected owner, without a task. After an error, look for the owner."""

        def failed(answer: "Future[Any]", error: Exception) -> None:
            if isinstance(error, OwnedElsewhere | NoSuchQueue | ChannelLost):
                first = peer.address, error
                again = partial(self._find_and_call, queue, method, arguments, first=first)
                _pass_on(self._commits.run(again), answer)
            else:
                answer.set_exception(error)

        return self._send(peer, queue, method, arguments, failed)

    def _call_again(
        self,
        queue: QueueName,
        kind: Kind,
        argument: Any,
        pending: Pending,
        first: tuple[str, Exception],
    ) -> None:
        """Look for the owner after a call of `Elsewhere` has failed. `first`: where, and how."""
        error = first[1]
        if not isinstance(error, OwnedElsewhere | NoSuchQueue | ChannelLost):
            pending.fail(error)
            return

        def ended(done: "Future[Any]") -> None:
            if done.cancelled():
                pending.fail(Unavailable("the broker is stopping: try again in a moment"))
            elif (failed := done.exception()) is not None:
                pending.fail(failed)
            else:
                pending.succeed(done.result())

        again = partial(self._find_and_call, queue, *as_call(kind, argument), first=first)
        self._commits.run(again).add_done_callback(ended)

    async def _find_and_call(
        self,
        queue: QueueName,
        method: str,
        arguments: Any,
        held: HeldResult,
        *,
        first: tuple[str, Exception] | None = None,
    ) -> Any:
        """Look for the owner until the call is carried out.

        `first`: where an attempt has failed, and how.
        """
        ends_at = self._loop.time() + self._patience_s
        is_repeat = False  # an earlier attempt may have been carried out
        while True:
            address, failed = first or (self._owners.get(queue), None)
            first = None
            try:
                if failed is not None:
                    raise failed
                if address is None:
                    result = await self._open_and_call(queue, method, arguments)
                else:
                    result = await self._forward(address, queue, method, arguments)
                if method == "lease":
                    held.hold(payload_bytes(result))
                if is_repeat and method == "settle":
                    refuse_gone(result)
                return result
            except OwnedElsewhere as error:
                if address is None:  # the database says so, perhaps to many calls at once
                    self._owners[queue] = error.address
                else:
                    self._forget_owner(queue, address)
            except NoSuchQueue as error:
                # The owner as last known may have deleted it, and another broker made it anew.
                if address is not None:
                    self._forget_owner(queue, address)
                elif method == "settle" and not is_repeat:
                    return [Outcome(one.receipt, "gone", str(error)) for one in arguments[0]]
                else:
                    raise
            except ChannelLost as error:
                if address is not None:
                    self._forget_owner(queue, address)
                if not isinstance(error, NotSent):
                    is_repeat = True
                may_repeat = isinstance(error, NotSent) or is_repeatable(method, arguments)
                if self._loop.time() >= ends_at or not may_repeat:
                    raise
                await asyncio.sleep(RETRY_S)

    def forget_owner(self, queue: QueueName) -> None:
        """Ask the database for the owner at the next call."""
        self._owners.pop(queue, None)

    def _forget_owner(self, queue: QueueName, address: str) -> None:
        """Forget who owns a queue, unless another call has found a new owner meanwhile."""
        if self._owners.get(queue) == address:
            del self._owners[queue]

    async def _open_and_call(self, queue: QueueName, method: str, arguments: Any) -> Any:
        """Call a method of a queue that this broker owns, or takes over."""
        if queue not in self._shelf:
            await self._refresh()  # another broker may have created it a moment ago
        with self._shelf.wanted(queue):
            while True:
                if queue in self._lost:
                    await asyncio.wait([self._lost[queue]])
                if method in self._of_shelf:
                    return await self._of_shelf[method](queue, *arguments)
                found = await self._opened(queue)
                async with found.threads.turn:
                    # Else it was closed while this call waited, or many messages are due.
                    is_open = self._shelf.get(queue) is found and queue not in self._lost
                    if is_open and found.is_free():
                        answer = self._call_here(found, method, arguments)
                        break
                await asyncio.sleep(0)  # let the tick have its turn first
        return await answer

    async def _opened(self, queue: QueueName) -> OpenQueue:
        """Open a queue, or learn who owns it: once for all calls that wait for it."""
        opening = self._opening.get(queue)
        if opening is None:
            opening = self._background.run(self._shelf.opened(queue))
            self._opening[queue] = opening
            opening.add_done_callback(lambda _: self._opening.pop(queue))
            forgotten(opening)  # its callers may all be cancelled
        return await asyncio.shield(opening)

    async def ask(self, addresses: Sequence[str], question: Any) -> list[Any]:
        """Ask other brokers. Return the answers of those that give one soon."""

        async def ask(address: str) -> Any:
            try:
                async with asyncio.timeout(_ASK_S):
                    peer = await self._connected(address)
                    return await peer.call("ask", (question,), _ignore)
            except (PenstockError, TimeoutError) as error:
                log.info("the broker at %s does not answer: %s", address, error)
                return None

        found = await asyncio.gather(*(ask(address) for address in addresses))
        return [one for one in found if one is not None]

    async def _connected(self, address: str) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = Peer(address, self._key, self._on_notice, self._on_peer_lost)
            self._peers[address] = peer
        if not peer.is_connected:
            await peer.connect()
        return peer

    async def _forward(self, address: str, queue: QueueName, method: str, arguments: Any) -> Any:
        peer = await self._connected(address)
        if queue in self._watched and queue not in peer.watched:
            # Before the call, on the same connection: no message is missed.
            peer.watched.add(queue)
            forgotten(peer.call("watch", (queue,), _ignore))
        return await self._send(peer, queue, method, arguments)

    def _send(
        self,
        peer: Peer,
        queue: QueueName,
        method: str,
        arguments: Any,
        on_error: OnError = None,
    ) -> "Future[Any]":
        if method == "lease":
            *others, max_bytes = arguments
            arguments = (*others, max_bytes())
        late = partial(self._late, queue, method)
        return peer.call(method, (queue, *arguments), late, on_error)

    def _late(self, queue: QueueName, method: str, result: Any) -> None:
        """Give back messages that came after their call was cancelled."""
        if method == "lease" and result and self._is_open:
            release = [Settlement("release", one.receipt) for one in result]
            forgotten(self.call(queue, "settle", release))

    @property
    def peers(self) -> list[str]:
        """Return the addresses of the brokers that this one is connected to."""
        return list(self._peers)

    def give_up(self, address: str) -> None:
        """Close the connection to a broker that counts as dead: its calls look for a new owner.

        It may hang without closing the connection, as a process that was stopped does. A broker
        that was never reached is forgotten.
        """
        peer = self._peers.get(address)
        if peer is None or peer.is_connecting:
            return
        log.warning("the broker at %s shows no sign of life: its calls are sent again", address)
        if peer.is_connected:
            peer.close()
        else:
            del self._peers[address]

    def _on_peer_lost(self, peer: Peer) -> None:
        """Look for the owners anew; waiting calls do so at once."""
        if self._peers.get(peer.address) is peer:
            del self._peers[peer.address]
        queues = [queue for queue, owner in self._owners.items() if owner == peer.address]
        for queue in queues:
            del self._owners[queue]
            self._on_notice(queue)

    # -- ready messages ----------------------------------------------------------------------------

    def watch(self, queue: QueueName) -> None:
        self._watched[queue] += 1
        self._shelf.watch(queue)
        if self._shelf.get(queue) is None and self._watching_peer(queue) is None:
            looking = self.call(queue, "find")
            forgotten(looking)
            # A message may have come before the owner knew that this broker watches.
            looking.add_done_callback(lambda _: self._on_notice(queue))

    def unwatch(self, queue: QueueName) -> None:
        self._shelf.unwatch(queue)
        self._watched[queue] -= 1
        if not self._watched[queue]:
            del self._watched[queue]
            if self._watching_peer(queue) is not None:
                # Not at once: the next call that waits is likely to come soon.
                self._loop.call_later(_UNWATCH_AFTER_S, self._unwatch_elsewhere, queue)

    def on_ready(self, queue: QueueName) -> None:
        """Tell this broker, and those that watch it, of ready messages in a queue of this one."""
        self._tell_listener(queue)
        for caller in self._watching.get(queue, ()):
            caller.notify(queue)

    def _on_notice(self, queue: QueueName) -> None:
        if queue in self._watched:
            self._tell_listener(queue)

    def _watching_peer(self, queue: QueueName) -> Peer | None:
        """Return the owner of a queue, if that watches it for this broker."""
        peer = self._peers.get(self._owners.get(queue, ""))
        return peer if peer is not None and queue in peer.watched else None

    def _unwatch_elsewhere(self, queue: QueueName) -> None:
        peer = self._watching_peer(queue)
        if peer is not None and queue not in self._watched:
            peer.watched.discard(queue)
            with suppress(ChannelLost):
                forgotten(peer.call("unwatch", (queue,), _ignore))

    # -- calls of other brokers --------------------------------------------------------------------

    def answer(self, caller: Caller, method: str, arguments: Any) -> "Future[Any]":
        """Answer a call that another broker forwarded. It is not forwarded once more."""
        if method == "ask":
            return asyncio.ensure_future(self._on_question(*arguments))
        queue, *others = arguments
        if method == "watch":
            return self._watch_for(caller, queue)
        if method == "unwatch":
            self._unwatch_for(caller, queue)
            return done(None)
        if method == "lease":
            *others, max_bytes = others
            others.append(lambda: max_bytes)
        return self._answer_here(method, queue, others)

    def _answer_here(self, method: str, queue: QueueName, others: list[Any]) -> "Future[Any]":
        if not self._is_open:
            raise Unavailable("the broker is stopping: try again in a moment")
        found = self.free(queue) if method not in self._of_shelf else None
        if found is not None:
            return self._call_here(found, method, others)
        return asyncio.ensure_future(self._open_and_call(queue, method, others))

    def carry_out(self, received: Together) -> None:
        """Carry out calls that another broker forwarded together."""
        queue = received.queue
        found = self.free(queue)
        if found is None or not self._is_open or queue.namespace in self._shelf.quotas.limited:
            received.carry_out_slowly(
                lambda method, arguments: self._answer_here(method, queue, list(arguments))
            )
        else:
            received.carry_out(found)

    def undelivered(self, method: str, arguments: Any, result: Any) -> None:
        self._late(arguments[0], method, result)

    def caller_lost(self, caller: Caller) -> None:
        for queue in list(caller.watched):
            self._unwatch_for(caller, queue)

    def _watch_for(self, caller: Caller, queue: QueueName) -> "Future[None]":
        if queue not in caller.watched:
            caller.watched.add(queue)
            self._watching.setdefault(queue, set()).add(caller)
            self._shelf.watch(queue)
        return done(None)

    def _unwatch_for(self, caller: Caller, queue: QueueName) -> None:
        if queue in caller.watched:
            caller.watched.discard(queue)
            self._watching[queue].discard(caller)
            if not self._watching[queue]:
                del self._watching[queue]
            self._shelf.unwatch(queue)

    # -- queues that this broker closes ------------------------------------------------------------

    def on_lost(
        self, queue: QueueName, reason: str = "the database took no write; it is opened again"
    ) -> None:
        """Close a queue whose log takes no more writes. The next call finds its owner anew."""
        if queue not in self._lost and self._is_open:
            log.warning("queue %s: %s", queue, reason)
            self._close(queue, self._shelf.discard(queue))

    async def hand_over(self, queue: QueueName, give: Callable[[], None]) -> None:
        """Answer the calls of a queue, close it, and let `give`, in a thread, name a new owner."""

        async def move() -> None:
            await self._shelf.discard(queue)
            await asyncio.to_thread(give)
            if self._shelf.get(queue) is not None:  # a call had begun to open it
                await self._shelf.discard(queue)

        if queue not in self._lost and self._is_open:
            await asyncio.shield(self._close(queue, move()))

    def _close(self, queue: QueueName, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Have calls of a queue wait until it is closed. Then they look for its owner."""
        closing = self._lost[queue] = self._background.run(work)

        def closed(ended: Future[None]) -> None:
            del self._lost[queue]
            if not ended.cancelled() and ended.exception() is not None:
                log.error("queue %s could not be closed: %s", queue, ended.exception())
            self.on_ready(queue)  # waiting calls look for the new owner

        closing.add_done_callback(closed)
        return closing


def _pass_on(source: "Future[Any]", target: "Future[Any]") -> None:
    """Let one future end as another one does, and cancel that one with it."""

    def ended(source: "Future[Any]") -> None:
        if target.done():
            source.cancelled() or source.exception()
        elif source.cancelled():
            target.cancel()
        elif source.exception() is not None:
            target.set_exception(source.exception())  # type: ignore[arg-type]
        else:
            target.set_result(source.result())

    source.add_done_callback(ended)
    target.add_done_callback(lambda done: done.cancelled() and source.cancel())


def _ignore(*arguments: Any) -> None:
    """Do nothing with a notice or an answer."""


def forgotten(answer: "Future[Any]") -> None:
    """Let a call run whose answer, or error, does not matter."""
    answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
