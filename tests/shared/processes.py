"""Processes that share a directory, driven from a test through pipes.

They are forked from a server process that has imported everything, so that one starts in a moment.
"""

import os
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import penstock
from penstock.errors import PenstockError

PATIENCE_S = 60
_context = get_context("forkserver")
_context.set_forkserver_preload(["penstock.shared", "tests.shared.processes"])


class SharingProcess:
    """A process that has a directory open with `shared=True`."""

    def __init__(self, path: Path, **options: Any) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(
            target=_live, args=(theirs, str(path), options), daemon=True
        )
        self._process.start()
        theirs.close()
        self._process_id = self._process.pid
        self._answer()

    @property
    def pid(self) -> int:
        assert self._process_id is not None
        return self._process_id

    def ask(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the queue, or read a property; return what can be sent of it."""
        self.begin(name, *args, **options)
        return self.end()

    def begin(self, name: str, *args: Any, **options: Any) -> None:
        self._pipe.send((name, args, options))

    def end(self) -> Any:
        """Return the answer of the call that was begun; raise what it raised."""
        return self._answer()

    def kill(self) -> None:
        """End it by SIGKILL, and return when it has ended."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.join(PATIENCE_S)
        assert not self._process.is_alive()

    def finish(self) -> None:
        """Let it close the queue and exit."""
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(PATIENCE_S)
        assert not self._process.is_alive(), "the process did not end"
        self._pipe.close()

    def _answer(self) -> Any:
        assert self._pipe.poll(PATIENCE_S), "no answer"
        kind, answer = self._pipe.recv()
        if kind == "error":
            raise answer
        if kind == "bug":
            raise AssertionError(answer)
        return answer


@contextmanager
def sharing(path: Path, **options: Any) -> Iterator[SharingProcess]:
    """Start a process; it is ended at the end of the block, if it was not before."""
    process = SharingProcess(path, **options)
    try:
        yield process
    finally:
        process.finish()


def _live(pipe: Connection, path: str, options: dict[str, Any]) -> None:
    try:
        queue = penstock.open(path, shared=True, **options)
    except PenstockError as error:
        pipe.send(("error", error))
        return
    pipe.send(("opened", queue.role))
    with suppress(EOFError):
        while (command := pipe.recv()) is not None:
            name, args, given = command
            if name == "fork":
                pipe.send(("done", _fork_idle()))
                continue
            try:
                found = getattr(queue, name)
                pipe.send(("done", _plain(found(*args, **given) if callable(found) else found)))
            except PenstockError as error:
                pipe.send(("error", error))
            except Exception:
                pipe.send(("bug", traceback.format_exc()))
    queue.close()


def _fork_idle() -> int:
    """Fork a child that does nothing until it is killed. Return its process id."""
    pid = os.fork()
    while not pid:
        signal.pause()
    return pid


def _plain(answer: Any) -> Any:
    """Return an answer without what belongs to the process."""
    if isinstance(answer, penstock.LeasedMessage):
        return answer.payload.decode(), answer.receipt
    if isinstance(answer, penstock.Message):
        return answer.payload.decode()
    if isinstance(answer, list):
        return [_plain(one) for one in answer]
    if hasattr(answer, "__next__"):
        return [_plain(one) for one in answer]
    return answer
