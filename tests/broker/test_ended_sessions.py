"""Sessions that were ended: known to every broker, bounded, never valid again."""

import asyncio
from unittest.mock import patch

from penstock.broker import ended_sessions
from penstock.broker.ended_sessions import DOCUMENT, SESSION_S, EndedSessions
from penstock.broker.store import save_document
from penstock.errors import LedgerError
from penstock.model import NS
from tests.broker.conftest import OpenBroker
from tests.harness.virtual_loop import LoopClock


def in_s(clock: LoopClock, seconds: int) -> int:
    return clock.now_ns() // NS + seconds


async def test_an_ended_session_is_known_at_every_broker_within_a_second(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    expires_s = in_s(clock, SESSION_S)
    async with open_broker() as broker:
        first, second = broker.ended_sessions, EndedSessions(broker.store, clock)
        assert not await second.has("a", expires_s)
        await first.end("a", expires_s)
        assert await first.has("a", expires_s)
        await asyncio.sleep(1.1)
        assert await second.has("a", expires_s)
        assert not await second.has("b", expires_s)
        await second.end("b", expires_s)
        first.on_document(DOCUMENT)  # the store reports it: no need to wait
        assert await first.has("b", expires_s)
    async with open_broker() as broker:
        assert await broker.ended_sessions.has("a", expires_s), "after a restart"


async def test_a_session_is_dropped_from_the_list_when_it_would_have_ended_anyway(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        await broker.ended_sessions.end("one", in_s(clock, 10))
        await asyncio.sleep(11)
        await broker.ended_sessions.end("two", in_s(clock, 10))
        content = await broker.store.load_document(DOCUMENT) or b""
        assert (b"one" in content, b"two" in content) == (False, True)


async def test_the_list_is_bounded_and_no_ended_session_is_valid_again(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    now_s = in_s(clock, 0)
    async with open_broker() as broker:
        ended = broker.ended_sessions
        with patch.object(ended_sessions, "MAX_ENDED", 10):
            for n in range(50):
                await ended.end(f"session-{n}", now_s + 1000 + n)
        content = await broker.store.load_document(DOCUMENT) or b""
        assert content.count(b"session-") == 10
        for one in (ended, EndedSessions(broker.store, clock)):
            for n in range(50):
                assert await one.has(f"session-{n}", now_s + 1000 + n)
            assert await one.has("as old", now_s + 1039)
            assert not await one.has("younger", now_s + 1040)


async def test_a_damaged_list_ends_the_sessions_so_far(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    async with open_broker() as broker:
        await save_document(broker.store, DOCUMENT, b"{not json")
        ended = EndedSessions(broker.store, clock)
        assert await ended.has("old", in_s(clock, SESSION_S))
        await asyncio.sleep(1)
        login_s = in_s(clock, SESSION_S)
        assert not await ended.has("new", login_s)
        await asyncio.sleep(5)
        assert not await ended.has("new", login_s)
        await ended.end("other", login_s)
        await asyncio.sleep(5)
        assert not await ended.has("newer", in_s(clock, SESSION_S))
        assert await ended.has("other", login_s)


async def test_what_is_known_stays_known_while_the_store_cannot_be_read(
    open_broker: OpenBroker, clock: LoopClock
) -> None:
    expires_s = in_s(clock, 100)
    async with open_broker() as broker:
        await broker.ended_sessions.end("a", expires_s)
        with patch.object(broker.store, "load_document", side_effect=LedgerError("no answer")):
            await asyncio.sleep(5)
            assert await broker.ended_sessions.has("a", expires_s)
            assert not await broker.ended_sessions.has("b", expires_s)
