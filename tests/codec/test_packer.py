"""Appending: all or nothing, in order, and visible only when it is whole."""

import mmap
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.codec import codec_py, packer_py
from penstock.codec.entry import Draft
from penstock.codec.layout import CHECKPOINT, CHECKPOINT_BYTES, MAX_BATCH_BYTES, MAX_SEQ
from penstock.errors import InvalidInput, TooLarge
from tests.codec.bodies import Body, each_body

SIZE = 4096


def packer_of(body: Body, buffer: Any = None, **options: Any) -> Any:
    buffer = bytearray(SIZE) if buffer is None else buffer
    options = {"position": 0, "limit": len(buffer), "next_seq": 1} | options
    return body.Packer(buffer, **options)


def checkpoint_of(data: bytes | bytearray, offset: int) -> tuple[int, int, int]:
    entry = codec_py.unpack(data, offset, len(data))
    assert entry.type == CHECKPOINT
    promise, count, size = struct.unpack("<QII", entry.payload)
    return promise, count, size


# -- what is written -------------------------------------------------------------------------------


@each_body
def test_entries_follow_each_other_with_dense_seqs(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer, position=64, next_seq=5)
    assert packer.append(b"one", 10) == 5
    assert packer.append_batch([Draft(b"two", key=b"k")], 11) == 6
    assert packer.append_batch([b"three", Draft(b"four")], 12) == 7
    entries, after = body.read_entries(buffer, 64, SIZE, max_count=10)
    assert [(e.seq, e.timestamp_ns, e.payload) for e in entries] == [
        (5, 10, b"one"),
        (6, 11, b"two"),
        (7, 12, b"three"),
        (8, 12, b"four"),
    ]
    assert after == packer.position
    assert packer.next_seq == 9
    assert packer.last_timestamp_ns == 12
    assert not any(buffer[:64])
    assert not any(buffer[after:])


@each_body
def test_time_never_goes_back(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer, last_timestamp_ns=50)
    packer.append(b"a", 10)
    packer.append(b"b", 60)
    packer.append(b"c", 59)
    entries, _ = body.read_entries(buffer, 0, SIZE, max_count=10)
    assert [e.timestamp_ns for e in entries] == [50, 60, 60]


@each_body
def test_several_entries_are_framed_and_one_is_not(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer)
    packer.append_batch([b"alone"], 1)
    assert packer.position == 31
    packer.append_batch([b"a", b"bc"], 2)
    assert checkpoint_of(buffer, 31) == (0, 2, 27 + 28)
    assert packer.position == 31 + CHECKPOINT_BYTES + 27 + 28


@each_body
def test_a_promise_heads_the_next_call_and_only_that(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer)
    packer.append(b"a", 1)
    packer.promise(27)
    packer.append(b"b", 2)
    assert checkpoint_of(buffer, 27) == (27, 0, 0)
    after = packer.position
    packer.append(b"c", 3)
    assert body.unpack(buffer, after, SIZE).payload == b"c"
    packer.promise(packer.position)
    at = packer.position
    packer.append_batch([b"d", b"e"], 4)
    assert checkpoint_of(buffer, at) == (at, 2, 54)


@each_body
def test_a_checkpoint_can_be_written_alone(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer, limit=60, last_timestamp_ns=9)
    assert packer.write_checkpoint(5) is True  # nothing was promised
    assert packer.position == 0
    packer.promise(0)
    assert packer.write_checkpoint(5) is True
    assert checkpoint_of(buffer, 0) == (0, 0, 0)
    assert body.unpack(buffer, 0, SIZE).timestamp_ns == 9
    packer.promise(42)
    assert packer.write_checkpoint(12) is False
    assert packer.last_timestamp_ns == 9
    packer.limit = 84
    assert packer.write_checkpoint(12) is True
    assert checkpoint_of(buffer, 42) == (42, 0, 0)


