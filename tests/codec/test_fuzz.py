"""Half a million damaged inputs per push, ten million in the long ring."""

import random

import pytest

from penstock import codec
from penstock.codec.entry import COLUMN_NAMES
from tests.codec.bodies import assert_same, needs_compiled, outcome
from tests.codec.damage import TIME_NS, damaged, random_run
from tests.codec.guarded import GuardedMemory

pytestmark = needs_compiled

BAD = {"BadEntry", "NewerVersion"}
COMPARED_EVERY = 25
CORPUS = 400


def fuzz(seed: int, inputs: int) -> None:
    """Decode that many spoiled inputs; an over-read by a byte would kill the process."""
    source = random.Random(seed)
    memory = GuardedMemory(1 << 16)
    corpus = [random_run(source, source.randrange(1, 6)) for _ in range(CORPUS)]
    for number in range(inputs):
        spoiled = damaged(source, corpus[number % CORPUS])
        if number % 7 == 0:
            corpus[number % CORPUS] = spoiled[:4096]  # damage upon damage
        if number % 10 == 0:
            corpus[source.randrange(CORPUS)] = random_run(source, source.randrange(1, 6))
        data = memory.hold(spoiled)
        decode(data)
        if number % COMPARED_EVERY == 0:
            compare(data, source)


def decode(data: memoryview) -> None:
    """Everything that reads; whatever it answers must lie inside the data."""
    end = len(data)
    found = codec.skim(data, 0, end, index_from=0)
    assert 0 <= found.end <= found.stop <= end
    kind, answer, _ = outcome(codec.read_entries, data, 0, end, max_count=64)
    if kind == "value":
        entries, after = answer
        assert after <= end
        for entry in entries:
            payload_end = entry.offset + entry.size - 4
            assert payload_end < after
            assert data[payload_end - len(entry.payload) : payload_end] == entry.payload
    else:
        assert (kind in BAD, answer) == (True, 0)
    kind, answer, _ = outcome(codec.decode_columns, data, 0, end, COLUMN_NAMES, max_rows=64)
    if kind == "value":
        assert answer.next_offset <= end
        assert len(answer.buffers["seq"]) == 8 * answer.rows
    else:
        assert (kind in BAD, answer) == (True, 0)
    at = codec.resync(data, min(1, end), end, min_seq=0, max_seq=200, min_timestamp_ns=TIME_NS)
    if at >= 0:
        kind, answer, _ = outcome(codec.unpack, data, at, end)
        assert kind in {"value", *BAD}
        assert (answer.offset if kind == "value" else answer) == at
    messages, after = codec.read_messages(data, 0, end, max_count=64, identity=1)
    assert after <= end
    assert sum(len(message.payload) for message in messages) <= after
    first, last, after = codec.skip_plain(data, 0, end, end_seq=1 << 40)
    assert first <= last
    assert after <= end
    kind, answer, _ = outcome(codec.seek, data, 0, end, seq=100)
    assert kind in {"value", *BAD}
    assert answer < end


def compare(data: memoryview, source: random.Random) -> None:
    end = len(data)
    assert_same("unpack", data, 0, end)
    assert_same("read_entries", data, 0, end, max_count=64)
    assert_same("skim", data, 0, end, index_from=0)
    assert_same("seek", data, 0, end, seq=100)
    assert_same("read_messages", data, 0, end, max_count=64, identity=1)
    assert_same("skip_plain", data, 0, end, end_seq=1 << 40)
    start = source.randrange(end + 1)
    assert_same("resync", data, start, end, min_seq=0, max_seq=1 << 63)
    assert_same("first_nonzero", data, start, end)
    assert_same("decode_columns", data, 0, end, COLUMN_NAMES)


@pytest.mark.parametrize("seed", range(10))
def test_no_damage_leads_out_of_the_buffer(seed: int) -> None:
    fuzz(seed, 50_000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_no_damage_leads_out_of_the_buffer_in_ten_million(seed: int) -> None:
    fuzz(seed, 500_000)
