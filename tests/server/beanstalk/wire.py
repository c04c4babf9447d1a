"""A beanstalk connection as bytes, and a real beanstalkd to compare with."""

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.server.beanstalk.listener import BeanstalkListener
from tests.server.running import RunningServer

PATIENCE_S = 30
_WITH_BODY = re.compile(rb"(?:OK|FOUND \d+|RESERVED \d+) (\d+)")


class Talk:
    """One connection. Bytes are sent as they are; answers are read one by one."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(PATIENCE_S)
        try:
            self.socket.connect(("127.0.0.1", port))
        except BaseException:
            self.socket.close()
            raise
        self._rest = b""

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, *lines: bytes) -> list[bytes]:
        """Send commands together. Return their answers, each a line, perhaps with a body."""
        self.send(b"".join(line + b"\r\n" for line in lines))
        return [self.answer() for _ in lines]

    def one(self, line: bytes) -> bytes:
        return self.ask(line)[0]

    def put(self, body: bytes, pri: int = 65536, delay: int = 0, ttr: int = 60) -> int:
        """Put a job and return its id."""
        self.send(b"put %d %d %d %d\r\n%s\r\n" % (pri, delay, ttr, len(body), body))
        word, id_ = self.answer().split()
        assert word == b"INSERTED"
        return int(id_)

    def reserve(self, timeout_s: int = 0) -> tuple[int, bytes] | None:
        """Return the id and the body of a job, None if there is none."""
        answer = self.one(b"reserve-with-timeout %d" % timeout_s)
        if answer == b"TIMED_OUT":
            return None
        head, _, body = answer.partition(b"\r\n")
        word, id_, _ = head.split()
        assert word == b"RESERVED", answer
        return int(id_), body

    def answer(self) -> bytes:
        """Return the next answer, without the CR LF at its end."""
        line = self._until(b"\r\n")
        found = _WITH_BODY.fullmatch(line)
        if found is None:
            return line
        size = int(found[1]) + 2
        while len(self._rest) < size:
            self._receive()
        body, self._rest = self._rest[: size - 2], self._rest[size:]
        return line + b"\r\n" + body

    def stats(self, command: bytes) -> dict[str, str]:
        """Return the mapping of a stats command."""
        _, _, text = self.one(command).partition(b"\r\n")
        lines = text.decode().splitlines()[1:]
        return dict(line.split(": ", 1) for line in lines)

    def is_closed(self) -> bool:
        """Wait for the server to close the connection, and discard what it sends before."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def _until(self, end: bytes) -> bytes:
        while end not in self._rest:
            self._receive()
        line, _, self._rest = self._rest.partition(end)
        return line

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        assert data, f"the server closed the connection; unread: {self._rest[:200]!r}"
        self._rest += data


def listener_of(server: RunningServer) -> BeanstalkListener:
    (listener,) = server.server.listeners
    assert isinstance(listener, BeanstalkListener)
    return listener


def beanstalk_server(data: Path, **settings: Any) -> RunningServer:
    """A server that speaks beanstalk on a free port."""
    return RunningServer(data, beanstalk="127.0.0.1:0", **settings)


def talk_to(server: RunningServer, **options: Any) -> Talk:
    return Talk(listener_of(server).port, **options)


def is_beanstalkd_there() -> bool:
    return shutil.which("beanstalkd") is not None


@contextmanager
def real_beanstalkd(*options: str) -> Iterator[int]:
    """Return the port of a beanstalkd of one's own."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), *options]
    with subprocess.Popen(command) as process:
        try:
            until = time.monotonic() + PATIENCE_S
            while True:
                try:
                    Talk(port).close()
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < until and process.poll() is None
                    time.sleep(0.01)
            yield port
        finally:
            process.kill()
