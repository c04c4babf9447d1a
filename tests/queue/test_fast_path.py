"""The fast path writes what the general behaviours write, and leaves the same state behind."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.errors import ReceiptInvalid
from penstock.ledger import Cursor
from penstock.model import LeasedMessage
from penstock.queue import Queue
from penstock.queue.events import decode, encode
from penstock.queue.fast_path import Nonces
from penstock.queue.snapshot import dump_state
from penstock.queue.state import QueueState
from tests.harness.queue_store import QueueStore
from tests.harness.whole_state import whole


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Queue, Queue]]:
    """Two queues with the same past, and with the same nonces to come."""
    monkeypatch.setattr(Nonces, "next", lambda self: 4711)
    stores = QueueStore(clock=ManualClock()), QueueStore(clock=ManualClock())
    for store in stores:
        store.queue.enqueue_batch([b"a", b"b", b"c"])
        store.queue.enqueue(b"d", headers={"name": "value"})
    yield stores[0].queue, stores[1].queue
    for store in stores:
        store.close()


def written(queue: Queue) -> list[tuple[int, int, bytes]]:
    entries = Cursor(queue.core.ledger.events, 1).read(100)
    return [(entry.timestamp_ns, entry.type, entry.payload) for entry in entries]


def state(queue: Queue) -> bytes:
    queue.core.catch_up()
    return dump_state(queue.core.state)


def fast_take(queue: Queue) -> None:
    assert queue.behaviours.fast_path.take() is not None


def general_take(queue: Queue) -> None:
    assert queue.behaviours.delivering.take(1, "main")


def fast_lease(queue: Queue) -> None:
    assert queue.behaviours.fast_path.lease() is not None


def general_lease(queue: Queue) -> None:
    assert queue.behaviours.delivering.lease(1, None, "main", "")


def fast_lease_and_ack(queue: Queue) -> None:
    (leased,) = queue.behaviours.delivering.lease(1, None, "main", "")
    assert queue.behaviours.fast_path.ack(leased)


def general_lease_and_ack(queue: Queue) -> None:
    queue.behaviours.settling.ack(queue.behaviours.delivering.lease(1, None, "main", ""))


@pytest.mark.parametrize(
    ("fast", "general"),
    [
        (fast_take, general_take),
        (fast_lease, general_lease),
        (fast_lease_and_ack, general_lease_and_ack),
    ],
)
def test_it_writes_the_same_event_and_makes_the_same_change(
    pair: tuple[Queue, Queue], fast: Callable[[Queue], None], general: Callable[[Queue], None]
) -> None:
    for _ in range(4):
        fast(pair[0])
        general(pair[1])
    assert written(pair[0]) == written(pair[1])
    assert state(pair[0]) == state(pair[1])
    assert pair[0].stats() == pair[1].stats()


def test_it_hands_out_the_same_message(pair: tuple[Queue, Queue]) -> None:
    for _ in range(2):
        taken, (other,) = pair[0].behaviours.fast_path.take(), pair[1].dequeue_batch(1)
        assert taken is not None
        assert taken[1:] == other[1:]  # the id has the queue's identity in it
        leased, (held,) = pair[0].behaviours.fast_path.lease(), pair[1].lease(1, holder="x")
        assert leased is not None
        assert leased.message[1:] == held.message[1:]
        assert leased.ticket[1:-1] == held.ticket[1:-1]


def test_take_does_not_apply_if_more_than_plain_messages_wait(queue: Queue) -> None:
    queue.enqueue(b"plain")
    queue.enqueue(b"urgent", priority=9)
    assert queue.behaviours.fast_path.take() is None
    first = queue.dequeue()
    assert first is not None
    assert first.payload == b"urgent"


def test_a_lease_follows_priorities_keys_and_delays(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"plain")
    queue.enqueue(b"first of its key", key="k")
    queue.enqueue(b"second of its key", key="k", priority=9)
    queue.enqueue(b"urgent", priority=9)
    queue.enqueue(b"late", delay=1, priority=7)
    clock.advance(2)
    fast_path, found = queue.behaviours.fast_path, list[bytes]()
    while (leased := fast_path.lease()) is not None:
        found.append(leased.payload)
        if leased.message.key:
            assert fast_path.ack(leased)
    assert found == [b"urgent", b"late", b"plain", b"first of its key", b"second of its key"]


def test_the_next_of_a_key_goes_before_later_messages_that_were_found_ahead(queue: Queue) -> None:
    for key in "pqabacd":
        queue.enqueue(b"x", key=key)
    fast_path = queue.behaviours.fast_path
    found = []
    while (leased := fast_path.lease()) is not None:
        found.append(leased.seq)
        assert fast_path.ack(leased)
    assert found == [1, 2, 3, 4, 5, 6, 7]


def test_messages_that_need_an_entry_are_leased_between_others(queue: Queue) -> None:
    for number in range(30):
        dedup_id = str(number) if number % 4 == 0 else None
        queue.enqueue(b"%d" % number, priority=3 + number % 3, dedup_id=dedup_id)
    found = []
    while (leased := queue.behaviours.fast_path.lease()) is not None:
        found.append((leased.message.priority, int(leased.payload)))
    assert found == sorted(((3 + number % 3, number) for number in range(30)), key=by_priority)


def test_messages_that_are_due_in_another_order_are_read_from_all_segments() -> None:
    store = QueueStore({"segment_bytes": 8192}, clock=ManualClock())
    for number in range(2_000):
        delay, dedup_id = 1 + number * 7919 % 2_000, str(number) if number % 97 == 0 else None
        store.queue.enqueue(b"%d" % delay, delay=delay, dedup_id=dedup_id)
    store.clock.advance(3_000)
    found = []
    while (leased := store.queue.behaviours.fast_path.lease()) is not None:
        found.append(int(leased.payload))
        assert store.queue.behaviours.fast_path.ack(leased)
    assert found == list(range(1, 2_001))
    assert len(store.queue.core.ledger.messages.segments.all) > 3
    store.close()


def by_priority(message: tuple[int, int]) -> tuple[int, int]:
    return -message[0], message[1]


def test_a_message_published_without_the_lock_goes_before_lower_priorities(queue: Queue) -> None:
    for _ in range(5):
        queue.enqueue(b"low", priority=1)
    fast_path = queue.behaviours.fast_path
    assert fast_path.lease() is not None  # finds the others as well
    queue.enqueue(b"plain")
    leased = fast_path.lease()
    assert leased is not None
    assert leased.payload == b"plain"


def test_it_does_not_apply_if_a_message_may_have_expired(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"stale", ttl=1)
    queue.enqueue(b"fresh")
    clock.advance(2)
    assert queue.behaviours.fast_path.take() is None
    (leased,) = queue.lease()
    assert leased.payload == b"fresh"


def test_it_does_not_apply_if_something_has_become_due(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"later", delay=1)
    queue.enqueue(b"a")
    queue.enqueue(b"b")
    assert queue.behaviours.fast_path.take() is not None
    clock.advance(1)
    assert queue.behaviours.fast_path.take() is None
    assert [queue.dequeue(), queue.dequeue()] != [None, None]


def test_it_does_not_apply_if_a_lease_ran_out(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_batch([b"a", b"b", b"c"])
    (first,) = queue.lease()
    clock.advance(31)
    assert queue.behaviours.fast_path.lease() is None
    (second,) = queue.lease()  # by the general way, which puts the timeout on record
    assert second.payload == b"b"
    assert not queue.behaviours.fast_path.ack(first)  # late, and yet in time
    queue.ack(first)
    clock.advance(1)
    assert [job.payload for job in queue.lease(9)] == [b"c"]


def test_a_paused_queue_gives_nothing(queue: Queue) -> None:
    queue.enqueue(b"a")
    queue.pause()
    assert queue.dequeue() is None
    assert queue.lease() == []


def test_a_receipt_settles_once_on_any_path(queue: Queue) -> None:
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    queue.ack(leased)
    with pytest.raises(ReceiptInvalid):
        queue.ack(leased)


def test_a_write_that_fails_takes_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue_batch([b"a", b"b"])

    def fail(*_: object) -> int:
        raise OSError("no")

    with monkeypatch.context() as patch:
        broken = SimpleNamespace(append_event=fail, append_event_of_one=fail)
        patch.setattr(queue.core.ledger.events, "fast_packer", broken)
        for call in (queue.dequeue, queue.lease):
            with pytest.raises(OSError, match="no"):
                call()
    taken = [queue.dequeue(), queue.dequeue()]
    assert [message.payload for message in taken if message] == [b"a", b"b"]


def test_ends_of_leases_that_were_acked_do_not_pile_up(queue: Queue) -> None:
    queue.enqueue_batch([b"x"] * 100)
    group = queue.core.state.groups[0]
    for _ in range(100):
        queue.ack(queue.lease()[0])
    assert group.lease_ends.heap == []
    assert group.lease_ends.next_ns() is None


# -- random states ---------------------------------------------------------------------------------


def fields(state: QueueState) -> object:
    """Return every field. Runs note late what was taken from their front: make them do it."""
    for group in state.groups.values():
        for lane in group.waiting.lanes:
            len(lane.fresh)
    return whole(state)


class RandomState:
    """A queue in a random state in which the fast path applies often."""

    def __init__(self) -> None:
        ages = {"starvation_after_s": 1.0}  # priorities change while the clock advances
        self.store = QueueStore({"max_attempts": 3, "lease_s": 5.0, **ages}, clock=ManualClock())
        self.queue = self.store.queue
        self.held: list[LeasedMessage] = []
        self.applied = 0

    def do(self, act: str, number: int) -> None:
        queue = self.queue
        match act:
            case "publish":
                queue.enqueue_batch([b"%d" % number] * (number + 1))
            case "delay":
                queue.enqueue(b"later", delay=number + 1, dedup_id=str(number))
            case "keys":
                queue.enqueue(b"keyed", key=f"k{number % 3}", delay=100 if number == 7 else 0)
            case "after":
                first, second = queue.enqueue_batch([b"1", b"2"])
                ids = [held.id for held in self.held[-2:]] or [first]
                queue.enqueue(b"3", after=[*ids, second], key="k0" if number % 2 else None)
            case "priority":
                queue.enqueue(b"urgent", priority=number + 2)
            case "lease":
                self.held += queue.lease(number + 1, lease_s=3 + number)
            case "nack" if self.held:
                queue.nack(self._take(number), "no", delay=None if number % 2 else number)
            case "kill" if self.held:
                queue.behaviours.settling.nack([self._take(number)], "never", final=True)
            case "release" if self.held:
                queue.release(self._take(number))
            case "extend" if self.held:
                queue.extend(self.held[number % len(self.held)], 10)
            case "group":
                queue.groups.create(f"g{number}")
            case "seek":
                queue.seek(seq=max(queue.stats().next_seq - number, 1))
                self.held.clear()
            case "advance":
                self.store.clock.advance(number / 3)
                queue.stats()
                self.held = [one for one in self.held if self._is_held(one)]

    def _take(self, number: int) -> LeasedMessage:
        return self.held.pop(number % len(self.held))

    def _is_held(self, one: LeasedMessage) -> bool:
        lease = self.queue.core.main.leases.get(one.seq)
        return lease is not None and lease.nonce == one.ticket.nonce

    def fast(self, call: Callable[[], object]) -> bool:
        """Call the fast path. If it applies, `apply` must change a copy in the same way."""
        core = self.queue.core
        core.catch_up()
        core.state.promote(core.clock.now_ns())
        before, next_event = deepcopy(core.state), core.ledger.events.next_seq
        if not call():
            assert fields(core.state) == fields(before)
            assert core.ledger.events.next_seq == next_event
            return False
        (entry,) = Cursor(core.ledger.events, next_event, unsynced=True).read(2)
        event = decode(entry.type, entry.payload, timestamp_ns=entry.timestamp_ns, event_seq=0)
        assert entry.payload == encode(event)
        before.moment.mono_ns = core.state.moment.mono_ns
        before.apply(event)
        assert fields(core.state) == fields(before)
        assert dump_state(core.state) == dump_state(before)
        self.applied += 1
        return True

    def check(self, number: int) -> None:
        fast, leased = self.queue.behaviours.fast_path, list[LeasedMessage]()

        def lease() -> bool:
            core = self.queue.core
            following = next(core.in_order(core.main, core.clock.now_ns()), None)
            found = fast.lease()
            leased.extend([found] if found else [])
            assert found is None or found.seq == following
            return found is not None

        self.fast(fast.take)
        self.fast(lease)
        self.fast(lease)
        self.held += leased
        if self.held:
            one = self.held[-1 - number % len(self.held)]
            if self.fast(lambda: fast.ack(one)):
                self.held.remove(one)


ACTS = [
    "publish",
    "delay",
    "keys",
    "after",
    "priority",
    "lease",
    "nack",
    "kill",
    "release",
    "extend",
    "group",
    "seek",
]
STEPS = st.tuples(st.sampled_from(["publish", "publish", *ACTS, "advance"]), st.integers(0, 7))


@settings(max_examples=settings.default.max_examples // 4)  # type: ignore[union-attr]
@given(st.lists(STEPS, min_size=1, max_size=12))
def test_it_changes_every_field_of_a_random_state_as_apply_does(
    steps: list[tuple[str, int]],
) -> None:
    life = RandomState()
    for act, number in steps:
        life.do(act, number)
        life.check(number)
    life.store.close()


@pytest.mark.parametrize("act", ACTS)
def test_it_applies_in_states_with_a_past(act: str) -> None:
    life = RandomState()
    for number in (3, 1, 2):
        life.do("publish", 7)
        life.do("lease", 2)
        life.do(act, number)
        life.check(number)
    assert life.applied >= 4
    life.store.close()