@each_body
def test_any_bytes_like_payload_is_taken(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer)
    kinds: list[Any] = [bytearray(b"abc"), memoryview(b"-abc")[1:]]
    for payload in kinds:
        packer.append(payload, 1)
    packer.append_batch(kinds, 1)
    packer.append_batch([Draft(kinds[0])], 1)
    entries, _ = body.read_entries(buffer, 0, SIZE, max_count=10)
    assert [e.payload for e in entries] == [b"abc"] * 5
    for wrong in (5, "text", None):
        with pytest.raises(TypeError):
            packer.append(wrong, 1)
    with pytest.raises(BufferError):
        packer.append(memoryview(b"abcd")[::2], 1)
    assert packer.next_seq == 6


# -- where it stops --------------------------------------------------------------------------------


@each_body
def test_without_room_nothing_is_written_and_the_promise_is_kept(body: Body) -> None:
    buffer = bytearray(200)
    packer = packer_of(body, buffer, limit=CHECKPOINT_BYTES + 29)
    packer.promise(0)
    assert packer.append(b"four", 5) == -1
    assert packer.append_batch([b"a", b"b"], 5) == -1
    assert not any(buffer)
    assert (packer.position, packer.next_seq, packer.last_timestamp_ns) == (0, 1, 0)
    assert packer.append(b"tre", 5) == 1  # exactly full
    assert checkpoint_of(buffer, 0) == (0, 0, 0)
    assert packer.append(b"", 5) == -1


@each_body
def test_a_closed_gate_sends_every_caller_back(body: Body) -> None:
    packer = packer_of(body)
    packer.append(b"a", 1)
    packer.limit = 0
    packer.promise(0)
    assert packer.append(b"b", 1) == -1
    assert packer.append_batch([Draft(b"b")], 1) == -1
    assert packer.append_batch([b"b", b"c"], 1) == -1
    assert packer.write_checkpoint(1) is False
    packer.limit = SIZE
    assert packer.append(b"b", 1) == 2


@each_body
def test_the_seq_limit_and_the_time_limit_are_kept(body: Body) -> None:
    packer = packer_of(body)
    packer.seq_limit = 4
    assert packer.append_batch([b""] * 4, 1) == -1
    assert packer.append_batch([b""] * 3, 1) == 1
    assert packer.append(b"", 1) == -1
    packer.seq_limit = MAX_SEQ
    packer.time_limit_ns = 10
    assert packer.append(b"", 11) == -1
    assert packer.append(b"", 10) == 4
    packer.seq_limit = -5
    assert packer.append(b"", 10) == -1


@each_body
def test_seqs_end_before_2_to_the_63(body: Body) -> None:
    packer = packer_of(body, next_seq=MAX_SEQ - 1)
    assert packer.append_batch([b"", b""], 1) == -1
    assert packer.append(b"", 1) == MAX_SEQ - 1
    assert packer.append(b"", 1) == -1


# -- what is refused -------------------------------------------------------------------------------


@each_body
def test_a_batch_with_one_bad_item_changes_nothing(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer)
    bad: list[Any] = [
        Draft(b"", priority=10),
        Draft(b"", headers={"n": "v" * 0x10000}),
        Draft(b"", type=CHECKPOINT),
        "text",
    ]
    for item in bad:
        with pytest.raises((InvalidInput, TypeError)):
            packer.append_batch([b"good", item, b"good"], 1)
    with pytest.raises(InvalidInput):
        packer.append_batch([], 1)
    for timestamp_ns in (-1, 1 << 63, 1 << 80):
        for call in (
            lambda at: packer.append(b"", at),
            lambda at: packer.append_batch([b""], at),
            packer.write_checkpoint,
        ):
            with pytest.raises(InvalidInput, match=str(timestamp_ns)):
                call(timestamp_ns)
    assert not any(buffer)
    assert (packer.position, packer.next_seq, packer.last_timestamp_ns) == (0, 1, 0)


@each_body
def test_an_entry_over_the_limit_is_refused_before_room_is_looked_for(body: Body) -> None:
    packer = packer_of(body, max_entry_bytes=100)
    assert packer.append(b"x" * 74, 1) == 1
    packer.limit = 0
    for call in (packer.append, lambda payload, at: packer.append_batch([payload], at)):
        with pytest.raises(TooLarge, match="an entry of 101 bytes; the maximum is 100"):
            call(b"x" * 75, 1)
    with pytest.raises(TooLarge):
        packer.append_batch([b"", Draft(b"x" * 70, key=b"kkk")], 1)


