"""The worker: a handler is called for each message of a queue."""

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidInput
from penstock.queue.handlers import check_handler
from penstock.queue.serializing import Serializer
from penstock.worker.calling import Handler, caller_of
from penstock.worker.middleware import Middleware, wrapped
from penstock.worker.options import WorkerOptions
from penstock.worker.queues import WorkerQueue, check_queue, open_for_tasks
from penstock.worker.settling import Counts
from penstock.worker.shift import Shift
from penstock.worker.stopping import StopButton


class Worker:
    """Calls a handler for each message of a queue.

    The queue is a path, a URL, or an open queue of any kind. The handler is a function, which is
    called in a thread, or a coroutine function. A coroutine that a function returns is run as well.
    A message is acked when the handler returns, and nacked when it raises. `middleware` has hooks
    around the handler. With a `serializer` the handler gets the decoded payload, not the message.

    >>> import penstock, tempfile
    >>> with penstock.open(tempfile.mkdtemp()) as queue:
    ...     id = queue.enqueue(b"hello")
    ...     options = WorkerOptions(idle_s=0)
    ...     counts = Worker(queue, lambda job: print(job.payload.decode()), options=options).run()
    hello
    >>> counts.done
    1
    """

    def __init__(
        self,
        queue: WorkerQueue,
        handler: Handler,
        *,
        options: WorkerOptions | None = None,
        middleware: Sequence[Middleware] = (),
        serializer: Serializer[Any] | None = None,
    ) -> None:
        check_handler(handler)
        if options is not None and not isinstance(options, WorkerOptions):
            raise InvalidInput(f"options is {options!r}; it must be a WorkerOptions")
        self._queue = check_queue(queue)
        self._handler = wrapped(handler, middleware, serializer)
        self._options = options or WorkerOptions()
        self._holder = self._options.holder or f"{socket.gethostname()}:{os.getpid()}"
        self._button = StopButton()

    def run(self) -> Counts:
        """Work until a stop, SIGTERM or SIGINT. Return the number of messages by outcome."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        return asyncio.run(self.work(heed_signals=in_main_thread))

    async def work(self, *, heed_signals: bool = False) -> Counts:
        """Do the same in a program that has an event loop of its own."""
        counts = Counts()
        queue, is_ours = await open_for_tasks(self._queue)
        try:
            with self._button.at_work(heed_signals=heed_signals):
                options, button = self._options, self._button
                # A time limit begins with the call: no thread is given calls ahead of it.
                ahead = options.prefetch if options.time_limit_s is None else 0
                caller = caller_of(self._handler, options.concurrency, ahead)
                await Shift(queue, caller, options, self._holder, counts, button).work()
        finally:
            if is_ours:
                await queue.close()
        return counts

    def stop(self) -> None:
        """Lease no more, let calls finish within `stop_s`, and release the other messages.

        Callable from any thread. A second call does not wait.
        """
        self._button.press()
