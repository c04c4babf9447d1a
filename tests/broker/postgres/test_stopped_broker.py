"""A broker that hangs without closing its connections, as a process that gets SIGSTOP."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.broker.postgres import PostgresStore
from penstock.broker.store import Settlement
from penstock.errors import Unavailable
from penstock.model import NewMessage
from tests.conformance.conftest import Heard
from tests.harness.cluster_member import ORDERS, options
from tests.harness.postgres_server import PostgresServer

ALIVE_S = 2.0


class Member:
    """Another broker's process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def publish(self, payload: str) -> str:
        """Have it publish a message. Return what it says."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{payload}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


@contextmanager
def member(url: str, schema: str) -> Iterator[Member]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.harness.cluster_member", url, schema, str(ALIVE_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Member(process)
    finally:
        process.kill()
        process.communicate()


def test_calls_to_a_stopped_owner_are_answered_by_the_next_one_and_it_is_fenced_off(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    schema = new_schema()

    async def main(other: Member) -> None:
        store = PostgresStore(postgres_server.url, options(schema, ALIVE_S))
        await store.open(Heard())
        try:
            await story(other, store)
        finally:
            await store.close()

    async def story(other: Member, store: PostgresStore) -> None:
        assert await asyncio.to_thread(other.publish, "one") == "done"
        await store.publish(ORDERS, [b"forwarded"])

        other.signal(signal.SIGSTOP)
        unknown = store.publish(ORDERS, [b"perhaps"])  # it may be carried out or not
        known = store.publish(ORDERS, [NewMessage(payload=b"two", dedup_id="2")])
        lease = store.lease(ORDERS, 2)
        with pytest.raises(Unavailable, match="broke"):
            await unknown
        await known  # sent again, to the new owner: this broker
        leased = await lease
        assert [one.payload for one in leased] == [b"one", b"forwarded"]
        assert ORDERS in await asyncio.to_thread(store.membership.owned)

        other.signal(signal.SIGCONT)
        said = await asyncio.to_thread(other.publish, "three")
        # Else it has noticed by itself that the queue is not its own any more.
        is_fenced = said != "done"
        assert not is_fenced or "took the queue over" in said
        assert await asyncio.to_thread(other.publish, "four") == "done"
        leased += await store.lease(ORDERS, 10)
        expected = [b"two", b"four"] if is_fenced else [b"two", b"three", b"four"]
        assert [one.payload for one in leased[2:]] == expected
        acks = [Settlement("ack", one.receipt) for one in leased]
        assert all(one.ok for one in await store.settle(ORDERS, acks))

    with member(postgres_server.url, schema) as other:
        asyncio.run(main(other))