@each_body
def test_a_batch_over_its_limit_is_refused(body: Body) -> None:
    packer = packer_of(body, limit=0)
    with pytest.raises(TooLarge, match=f"the maximum is {MAX_BATCH_BYTES}"):
        packer.append_batch([bytes(1 << 20)] * 1024, 1)


@each_body
def test_position_and_limit_cannot_leave_the_buffer(body: Body) -> None:
    for position, limit in ((-1, 10), (11, 10), (0, SIZE + 1), (0, -1)):
        with pytest.raises(ValueError, match="inside the buffer"):
            packer_of(body, position=position, limit=limit)
    packer = packer_of(body)
    for offset in (-1, SIZE + 1, 1 << 40):
        with pytest.raises(ValueError, match="inside the buffer"):
            packer.limit = offset
        with pytest.raises(ValueError, match="inside the buffer"):
            packer.position = offset
    packer.position = SIZE
    assert packer.append(b"", 1) == -1
    packer.position = SIZE - 26
    assert packer.append(b"", 1) == 1


@each_body
def test_wrong_numbers_are_refused(body: Body) -> None:
    for options in ({"next_seq": -1}, {"next_seq": 1 << 63}, {"max_entry_bytes": (1 << 30) + 1}):
        with pytest.raises(InvalidInput):
            packer_of(body, **options)
    packer = packer_of(body)
    for offset in (-1, 1 << 63):
        with pytest.raises(InvalidInput):
            packer.promise(offset)
    for seq in (-1, 1 << 63):
        with pytest.raises(InvalidInput):
            packer.next_seq = seq
    packer.next_seq = 7
    assert packer.append(b"", 1) == 7


@each_body
def test_a_buffer_that_cannot_be_written_is_refused(body: Body) -> None:
    for buffer in (bytes(100), memoryview(bytes(100))):
        with pytest.raises(BufferError):
            packer_of(body, buffer)


# -- handing over ----------------------------------------------------------------------------------


@each_body
def test_take_hands_over_what_was_written_and_begins_again(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer)
    packer.append(b"a", 1)
    packer.append(b"b", 1)
    taken = packer.take()
    assert [e.payload for e in body.read_entries(taken, 0, 54, max_count=9)[0]] == [b"a", b"b"]
    assert packer.take() == b""
    assert not any(buffer)
    assert packer.append(b"c", 1) == 3
    assert body.unpack(buffer, 0, SIZE).payload == b"c"


@each_body
def test_a_released_buffer_is_let_go_of_and_takes_no_more(body: Body) -> None:
    with mmap.mmap(-1, SIZE) as mapping:
        packer = packer_of(body, mapping)
        packer.append(b"a", 1)
        with pytest.raises(BufferError):
            mapping.close()
        packer.release()
    packer.promise(0)
    assert packer.append(b"b", 1) == -1
    assert packer.append_batch([b"b", b"c"], 1) == -1
    assert packer.write_checkpoint(1) is False
    assert packer.take() == b""
    with pytest.raises(ValueError, match="inside the buffer"):
        packer.limit = 1
    packer.release()
    assert (packer.position, packer.next_seq) == (27, 2)


@each_body
def test_failed_calls_let_go_of_what_they_held(body: Body) -> None:
    payload = bytearray(100)
    packer = packer_of(body, max_entry_bytes=100)
    with pytest.raises(TooLarge):
        packer.append(payload, 1)
    with pytest.raises(TooLarge):
        packer.append_batch([payload], 1)
    payload.clear()  # a BufferError if it were still held


# -- at the same time ------------------------------------------------------------------------------


