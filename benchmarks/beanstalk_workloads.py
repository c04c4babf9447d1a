"""Workloads of the beanstalk benchmark: one process sends the commands of all connections.

It uses plain sockets and epoll, and counts answers by their line ends, so that it costs less than
any server here. Bodies vary in size from 20 to 420 bytes, without line ends.
"""

import os
import select
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from measure import Figures, run_workload
from server_peers import beanstalkd, cpu_s, free_port, running

WARM_S = 1.0
_MOST_CONSUMED_PER_S = 60_000  # more than any run consumes
_FILL_DEPTH = 200


def of_penstock(
    directory: str, kind: str, connections: int, depth: int, seconds: int, options: bool
) -> Figures:
    with _penstock(directory) as (port, pid):
        return _measure(port, pid, kind, connections, depth, seconds, options=options)


def of_beanstalkd(
    directory: str, kind: str, connections: int, depth: int, seconds: int, sync_ms: int
) -> Figures:
    with beanstalkd(directory, sync_ms) as port:
        most = 15_000 if sync_ms == 0 else _MOST_CONSUMED_PER_S
        return _measure(port, 0, kind, connections, depth, seconds, most=most)


@contextmanager
def _penstock(directory: str) -> Iterator[tuple[int, int]]:
    """A broker's port for beanstalk, and its process id."""
    port, http = free_port(), free_port()
    command = [sys.executable, "-m", "penstock", "serve", directory, "--port", str(http)]
    command += ["--beanstalk", f"127.0.0.1:{port}"]
    environment = {**os.environ, "PENSTOCK_QUEUES_SYNC": "always"}
    with running(command, http, env=environment) as pid:
        yield port, pid


def _measure(
    port: int,
    pid: int,
    kind: str,
    connections: int,
    depth: int,
    seconds: int,
    *,
    options: bool = False,
    most: int = _MOST_CONSUMED_PER_S,
) -> Figures:
    talks = [_Talk(port) for _ in range(connections)]
    try:
        if kind == "consume":
            _fill(talks[0], most * (seconds + 1), options=options)
            work: Callable[[_Talk], int] = _Talk.reserve_or_delete
        else:
            for number, talk in enumerate(talks):
                talk.requests = [_puts(depth, number + n, options=options) for n in range(7)]
                talk.depth = depth
            work = _Talk.put_again
        _drive(talks, work, WARM_S)
        before = cpu_s(pid) if pid else 0.0
        count, took_s = _drive(talks, work, seconds)
        figures = {"rate": count / took_s}
        if pid:
            figures["cpu_us"] = (cpu_s(pid) - before) / count * 1e6
        return figures
    finally:
        for talk in talks:
            talk.socket.close()


def _puts(count: int, seed: int, *, options: bool = False) -> bytes:
    """Return several puts as one request."""
    made = []
    for number in range(seed * 31, seed * 31 + count):
        size = 20 + number * 37 % 400
        pri, ttr = (number * 977 % 5000, 30 + number % 90) if options else (65536, 60)
        made.append(b"put %d 0 %d %d\r\n%s\r\n" % (pri, ttr, size, b"x" * size))
    return b"".join(made)


def _fill(talk: "_Talk", count: int, *, options: bool) -> None:
    talk.requests = [_puts(_FILL_DEPTH, 1, options=options)]
    talk.depth = _FILL_DEPTH
    talk.socket.setblocking(True)
    for _ in range(-(-count // _FILL_DEPTH)):
        talk.socket.sendall(talk.requests[0])
        missing = _FILL_DEPTH
        while missing:
            missing -= talk.socket.recv(65536).count(b"\n")
    talk.socket.setblocking(False)


class _Talk:
    """One connection, and what it has to do next."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.requests: list[bytes] = []
        self.depth = 1
        self._turn = 0
        self._missing = 0
        self._got = b""
        self._has_begun = False

    def begin(self, work: Callable[["_Talk"], int]) -> None:
        """Send the first request, once: a second run goes on where the first ended."""
        if self._has_begun:
            return
        self._has_begun = True
        if work is _Talk.put_again:
            self._missing = self.depth
            self.socket.sendall(self.requests[0])
        else:
            self.socket.sendall(b"reserve-with-timeout 0\r\n")

    def put_again(self) -> int:
        """Read answers. When all have come, put again. Return how many jobs were inserted."""
        got = self.socket.recv(65536)
        found = got.count(b"\n")
        if not found or b"INSERTED" not in got:
            raise RuntimeError(got[:200])
        self._missing -= found
        if not self._missing:
            self._turn += 1
            self._missing = self.depth
            request = self.requests[self._turn % len(self.requests)]
            sent = self.socket.send(request)
            if sent < len(request):
                self.socket.setblocking(True)
                self.socket.sendall(request[sent:])
                self.socket.setblocking(False)
        return found

    def reserve_or_delete(self) -> int:
        """Delete the job that came, or reserve the next one. Return 1 for a deleted job."""
        self._got += self.socket.recv(65536)
        got = self._got
        if got == b"DELETED\r\n":
            self._got = b""
            self.socket.send(b"reserve-with-timeout 0\r\n")
            return 1
        head, end, body = got.partition(b"\r\n")
        if end and head.startswith(b"RESERVED"):
            _, id_, size = head.split()
            if len(body) == int(size) + 2:
                self._got = b""
                self.socket.send(b"delete %s\r\n" % id_)
        elif end:
            raise RuntimeError(f"the jobs ran out, or failed: {got[:200]!r}")
        return 0


def _drive(talks: list[_Talk], work: Callable[[_Talk], int], seconds: float) -> tuple[int, float]:
    """Keep all connections busy for some seconds. Return how many jobs, and how long it took."""
    poll = select.epoll()
    by_number = {}
    for talk in talks:
        by_number[talk.socket.fileno()] = talk
        poll.register(talk.socket.fileno(), select.EPOLLIN)
    count = 0
    began = perf_counter()
    until = began + seconds
    for talk in talks:
        talk.begin(work)
    while perf_counter() < until:
        for number, _ in poll.poll(1.0, 256):
            count += work(by_number[number])
    took_s = perf_counter() - began
    poll.close()
    return count, took_s


if __name__ == "__main__":
    works = (of_penstock, of_beanstalkd)
    run_workload({work.__name__: work for work in works})
