"""Wrong arguments raise the same error on every kind of queue, and nothing is changed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from inspect import isawaitable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.client import connect_broker
from penstock.errors import InvalidInput
from penstock.operations import (
    Browse,
    CancelDeliverable,
    ListDead,
    ListHistory,
    Operation,
    ReleaseHolder,
    Verb,
)
from penstock.operations.answers import nothing
from tests.server.running import RunningServer

Call = Callable[[Any], Any]
KINDS = ("directory", "memory", "directory, asyncio", "broker", "broker, asyncio")
_numbers = count(1)


class Opened:
    """An open queue of any kind, used from a plain test."""

    def __init__(self, kind: str, place: Path, server: RunningServer) -> None:
        self._runner = asyncio.Runner()
        number = next(_numbers)
        if kind.startswith("broker"):
            with connect_broker(server.url) as broker:
                broker.create_queue(f"errors/q{number}")
        url = f"{server.url}/errors/q{number}"
        path = place / f"q{number}"
        opens: dict[str, Callable[[], Any]] = {
            "directory": lambda: penstock.open(path),
            "memory": lambda: penstock.open("memory:"),
            "directory, asyncio": lambda: self._runner.run(penstock.aio.open(path)),
            "broker": lambda: penstock.connect(url, retry_s=0),
            "broker, asyncio": lambda: penstock.aio.connect(url, retry_s=0),
        }
        self.queue: Any = opens[kind]()

    def do(self, call: Call) -> Any:
        """Call a method to its end: an awaitable is awaited, an iterator is read."""
        found = call(self.queue)
        if isawaitable(found):
            return self._runner.run(_awaited(found))
        if isinstance(found, AsyncIterator):
            return self._runner.run(_read(found))
        return list(found) if isinstance(found, Iterator) else found

    def close(self) -> None:
        self.do(lambda queue: queue.close())
        self._runner.close()


async def _awaited(found: Any) -> Any:
    return await found


async def _read(found: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in found]


@pytest.fixture(params=KINDS)
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, server: RunningServer
) -> Iterator[Opened]:
    queue = Opened(request.param, tmp_path, server)
    yield queue
    queue.close()


# -- run -------------------------------------------------------------------------------------------

ID = "01M7MCZAARS076KW0000000003"


@dataclass(frozen=True, slots=True)
class Own(Operation[None]):
    """An operation that Penstock does not have."""

    verb = Verb.READ
    answer = nothing()


NOT_RUN: list[tuple[Any, str]] = [
    (5, "not 5"),
    (None, "not None"),
    (Operation(), "run takes an operation"),
    (Operation, "Operation is a class"),
    (Browse, r"Browse is a class: give a value, Browse\(\)"),
    (Browse(), r"Browse is an operation of brokers: use browse\(\)"),
    (ListDead(), r"use dead\(\)"),
    (ListHistory(ID), r"use history\(\)"),
    (ReleaseHolder("ann"), r"use release\(\)"),
    (CancelDeliverable(1), r"use cancel\(\) or purge\(\)"),
    (Own(), "Own"),
]


@pytest.mark.parametrize(("operation", "text"), NOT_RUN, ids=lambda value: str(value)[:30])
def test_what_is_no_operation_of_a_queue_is_not_run(
    opened: Opened, operation: Any, text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        opened.do(lambda queue: queue.run(operation))
