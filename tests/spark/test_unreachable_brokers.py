"""A URL at which no broker answers: reads, writes and jobs say so soon, and change nothing."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.errors import Unreachable
from penstock.spark import jobs
from penstock.spark.writers import check_target
from tests.spark.in_process import source
from tests.spark.test_held_queues import WaitingClock

PAYLOAD = StructType([StructField("payload", BinaryType())])


@pytest.fixture
def closed() -> Iterator[str]:
    """The URL of a port that is bound and not listened at: connections are refused."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a port that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def _read_stream(url: str) -> None:
    source(url, queue="shop/orders").streamReader(PAYLOAD).initialOffset()


STARTS: dict[str, Callable[[str], object]] = {
    "schema": lambda url: source(url).schema(),
    "read": lambda url: source(url, queue="shop/orders").reader(PAYLOAD),
    "read stream": _read_stream,
    "write": lambda url: source(url, queue="shop/orders").writer(PAYLOAD, overwrite=False),
    "write stream": lambda url: source(url, queue="shop/orders").streamWriter(
        PAYLOAD, overwrite=False
    ),
    "job": lambda url: jobs.check_redrive(url, "shop/orders", "main"),
    "target of a job": lambda url: check_target(url, "shop/orders"),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_refused_connection_is_an_error_after_seconds_of_retries(
    start: str, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WaitingClock(lambda: None)
    monkeypatch.setattr("penstock.client.connection.SystemClock", lambda: clock)
    with pytest.raises(Unreachable, match="no broker answers at .*Check the URL"):
        STARTS[start](closed)
    assert 0 < sum(clock.waited_s) <= 10


@pytest.mark.parametrize("start", STARTS)
def test_a_broker_that_never_answers_is_an_error_after_one_timeout(
    start: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.arrow.locations.REACH_S", 0.05)
    with pytest.raises(Unreachable, match="no broker answers at .*Check the URL"):
        STARTS[start](silent)


def test_a_directory_is_not_asked(tmp_path: Path) -> None:
    source(tmp_path / "orders").writer(PAYLOAD, overwrite=False)
