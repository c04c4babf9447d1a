"""Whatever comes from outside is answered, or refused by an error of ours; nothing else, and fast.

Outside is: receipts and ids, which travel; events and snapshots, which lie on a disk.
"""

import json
import string
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from penstock import codec
from penstock.errors import BadEntry, InvalidInput, PenstockError, ReceiptInvalid
from penstock.ledger import Cursor
from penstock.model import Receipt
from penstock.queue import Queue
from penstock.queue.events import EventType, decode, encode
from penstock.queue.snapshot import dump_state, load_state
from penstock.queue.state import QueueState
from tests.harness.queue_life import Life
from tests.harness.queue_machine import QueueMachine
from tests.harness.queue_store import QueueStore

TEXT = string.ascii_letters + string.digits + "-_+/=\n\0 é\ud800"


def damaged(data: bytes, random: Random) -> bytes:
    """Bits flipped, a part cut out, doubled or overwritten."""
    some = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(some) + 1)
        length = random.choice((1, 2, 8, random.randrange(len(some) + 1)))
        match random.randrange(4):
            case 0 if at < len(some):
                some[at] ^= 1 << random.randrange(8)
            case 1:
                del some[at : at + length]
            case 2:
                some[at:at] = some[at : at + length]
            case _:
                some[at : at + length] = random.randbytes(length)
    return bytes(some)


def any_text(random: Random, like: str) -> str:
    match random.randrange(3):
        case 0:
            return "".join(random.choices(TEXT, k=random.randrange(40)))
        case 1:
            return damaged(like.encode(), random).decode("latin-1")
        case _:
            return "".join(random.choices(TEXT, k=len(like)))


def some_states() -> list[tuple[QueueMachine, bytes]]:
    found = []
    for seed in range(6):
        machine = QueueMachine()
        Life(machine, f"to be damaged {seed}").live(60)
        with machine.queue.core.lock:
            machine.queue.core.catch_up()
            found.append((machine, dump_state(machine.queue.core.state)))
    return found


def test_no_text_but_a_receipt_settles_anything(queue: Queue) -> None:
    random = Random("receipts")
    queue.enqueue_batch([b"a", b"b"])
    real = queue.lease()[0].receipt
    queue.lease()
    settle: list[Callable[[str], Any]] = [
        queue.ack,
        queue.nack,
        queue.release,
        lambda receipt: queue.extend(receipt, 10),
        lambda receipt: queue.ack([receipt, real]),
    ]
    before = queue.stats()
    for _ in range(20_000):
        text = any_text(random, real)
        if text.replace("+", "-").replace("/", "_") != real:  # two spellings of one receipt
            with pytest.raises(ReceiptInvalid):
                random.choice(settle)(text)
    assert queue.stats() == before


def test_no_receipt_but_the_one_given_settles_anything(queue: Queue) -> None:
    random = Random("forged")
    queue.enqueue_batch([b"a", b"b"])
    real = Receipt.unpack(queue.lease()[0].receipt)
    queue.lease()
    before = queue.stats()
    for _ in range(20_000):
        forged = real
        while forged == real:
            name, bits = random.choice(
                (("identity", 32), ("group", 16), ("attempt", 16), ("seq", 64), ("nonce", 64))
            )
            value = random.choice((0, 1, 2, 3, (1 << bits) - 1, random.getrandbits(bits)))
            forged = forged._replace(**{name: value})
        with pytest.raises(ReceiptInvalid):
            queue.ack(forged.pack())
    assert queue.stats() == before


def test_no_text_but_an_id_finds_a_message(queue: Queue) -> None:
    random = Random("ids")
    real = queue.enqueue(b"a")
    _, identity, _ = codec.parse_id(real)
    ask: list[Callable[[str], object]] = [
        queue.get,
        queue.state,
        queue.why,
        queue.history,
        queue.cancel,
        queue.redrive,
        lambda id_: queue.seek(id=id_),
        lambda id_: queue.groups.create("g", id=id_),
    ]
    before = queue.stats()
    for _ in range(10_000):
        text = any_text(random, real)
        if random.random() < 0.3:
            times = (0, 1, random.getrandbits(60))
            text = codec.make_id(random.choice(times), identity, random.getrandbits(48))
        if text.upper() != real:
            with pytest.raises(PenstockError):
                random.choice(ask)(text)
    assert queue.stats() == before