@each_body
def test_calls_are_atomic_between_threads(body: Body) -> None:
    buffer = bytearray(1 << 20)
    packer = packer_of(body, buffer)
    begin = threading.Barrier(4)
    firsts: list[list[int]] = [[] for _ in range(4)]

    def write(number: int) -> None:
        name = bytes([65 + number])
        begin.wait()
        for turn in range(150):
            firsts[number].append(packer.append(name, turn))
            items = [name, Draft(name, headers={"h": "v"}), name]
            firsts[number].append(packer.append_batch(items, turn))

    threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    found = body.skim(buffer, 0, len(buffer))
    assert (found.problem, found.entries) == (None, 4 * 150 * 4)
    assert found.end == packer.position
    entries, _ = body.read_entries(buffer, 0, len(buffer), max_count=1 << 20)
    assert [e.seq for e in entries] == list(range(1, 2401))
    times = [e.timestamp_ns for e in entries]
    assert times == sorted(times)
    writer = {e.seq: e.payload for e in entries}
    for number, seqs in enumerate(firsts):
        assert {writer[seq] for seq in seqs} == {bytes([65 + number])}


class _Meddler(dict[str, str]):
    """Headers that, when they are read, append to the packer they are meant for."""

    packer: Any = None

    def items(self) -> Any:
        self.packer.append(b"meddler", 1)
        return super().items()


@each_body
def test_an_item_whose_own_code_appends_meanwhile_spoils_nothing(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer)
    headers = _Meddler(name="value")
    headers.packer = packer
    assert packer.append_batch([b"first", Draft(b"second", headers=headers)], 1) == 2
    entries, _ = body.read_entries(buffer, 0, SIZE, max_count=9)
    assert [(e.seq, e.payload) for e in entries] == [(1, b"meddler"), (2, b"first"), (3, b"second")]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="__buffer__ came with Python 3.12")
@each_body
def test_a_payload_whose_own_code_appends_or_releases_meanwhile_spoils_nothing(body: Body) -> None:
    buffer = bytearray(SIZE)
    packer = packer_of(body, buffer)

    class Payload:
        def __init__(self, action: Any) -> None:
            self.action = action

        def __buffer__(self, flags: int) -> memoryview:
            self.action()
            return memoryview(b"payload")

    appending: Any = Payload(lambda: packer.append(b"meddler", 1))
    assert packer.append(appending, 1) == 2
    assert packer.append_batch([b"first", appending], 1) == 4
    entries, _ = body.read_entries(buffer, 0, SIZE, max_count=9)
    assert [e.seq for e in entries] == [1, 2, 3, 4, 5]
    releasing: Any = Payload(packer.release)
    assert packer.append_batch([b"", releasing], 1) == -1


class _Stores:
    """Stands for the buffer of the pure packer and remembers the order of its stores."""

    readonly = False

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return SIZE

    def __setitem__(self, at: slice, data: bytes) -> None:
        self.ranges.append((at.start, at.start + len(data)))


def test_the_first_length_is_stored_after_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = _Stores()
    monkeypatch.setattr(packer_py, "flat", lambda buffer: stores)
    packer = packer_of(codec_py)
    packer.append_batch([b"a", b"b"], 1)
    assert stores.ranges == [(4, CHECKPOINT_BYTES + 54), (0, 4)]


READER = """
import mmap, sys
from penstock import codec
path, size, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "r+b") as file:
    pages = mmap.mmap(file.fileno(), size)
print("ready", flush=True)
at = entries = 0
while entries < wanted:
    found = codec.skim(pages, at, size)
    assert found.problem is None, (entries, found)
    at, entries = found.end, entries + found.entries
"""


@each_body
def test_another_process_sees_a_batch_whole_or_not_at_all(body: Body, tmp_path: Path) -> None:
    # 42 + 2 * (26 + 49) bytes are three cache lines, so that no length lies across two of them.
    rounds = 40_000 if body is not codec_py else 1000
    size = 192 * rounds
    path = tmp_path / "pages"
    path.write_bytes(bytes(size))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as pages:
        packer = packer_of(body, pages)
        command = [sys.executable, "-c", READER, str(path), str(size), str(2 * rounds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            assert reader.stderr is not None
            assert reader.stdout.readline() == b"ready\n"
            items = [b"x" * 49, b"y" * 49]
            for turn in range(rounds):
                assert packer.append_batch(items, turn) >= 0
            complaint = reader.stderr.read().decode()
        packer.release()
    assert reader.returncode == 0, complaint
