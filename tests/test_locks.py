"""No interrupt leaves a lock acquired, on any version of Python."""

import ast
import ctypes
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import call
from pathlib import Path
from threading import Condition, Lock
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

import penstock
from penstock.locks import GuardedLock, GuardedRLock
from tests.harness.interrupts import Interrupter

SOURCE = Path(penstock.__file__).parent


class Interrupted(Exception):
    pass


@pytest.fixture
def signal_comes() -> Iterator[Callable[[], int]]:
    """A function of C code: the signal has come when it returns, and its handler has not run."""

    def handle(_: int, __: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    yield partial(ctypes.CDLL(None)["raise"], int(signal.SIGUSR1))
    signal.signal(signal.SIGUSR1, before)


def in_one_call(*functions: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function of C code that calls others."""
    return partial(deque, map(call, functions), 0)


def enter(lock: Any) -> None:
    with lock:
        pass


def test_an_interrupt_right_after_acquiring_a_lock_releases_it(
    signal_comes: Callable[[], int],
) -> None:
    inner = Lock()
    acquire = in_one_call(inner.acquire, signal_comes)
    lock = GuardedLock(SimpleNamespace(__enter__=acquire, __exit__=inner.__exit__))
    with pytest.raises(Interrupted):
        enter(lock)
    assert not inner.locked()


def test_an_interrupt_right_after_acquiring_a_reentrant_lock_releases_it_once(
    signal_comes: Callable[[], int],
) -> None:
    class Interrupting(GuardedRLock):
        @property
        def acquire(self) -> Any:
            return in_one_call(super().acquire, signal_comes)

    lock = Interrupting()
    GuardedRLock.acquire(lock)
    with pytest.raises(Interrupted):
        enter(lock)
    assert lock._is_owned()
    lock.release()
    assert not lock._is_owned()


def test_why_locks_are_guarded(signal_comes: Callable[[], int]) -> None:
    """If this fails on a new Python, the guard may not be needed there."""

    class Plain:
        __slots__ = ("__enter__", "__exit__")

    inner, lock = Lock(), cast(Any, Plain())
    lock.__enter__ = in_one_call(inner.acquire, signal_comes)
    lock.__exit__ = inner.__exit__
    with pytest.raises(Interrupted):
        enter(lock)
    assert inner.locked() == (sys.version_info >= (3, 14))


@pytest.mark.parametrize("make", [GuardedLock, GuardedRLock])
def test_a_guarded_lock_is_free_after_an_interrupt_at_any_point(make: Callable[[], Any]) -> None:
    lock, at = make(), 0
    counting = Interrupter(None)
    counting.run(lambda: enter(lock))
    for at in range(1, counting.points + 1):
        with pytest.raises(KeyboardInterrupt):
            Interrupter(at).run(lambda: enter(lock))
        assert lock.acquire(blocking=False)
        lock.release()
    assert at > 0


@pytest.mark.parametrize("make", [GuardedLock, GuardedRLock])
def test_a_guarded_lock_is_a_lock(make: Callable[[], Any]) -> None:
    lock = make()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    changed = Condition(lock)
    with lock:
        assert not changed.wait(timeout=0)
        changed.notify_all()
    with pytest.raises(RuntimeError):
        lock.release()
    with lock:
        if make is GuardedLock:
            assert not lock.acquire(blocking=False)
            assert lock.locked()
        else:
            with lock:
                assert lock._recursion_count() == 2


def test_other_modules_use_these_locks() -> None:
    """Those of the benchmark command count times only."""
    found = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (
            (isinstance(node, ast.ImportFrom) and node.module == "threading")
            and {one.name for one in node.names} & {"Lock", "RLock"}
        )
        or (
            (isinstance(node, ast.Attribute) and node.attr in {"Lock", "RLock"})
            and (isinstance(node.value, ast.Name) and node.value.id == "threading")
        )
    ]
    assert sorted(set(found)) == ["cli/bench.py", "locks.py"]