def test_a_damaged_event_is_refused_or_applied_and_never_more() -> None:
    random = Random("events")
    for machine, blob in some_states():
        state = QueueState(dedup_entries=100)
        load_state(state, blob)
        events = [
            (entry.type, entry.payload) for entry in _entries_of(machine.queue.core.ledger.events)
        ]
        for number in range(2_000):
            type_, body = random.choice(events)
            type_ = random.choice((type_, type_, type_, random.randrange(256)))
            try:
                event = decode(type_, damaged(body, random), timestamp_ns=number, event_seq=number)
            except BadEntry:
                continue
            if sum(count for _, count in event.runs) < 10_000:
                state.apply(event)
        for group in state.groups.values():
            assert min(group.waiting.ready, group.waiting.scheduled, group.parked) >= 0
        dump_state(state)


def _entries_of(log: Any) -> list[codec.Entry]:
    cursor, found = Cursor(log, log.first_seq), []
    while some := cursor.read(500):
        found += some
    return found


def test_every_kind_of_event_reads_back_as_it_was_written() -> None:
    random = Random("round trip")
    for machine, _ in some_states():
        for entry in _entries_of(machine.queue.core.ledger.events):
            event = decode(entry.type, entry.payload, timestamp_ns=1, event_seq=2)
            assert encode(event) == entry.payload
    for kind in EventType:
        with pytest.raises(BadEntry):
            decode(kind, random.randbytes(5), timestamp_ns=1, event_seq=2)


def test_a_damaged_snapshot_is_refused_or_loaded_and_never_more() -> None:
    random = Random("snapshots")
    refused = 0
    for _, blob in some_states():
        for _ in range(1_000):
            try:
                load_state(QueueState(dedup_entries=100), damaged(blob, random))
            except BadEntry:
                refused += 1
    assert refused > 1_000


def test_a_snapshot_with_any_value_in_its_header_is_refused_or_loaded() -> None:
    random = Random("headers")
    (_, blob), *_ = some_states()
    length = int.from_bytes(blob[:8], "little")
    header, rest = json.loads(blob[8 : 8 + length]), blob[8 + length :]
    values: tuple[object, ...] = (None, -1, 1 << 70, 1.5, "x", [], {}, [[]], True)
    for _ in range(2_000):
        changed = json.loads(json.dumps(header))
        place = random.choice((changed, *changed["groups"]))
        name = random.choice(list(place))
        if random.random() < 0.2:
            del place[name]
        else:
            place[name] = random.choice(values)
        data = json.dumps(changed).encode()
        try:
            load_state(QueueState(dedup_entries=100), len(data).to_bytes(8, "little") + data + rest)
        except BadEntry:
            continue


@pytest.mark.parametrize("value", [None, 1, 1.5, b"x", [], (), {"a": 1}, object(), ["x", 5]])
def test_what_is_no_text_at_all_is_refused_as_a_receipt_or_id(value: Any) -> None:
    queue = QueueStore().queue
    queue.enqueue(b"a")
    (leased,) = queue.lease()
    settle: list[Callable[[Any], object]] = [queue.ack, queue.nack, queue.release]
    settle.append(lambda value: queue.extend(value, 1))
    for call in settle:
        with pytest.raises((InvalidInput, ReceiptInvalid)):
            call(value)
    ask: list[Callable[[Any], object]] = [queue.get, queue.state, queue.why, queue.history]
    for call in (*ask, queue.cancel):
        with pytest.raises(PenstockError):
            call(value)
    queue.ack(leased)
