"""Many receipts are settled over several turns of the event loop, valid or not."""

import asyncio
from typing import Any, cast

import pytest

from penstock.broker import Outcome, Settlement
from penstock.broker.access import INSIDE
from penstock.broker.settling import settle_by_queue
from penstock.model import Receipt


class _Nothing:
    """A store and a catalogue without queues."""

    def queue_of(self, identity: int) -> None:
        return None

    def find(self, identity: int) -> "asyncio.Future[None]":
        found = asyncio.get_running_loop().create_future()
        found.set_result(None)
        return found


@pytest.mark.parametrize("is_forged", [False, True])
def test_ten_thousand_invalid_receipts_leave_turns_to_others(is_forged: bool) -> None:
    receipts = [
        Receipt(n + 1, 0, 1, n, 7).pack() if is_forged else f"no receipt {n}" for n in range(10_000)
    ]
    turns = 0

    async def settle() -> list[Outcome]:
        loop = asyncio.get_running_loop()

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        loop.call_soon(turn)
        nothing = cast(Any, _Nothing())
        settlements = [Settlement("ack", receipt) for receipt in receipts]
        return await settle_by_queue(nothing, nothing, INSIDE, settlements)

    outcomes = asyncio.run(settle())
    assert [one.receipt for one in outcomes] == receipts
    assert {one.status for one in outcomes} == {"gone" if is_forged else "invalid"}
    assert turns >= 9
