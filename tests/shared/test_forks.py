"""Forks: a handle that was opened before works in the child, and the parent's is not disturbed."""

import os
import signal
import socket
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.shared.processes import PATIENCE_S, SharingProcess, sharing

_fork = get_context("fork")


class Child:
    """A forked child that runs a function and then waits to be ended."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._pipe, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_run, args=(theirs, self._pipe, work), daemon=True)
        self._process.start()
        theirs.close()

    def answer(self) -> Any:
        assert self._pipe.poll(PATIENCE_S), "no answer"
        return self._pipe.recv()

    def end(self) -> None:
        self._pipe.send("end")
        self._process.join(PATIENCE_S)
        assert self._process.exitcode == 0
        self._pipe.close()


def _run(pipe: Connection, others: Connection, work: Callable[[], Any]) -> None:
    others.close()
    try:
        pipe.send(work())
    except BaseException as error:
        pipe.send(repr(error))
    pipe.recv()


def test_a_handle_of_the_holder_works_in_a_child(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", shared=True) as queue:
        queue.enqueue("before")
        child = Child(lambda: (queue.enqueue("in the child"), queue.role)[1])
        assert child.answer() == "client"
        assert queue.role == "holder"
        queue.enqueue("after")
        assert [m.payload for m in queue.peek(5)] == [b"before", b"in the child", b"after"]
        child.end()
        assert queue.stats().ready == 3


def test_a_handle_of_a_client_works_in_a_child(tmp_path: Path) -> None:
    with (
        sharing(tmp_path / "q") as holder,
        penstock.open(tmp_path / "q", shared=True) as queue,
    ):
        queue.enqueue("before")
        child = Child(lambda: (queue.enqueue("in the child"), queue.role)[1])
        assert child.answer() == "client"
        child.end()
        queue.enqueue("after")
        assert holder.ask("stats").ready == 3


def test_a_child_of_the_holder_does_not_keep_its_lock_or_sockets(tmp_path: Path) -> None:
    """Otherwise nobody could take over, and clients would wait for answers of no one."""
    queue = penstock.open(tmp_path / "q", shared=True)
    with sharing(tmp_path / "q") as client:
        client.ask("enqueue", "over a connection that the child inherits")
        child = Child(lambda: "uses nothing")
        assert child.answer() == "uses nothing"
        queue.close()
        client.ask("enqueue", "at the next holder")
        assert client.ask("role") == "holder"
        assert client.ask("stats").ready == 2
        child.end()


@pytest.mark.parametrize("where", ["queue", "data"])
def test_a_killed_holder_is_replaced_while_its_children_live(tmp_path: Path, where: str) -> None:
    """As when the master of gunicorn is killed, which opened the queue before it forked."""
    path = tmp_path / where
    options = {"queue": "shop/orders"} if where == "data" else {}
    holder = SharingProcess(path, **options)
    with sharing(path, **options) as client:
        client.ask("enqueue", "one")
        child = holder.ask("fork")
        try:
            holder.kill()
            client.ask("enqueue", "two")
            assert client.ask("role") == "holder"
            assert client.ask("peek", 5) == ["one", "two"]
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_takes_over_when_its_parent_closes(tmp_path: Path) -> None:
    queue = penstock.open(tmp_path / "q", shared=True)
    queue.enqueue("one")
    first_used, use_again = _fork.Pipe()

    def work() -> list[bytes]:
        queue.enqueue("two")
        use_again.send("used")
        use_again.recv()
        queue.enqueue("three")
        return [message.payload for message in queue.peek(5)]

    child = Child(work)
    assert first_used.poll(PATIENCE_S)
    assert first_used.recv() == "used"
    queue.close()
    first_used.send("go on")
    assert child.answer() == [b"one", b"two", b"three"]
    child.end()


def test_a_child_that_closes_its_copy_leaves_the_parent_the_holder(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", shared=True) as queue:
        child = Child(lambda: (queue.close(), "closed")[1])
        assert child.answer() == "closed"
        child.end()
        assert queue.role == "holder"
        queue.enqueue("one")
        with sharing(tmp_path / "q") as client:
            assert client.ask("peek", 5) == ["one"]


def test_a_leased_message_is_settled_by_a_child(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", shared=True) as queue:
        queue.enqueue("one")
        (job,) = queue.lease()

        def settle() -> str:
            with job:
                return job.payload.decode()

        child = Child(settle)
        assert child.answer() == "one"
        child.end()
        assert queue.stats().acked == 1


def test_forks_while_clients_connect_leave_no_open_copies(tmp_path: Path) -> None:
    """The child finds connections that the holder accepted but does not know of yet."""
    with penstock.open(tmp_path / "q", shared=True) as queue:
        address = os.path.join(queue.path, "SOCKET")
        connections = []
        for _ in range(5):
            one = socket.socket(socket.AF_UNIX)
            one.connect(address)
            connections.append(one)

        def own_sockets() -> list[str]:
            links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            inodes = {os.readlink(link) for link in links if os.path.exists(link)}
            with open("/proc/net/unix") as table:
                return [line for line in table if address in line and _inode(line) in inodes]

        assert own_sockets()
        child = Child(own_sockets)
        assert child.answer() == []
        child.end()
        for one in connections:
            one.close()


def _inode(line: str) -> str:
    return f"socket:[{line.split()[6]}]"
