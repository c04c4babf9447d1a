"""An endpoint on a virtual clock: it answers as scripted, then with 200."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from penstock.broker.webhooks.sending import Answer
from tests.harness.virtual_loop import LoopClock

OK = Answer(200)
DOWN = Answer(0, "connection refused")


class Posted(NamedTuple):
    at_s: float  # since the clock began
    headers: Mapping[str, str]
    body: bytes

    @property
    def attempt(self) -> int:
        return int(msgspec.json.decode(self.body)["data"]["attempt"])


class Scripted:
    """Takes the place of what posts over HTTP."""

    def __init__(self, clock: LoopClock, answers: Iterable[Answer] = ()) -> None:
        self.answers = list(answers)
        self.otherwise = OK
        self.takes_s = 0.0
        self.calls: list[Posted] = []
        self._clock = clock

    @property
    def times_s(self) -> list[float]:
        """When it was called, to the hundredth."""
        return [round(call.at_s, 2) for call in self.calls]

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float
    ) -> Answer:
        self.calls.append(Posted(self._clock.passed_ns / 1e9, headers, body))
        answer = self.answers.pop(0) if self.answers else self.otherwise
        await asyncio.sleep(self.takes_s)
        return answer

    async def close(self) -> None:
        pass
