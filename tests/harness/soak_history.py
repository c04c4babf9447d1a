"""What happened in a soak, for the report of a failure.

Clients and disturbances note what they did, with the time and the broker. When a message is missing
or out of order, the brokers and the database are asked at once what they know of it: the next
compaction may remove its events.
"""

import http.client
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

_MOST_NOTES = 400  # about brokers and the database
_TIMEOUT_S = 5.0


class History:
    """Notes about each message, and about the brokers. Methods are called by any thread."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._url = url
        self._started = time.time()
        self._lock = threading.Lock()
        self._of: dict[str, list[tuple[float, str]]] = defaultdict(list)  # by payload
        self._general: deque[tuple[float, str]] = deque(maxlen=_MOST_NOTES)
        self.reports: list[Path] = []

    def note(self, payload: str, text: str) -> None:
        with self._lock:
            self._of[payload].append((time.time(), text))

    def note_all(self, text: str) -> None:
        """Note what is not about one message: a disturbance, a request that failed."""
        with self._lock:
            self._general.append((time.time(), text))

    def report(
        self, wrong: str, messages: Sequence[tuple[str, str | None]], ports: Sequence[int]
    ) -> None:
        """Write down what is known of messages, given as payload and id."""
        lines = [wrong, f"the soak began at {self._time(self._started)}"]
        for payload, id_ in messages:
            lines.append(f"-- {payload} {id_}")
            with self._lock:
                lines += [f"{self._time(at)} {text}" for at, text in self._of[payload]]
            paths = [f"messages/{id_}", f"messages/{id_}/history", f"messages/{id_}/why"]
            lines += [f"{path}: {_asked(ports, path)}" for path in paths if id_ is not None]
        lines.append("-- brokers, the database and requests")
        with self._lock:
            lines += [f"{self._time(at)} {text}" for at, text in self._general]
        lines += self._tables()
        written = self._directory / f"report-{len(self.reports)}.txt"
        written.write_text("\n".join(lines))
        self.reports.append(written)

    def _tables(self) -> list[str]:
        lines = []
        try:
            with psycopg.connect(self._url, autocommit=True, connect_timeout=5) as connection:
                connection.execute("set search_path to penstock")
                for query in (
                    "select id, name, identity, owner, token, repeats from queue",
                    "select number, address, url, server, alive_until, now() from broker",
                    "select queue, id, parent, name, size from node order by queue, parent, name",
                    "select queue, node, count(*), min(version), max(version) from chunk "
                    "group by queue, node order by queue, node",
                ):
                    lines.append(f"-- {query}")
                    lines += [repr(row) for row in connection.execute(query).fetchall()]
        except psycopg.Error as error:
            lines.append(f"the database does not answer: {error}")
        return lines

    def _time(self, at: float) -> str:
        return time.strftime("%H:%M:%S", time.gmtime(at)) + f"{at % 1:.3f}"[1:]


def _asked(ports: Sequence[int], path: str) -> Any:
    """Return the first answer of the brokers, all of which know the same; else the refusals."""
    refused = []
    for port in ports:
        is_answer, answer = _asked_at(port, path)
        if is_answer:
            return answer
        refused.append((port, answer))
    return refused


def _asked_at(port: int, path: str) -> tuple[bool, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"/api/v1/{path}")
        response = connection.getresponse()
        text = response.read()
        if response.status == 200:
            return True, json.loads(text)
        return False, (response.status, text)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return False, repr(error)
    finally:
        connection.close()
