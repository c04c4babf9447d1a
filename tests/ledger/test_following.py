"""Following the tail: a reader waits for an entry and is woken by it."""

from threading import Event, Thread

import pytest

from penstock.errors import LedgerClosed
from penstock.ledger import Cursor
from tests.ledger.store import Store, payload_of

DEADLINE_S = 30


class Follower(Thread):
    """Reads a log to a given seq, always waiting for the next entry."""

    def __init__(self, store: Store, upto: int) -> None:
        super().__init__(daemon=True)
        self._log = store.messages
        self._upto = upto
        self.found: list[bytes] = []
        self.waits = Event()
        self.error: Exception | None = None

    def run(self) -> None:
        cursor = Cursor(self._log, 1)
        try:
            while cursor.next_seq <= self._upto:
                self.waits.set()
                if not self._log.wait_for(cursor.next_seq, DEADLINE_S):
                    break
                self.found += [entry.payload for entry in cursor.read(10)]
        except Exception as error:
            self.error = error


def test_a_waiting_reader_sees_every_entry_as_it_comes(any_store: Store) -> None:
    follower = Follower(any_store, upto=200)
    follower.start()
    follower.waits.wait(DEADLINE_S)
    for _ in range(40):
        any_store.fill(4)
    any_store.messages.append_batch([payload_of(161 + n) for n in range(40)])
    any_store.ledger.commit()
    follower.join(DEADLINE_S)
    assert follower.error is None
    assert follower.found == [payload_of(seq) for seq in range(1, 201)]


def test_several_readers_wait_and_all_are_woken(any_store: Store) -> None:
    followers = [Follower(any_store, upto=50) for _ in range(4)]
    for follower in followers:
        follower.start()
        follower.waits.wait(DEADLINE_S)
    any_store.fill(50)
    for follower in followers:
        follower.join(DEADLINE_S)
        assert follower.found == [payload_of(seq) for seq in range(1, 51)]


def test_waiting_ends_with_its_time(any_store: Store) -> None:
    any_store.fill(1)
    assert any_store.messages.wait_for(1, 0)
    assert not any_store.messages.wait_for(2, 0)
    assert not any_store.messages.wait_for(2, 0.001)


def test_closing_wakes_those_who_wait(any_store: Store) -> None:
    follower = Follower(any_store, upto=5)
    any_store.fill(2)
    follower.start()
    follower.waits.wait(DEADLINE_S)
    log = any_store.messages
    any_store.close()
    follower.join(DEADLINE_S)
    assert not follower.is_alive()
    with pytest.raises(LedgerClosed):
        Cursor(log, 1).read(1)


def test_with_always_a_waiter_is_not_woken_before_the_entry_is_durable(store: Store) -> None:
    from dataclasses import replace

    from tests.ledger.store import SMALL

    store.open(replace(SMALL, sync="always"))
    store.messages.append(b"not yet durable")
    assert not store.messages.wait_for(1, 0)
    assert Cursor(store.messages, 1).read(10) == []
    store.ledger.commit()
    assert store.messages.wait_for(1, 0)
    assert len(Cursor(store.messages, 1).read(10)) == 1
