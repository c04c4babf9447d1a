"""An executor that still works while Python exits.

The executors of `concurrent.futures` refuse work as soon as the main thread has ended, and later
no thread can be started. The holder of a shared directory serves and hands it over after that.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class ExitThreads(ThreadPoolExecutor):
    """Daemon threads that are started at once. A subclass, as event loops accept nothing else."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count)
        self._waiting: SimpleQueue[_Work | None] = SimpleQueue()
        self._workers = [
            Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for worker in self._workers:
            worker.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        self._waiting.put((future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in self._workers:
            self._waiting.put(None)

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            future, function, args, kwargs = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del work, future, function, args, kwargs
