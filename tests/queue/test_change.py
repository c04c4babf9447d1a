"""Marking the state while it is changed."""

from threading import RLock

from penstock.queue.core import depth_in, depth_of


def test_the_depth_of_a_lock_is_told_by_every_python() -> None:
    lock = RLock()
    for depth in (1, 2, 3):
        lock.acquire()
        assert depth_of(lock)() == depth_in(repr(lock)) == depth
    for _ in range(3):
        lock.release()
