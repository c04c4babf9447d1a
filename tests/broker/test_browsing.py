"""A small page of messages is read in the event loop, a longer search in a thread."""

from threading import current_thread, main_thread
from typing import Any

import pytest

from penstock.broker import Caller, QueueName, Settlement
from penstock.operations import Browse
from penstock.queue.inspecting import Inspecting
from penstock.queue.operation_handlers import MAX_QUICK_BYTES, MAX_QUICK_ROWS
from penstock.queue.quick_page import QuickPages
from tests.broker.conftest import OpenBroker

ON_DISK = True
ANN = Caller("ip:ann")
ORDERS = QueueName("shop", "orders")
QUEUES = {"sync": "never"}


@pytest.fixture
def in_loop(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each page was read in the loop: at once, or by a search."""
    found: list[bool] = []
    search, page = Inspecting.search, QuickPages.page

    def noted(*arguments: Any, **options: Any) -> Any:
        found.append(current_thread() is main_thread())
        return search(*arguments, **options)

    def noted_if_read(*arguments: Any, **options: Any) -> Any:
        made = page(*arguments, **options)
        if made is not None:
            found.append(current_thread() is main_thread())
        return made

    monkeypatch.setattr(Inspecting, "search", noted)
    monkeypatch.setattr(QuickPages, "page", noted_if_read)
    return found


@pytest.mark.parametrize(
    ("payload", "browse", "expected"),
    [
        (b"x", Browse(limit=10), [True]),
        (b"x", Browse("ready", limit=MAX_QUICK_ROWS), [True]),
        (b"x", Browse(limit=MAX_QUICK_ROWS + 1), [False]),
        (b"x", Browse("done", limit=10), [False]),
        (b"x", Browse(text="y", limit=10), [True, False]),  # reads too many
        (b"x", Browse(text="y", limit=10, budget=20), [True]),
        (b"x" * (MAX_QUICK_BYTES // 4), Browse(limit=10), [True, False]),
        (b"x" * (MAX_QUICK_BYTES // 4), Browse(limit=10, budget=8), [True, False]),
        (b"x" * (MAX_QUICK_BYTES // 4), Browse(limit=3), [True]),
    ],
)
async def test_only_a_small_page_is_read_in_the_loop(
    open_broker: OpenBroker,
    in_loop: list[bool],
    payload: bytes,
    browse: Browse,
    expected: list[bool],
) -> None:
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [payload] * (MAX_QUICK_ROWS + 50))
        page = await broker.run(ANN, browse, ORDERS)
        assert in_loop == expected
        matching = browse.text is None and browse.state != "done"
        rows = min(browse.limit, browse.budget) if matching else 0
        assert [row.message.seq for row in page.rows] == list(range(1, rows + 1))
        assert page.exhausted == (browse.budget <= page.looked_at)


async def test_after_a_page_that_was_too_large_the_next_ones_are_read_in_a_thread_for_a_while(
    open_broker: OpenBroker, in_loop: list[bool]
) -> None:
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"x" * MAX_QUICK_BYTES] * 3)
        for _ in range(2):
            await broker.run(ANN, Browse(limit=10), ORDERS)
        assert in_loop == [True, False, False]
        await broker.lease(ANN, QueueName("shop", "empty"), wait_s=60)
        await broker.run(ANN, Browse(limit=1), ORDERS)
        assert in_loop == [True, False, False, True]


async def test_a_page_has_each_message_with_its_state_across_gaps(open_broker: OpenBroker) -> None:
    async with open_broker(queues=QUEUES) as broker:
        await broker.publish(ANN, ORDERS, [b"%d" % number for number in range(1, 9)])
        leased = await broker.lease(ANN, ORDERS, n=5)
        await broker.settle(ANN, [Settlement("ack", leased[at].receipt) for at in (1, 3)])
        first = await broker.run(ANN, Browse(limit=4), ORDERS)
        assert [(row.message.payload, row.state, row.attempts) for row in first.rows] == [
            (b"1", "leased", 1),
            (b"3", "leased", 1),
            (b"5", "leased", 1),
            (b"6", "ready", 0),
        ]
        rest = await broker.run(ANN, Browse(after_seq=first.next_seq, limit=4), ORDERS)
        assert [row.message.payload for row in rest.rows] == [b"7", b"8"]
        assert rest.next_seq == 0
