"""Streams: how one is stopped from outside, and the signature of `stream`."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, Protocol, TypedDict, Unpack, overload

from penstock.checking import Duration
from penstock.errors import InvalidInput
from penstock.model import LeasedMessage
from penstock.queue.binding import Definition, ForTasks, ForThreads, finish, iterate

Handler = Callable[[LeasedMessage], object]


class Stopper:
    """Stops a `stream`, or a `lease` that waits, from outside; nothing is raised there.

    The message that is being handled is finished first; messages leased ahead are released. One
    stopper may stop several streams.

    >>> stopper = Stopper()
    >>> stopper.stop()
    >>> stopper.stopped
    True
    """

    def __init__(self) -> None:
        self._stopped = False
        self.wakers: list[Callable[[], None]] = []

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        """Stop. Callable from any thread, task or signal handler; does not wait."""
        self._stopped = True
        # In a thread: a signal handler may interrupt the stream between its last look at `stopped`
        # and its wait, while it holds the lock that waking it needs.
        Thread(target=self._wake, name="penstock stop", daemon=True).start()

    def _wake(self) -> None:
        for wake in tuple(self.wakers):
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake`, in another thread, if `stop` is called during the block."""
        self.wakers.append(wake)
        try:
            yield
        finally:
            self.wakers.remove(wake)


def is_stopped(stopper: Stopper | None) -> bool:
    """Return whether a stopper is stopped; raise InvalidInput if it is something else."""
    if stopper is None:
        return False
    if not isinstance(stopper, Stopper):
        raise InvalidInput(f"stopper is {stopper!r}; it must be a penstock.Stopper")
    return stopper.stopped


class StreamOptions(TypedDict, total=False):
    """The options of `stream`."""

    group: str  # default: the main group
    lease_s: Duration | None  # default: the queue's setting
    idle_s: Duration | None  # stop when no message came for this long; None (default): never
    batch: int  # messages leased ahead; default 32
    stopper: Stopper | None


# -- the signature of `stream` ---------------------------------------------------------------------


class _Stream(Protocol):
    @overload
    def __call__(
        self, handler: None = None, **options: Unpack[StreamOptions]
    ) -> Iterator[LeasedMessage]: ...

    @overload
    def __call__(self, handler: Handler, **options: Unpack[StreamOptions]) -> int: ...


class _AsyncStream(Protocol):
    @overload
    def __call__(
        self, handler: None = None, **options: Unpack[StreamOptions]
    ) -> AsyncIterator[LeasedMessage]: ...

    @overload
    async def __call__(self, handler: Handler, **options: Unpack[StreamOptions]) -> int: ...


class StreamMethod(Definition):
    """`stream`, whose result depends on whether there is a handler."""

    @overload
    def __get__(self, queue: None, owner: type) -> Callable[..., Any]: ...

    @overload
    def __get__(self, queue: ForThreads, owner: type) -> _Stream: ...

    @overload
    def __get__(self, queue: ForTasks, owner: type) -> _AsyncStream: ...

    def __get__(self, queue: Any, owner: type) -> Any:
        return self

    def _blocking(
        self, function: Any, /, queue: Any, handler: Handler | None = None, **options: Any
    ) -> Any:
        if handler is None:
            return iterate(function(queue, **options))
        return finish(function, queue, handler, **options)
