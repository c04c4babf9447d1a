"""A proxy before a server, which can cut a connection between a request and its answer."""

import socket
import struct
import threading
from contextlib import suppress


class CuttingProxy:
    """Passes everything on, until it is told to swallow an answer and cut the connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._answers_to_swallow = 0
        self.cuts = 0
        self._is_resetting = False
        self._start(self._accept)

    def swallow_answers(self, count: int) -> None:
        """Cut each of the next `count` connections that answer, in place of the answer."""
        with self._lock:
            self._answers_to_swallow = count

    def reset_all(self, last_words: bytes) -> None:
        """Send bytes to every client, and reset its connection: the kernel does so for a process
        that dies with unread data."""
        with self._lock:
            self._is_resetting = True
            for client, server in zip(self._sockets[::2], self._sockets[1::2], strict=True):
                client.sendall(last_words)
                for one in (client, server):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.shutdown(socket.SHUT_RD)  # wakes its thread, and sends nothing

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._sockets += [client, server]
            self._start(self._pass_on, client, server, False)
            self._start(self._pass_on, server, client, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                with self._lock:
                    cut = answers and self._answers_to_swallow > 0
                    if cut:
                        self._answers_to_swallow -= 1
                        self.cuts += 1
                if cut:
                    break
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            with suppress(OSError), self._lock:
                if self._is_resetting:
                    one.close()
                else:
                    one.shutdown(socket.SHUT_RDWR)
