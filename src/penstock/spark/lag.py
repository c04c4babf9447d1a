"""The lag of streaming queries: from Spark's progress, and published to the broker.

Spark tells a listener of each micro-batch, with the offsets it read up to. The listener reports
them to the broker as positions of a reader, and the broker computes the lag when it is asked. So
the lag of a query that has died grows.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import PathLike, fspath
from threading import Condition
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.arrow.locations import check_reachable, default_key
from penstock.background_thread import BackgroundThread
from penstock.checking import check_local, check_number, is_url
from penstock.client import ClientOptions, connect_broker
from penstock.client.address import broker_address
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, PenstockError
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.queue_directory import announced_url
from penstock.names import check_name
from penstock.spark.stream_reader import EVENTS, Seqs, is_offsets, split_offsets

log = logging.getLogger("penstock.spark")

DEFAULT_INTERVAL_S, MAX_INTERVAL_S = 10.0, 3600.0
_EXPIRES_S = 3600.0
_TIMEOUT_S = 10.0
_NAME_CHARS = 64
_MAX_QUERIES = 1000  # whose positions are remembered for idle times
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


class Position(NamedTuple):
    """How far a query is in a queue."""

    seq: int  # the next one that it reads
    rows_per_s: float


Positions = Mapping[tuple[str, str], Position]  # by queue and reader
Send = Callable[[str, str, Position], None]  # queue, reader


def lag_of(progress: Any) -> dict[str, int]:
    """Return how many messages of each queue a query has not read, from its progress.

    `progress` is `query.lastProgress`, or that of a listener's event. Sources of other formats are
    left out.

    >>> lag_of({"sources": [{"endOffset": {"orders": 3, "orders//identity": 7},
    ...                      "latestOffset": {"orders": 10, "orders//identity": 7}}]})
    {'orders': 7}
    """
    lags: dict[str, int] = {}
    for source in _sources(progress):
        latest = _seqs(source, "latestOffset")
        for queue, seq in _seqs(source, "endOffset").items():
            lag = max(latest.get(queue, seq) - seq, 0)
            lags[queue] = max(lags.get(queue, 0), lag)
    return lags


def publish_lag(
    spark: SparkSession,
    location: str | PathLike[str],
    *,
    key: str | None = None,
    reader: str | None = None,
    interval_s: float = DEFAULT_INTERVAL_S,
) -> "LagListener":
    """Publish how far the session's streaming queries are, to the broker that they read from.

    Args:
        spark: The session of the queries. Those that are started later are included.
        location: URL of the broker, or its data directory. While no broker runs on a directory,
            nothing is published.
        key: API key with the right `consume`. The default is PENSTOCK_KEY of the environment.
        reader: Name under which the broker shows the queries. The default is each query's name.
        interval_s: Publish at most this often.

    Call `close()` of the result to stop.
    """
    listener = LagListener(location, key=key, reader=reader, interval_s=interval_s)
    spark.streams.addListener(listener)
    return listener


class LagListener(StreamingQueryListener):
    """Reports the positions of queries, from a thread: Spark's listeners must not wait."""

    def __init__(
        self,
        location: str | PathLike[str],
        *,
        key: str | None = None,
        reader: str | None = None,
        interval_s: float = DEFAULT_INTERVAL_S,
        clock: Clock | None = None,
        send: Send | None = None,
    ) -> None:
        check_number("interval_s", interval_s, 0, MAX_INTERVAL_S)
        self._reader = None if reader is None else check_name("reader", reader)
        self._clock: Clock = clock or SystemClock()
        self._interval_s = interval_s
        self._send = _Sender(fspath(location), key).send if send is None else send
        self._known: dict[str, Positions] = {}  # by query
        self._pending: dict[tuple[str, str], Position] = {}
        self._is_urgent = self._is_closed = False
        self._changed = Condition()
        self._thread = BackgroundThread(self._run)

    # -- called by Spark ---------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the first micro-batch tells more."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        found = positions_of(progress, self._reader or reader_name(progress.name, progress.id))
        if found:
            self._note(str(progress.id), found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Report the last positions again, so that they do not expire."""
        known = self._known.get(str(event.id))
        if known is not None:
            self._note(str(event.id), {key: Position(seq, 0.0) for key, (seq, _) in known.items()})

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Report the last position without delay. The broker shows it until it expires."""
        with self._changed:
            self._known.pop(str(event.id), None)
            self._is_urgent = True
            self._changed.notify_all()

    # -- reporting ---------------------------------------------------------------------------------

    def _note(self, query: str, found: Positions) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._known.pop(query, None)
            self._known[query] = found
            while len(self._known) > _MAX_QUERIES:
                del self._known[next(iter(self._known))]
            self._pending.update(found)
            self._changed.notify_all()
        self._thread.start()

    def close(self) -> None:
        """Send what is waiting, and stop. The session may keep the listener."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._is_closed:
                    self._changed.wait()
                if not self._pending:
                    return
                sent, self._pending = self._pending, {}
                self._is_urgent = False
            for (queue, reader), position in sent.items():
                self._send(queue, reader, position)
            self._pause()

    def _pause(self) -> None:
        """Wait for the interval, or until a query ends."""
        clock = self._clock
        until_ns = clock.monotonic_ns() + round(self._interval_s * 1e9)
        with self._changed:
            while not self._is_urgent and not self._is_closed:
                left_s = (until_ns - clock.monotonic_ns()) / 1e9
                if left_s <= 0:
                    return
                clock.wait(self._changed, left_s)


class _Sender:
    """Sends reports to a broker. A failure is logged, the first of several as a warning."""

    def __init__(self, location: str, key: str | None) -> None:
        if is_url(location):
            check_reachable(location)
            self._url: str | None = broker_address(location)
            self._directory = None
        else:
            self._url = None
            self._directory = Folder(OsFiles(), check_local(location))
            if not self._directory.exists():
                raise InvalidInput(
                    f"{location} does not exist: give the URL of the broker, or its data directory"
                )
        self._key = default_key(key)
        self._has_failed = False

    def send(self, queue: str, reader: str, position: Position) -> None:
        url = self._url if self._directory is None else announced_url(self._directory)
        if url is None or "/" not in queue:
            log.debug("no broker has the queue %s: %s is at %d", queue, reader, position.seq)
            return
        options = ClientOptions(
            key=self._key, timeout_s=_TIMEOUT_S, retry_s=_TIMEOUT_S, max_connections=1
        )
        try:
            with connect_broker(url, options=options) as broker:
                broker.report_reader(
                    queue,
                    reader,
                    position.seq,
                    rows_per_s=position.rows_per_s,
                    expires_s=_EXPIRES_S,
                )
            self._has_failed = False
        except PenstockError as error:
            level = logging.DEBUG if self._has_failed else logging.WARNING
            log.log(level, "the lag of %s in %s is not published: %s", reader, queue, error)
            self._has_failed = True


# -- progress --------------------------------------------------------------------------------------


def positions_of(progress: Any, reader: str) -> dict[tuple[str, str], Position]:
    """Return how far a query is in each queue. If it reads a queue twice, the lower position."""
    found: dict[tuple[str, str], Position] = {}
    for source in _sources(progress):
        if EVENTS in _offsets(source, "latestOffset"):
            continue  # it reads the log of events
        rate = _field(source, "processedRowsPerSecond")
        rows_per_s = rate if isinstance(rate, float) and 0 <= rate < 1e12 else 0.0
        for queue, seq in _seqs(source, "endOffset").items():
            before = found.get((queue, reader))
            if before is None or seq < before.seq:
                found[queue, reader] = Position(seq, rows_per_s)
    return found


def reader_name(name: str | None, query_id: object) -> str:
    """Return a reader's name for a query: its own, without what names must not have.

    A name that had to be changed gets a digest of the whole, so that no two become one.

    >>> reader_name("orders", "320d6d91-26f3"), reader_name("orders to Parquet", "320d6d91-26f3")
    ('orders', 'orders-to-Parquet-08a58d24')
    >>> reader_name(None, "320d6d91-26f3")
    'spark-320d6d91'
    """
    if not name:
        return f"spark-{str(query_id)[:8]}"
    plain = _NOT_IN_NAMES.sub("-", name).strip("-.")[:_NAME_CHARS].rstrip(".")
    if plain == name:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{plain[: _NAME_CHARS - 9].rstrip('-.') or 'spark'}-{digest}"


def _sources(progress: Any) -> list[Any]:
    return list(_field(progress, "sources") or ()) if progress is not None else []


def _field(value: Any, name: str) -> Any:
    """Return a field of Spark's progress, which is an object or, in older versions, a dict."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _offsets(source: Any, name: str) -> dict[str, Any]:
    offsets = _field(source, name)
    if isinstance(offsets, str):
        with suppress(ValueError):
            offsets = json.loads(offsets)
    return offsets if is_offsets(offsets) else {}


def _seqs(source: Any, name: str) -> Seqs:
    found = {key: seq for key, seq in _offsets(source, name).items() if key != EVENTS}
    return split_offsets(found).seqs
