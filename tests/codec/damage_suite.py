"""Runs the compiled codec over good and damaged bytes, for a memory checker to watch.

Run as a program with the number of inputs. Inputs lie in memory of exactly their size, so that one
byte further is somebody else's.
"""

import ctypes
import random
import struct
import sys
from typing import Any

from penstock.codec import _codec, codec_py
from penstock.codec.entry import COLUMN_NAMES, Draft
from penstock.errors import InvalidInput
from tests.codec.bodies import outcome
from tests.codec.damage import TIME_NS, damaged, random_draft, random_run


def exact(data: bytes) -> Any:
    """A copy in an allocation of its own without a byte to spare."""
    return (ctypes.c_char * len(data)).from_buffer_copy(data)


def read(data: bytes) -> None:
    held = exact(data)
    end = len(data)
    outcome(_codec.unpack, held, 0, end)
    outcome(_codec.read_entries, held, 0, end, max_count=100)
    outcome(_codec.skim, held, 0, end, index_from=0)
    outcome(_codec.skim, held, 0, end, whole_batches=False)
    outcome(_codec.seek, held, 0, end, seq=1 << 40)
    outcome(_codec.resync, held, min(1, end), end, min_seq=0, max_seq=1 << 63)
    outcome(_codec.resync, held, 0, end, min_seq=0, max_seq=200, min_timestamp_ns=TIME_NS)
    outcome(_codec.first_nonzero, held, 0, end)
    outcome(_codec.read_messages, held, 0, end, max_count=100, identity=1)
    outcome(_codec.skip_plain, held, 0, end, end_seq=1 << 40)
    outcome(_codec.decode_columns, held, 0, end, COLUMN_NAMES)
    outcome(_codec.decode_columns, held, 0, end, ["payload", "headers"], events=True, max_bytes=1)
    assert _codec.crc32c(held) == _codec.crc32c_portable(held)


def write(source: random.Random) -> None:
    size = source.randrange(26, 600)
    held = exact(bytes(size))
    packer = _codec.Packer(held, position=0, limit=size, next_seq=1, max_entry_bytes=300)
    for _ in range(6):
        items: list[Any] = [random_draft(source) for _ in range(source.randrange(1, 4))]
        items.append(bytearray(source.randrange(80)))
        outcome(packer.append_batch, items, TIME_NS)
        outcome(packer.append_batch, items[:1], TIME_NS)
        outcome(packer.append, source.randbytes(source.randrange(90)), TIME_NS)
        outcome(packer.append_batch_stamped, items, TIME_NS)
        outcome(packer.append_event, 16, source.randbytes(20), TIME_NS)
        outcome(packer.append_event_of_one, 16, 0, 1, 2, TIME_NS)
        outcome(packer.append_identified, source.randbytes(source.randrange(90)), TIME_NS, 7)
        packer.promise(0)
        outcome(packer.write_checkpoint, TIME_NS)
        outcome(packer.append_batch, [Draft(b"", headers={"n": "v" * 0x10000})], TIME_NS)
        outcome(packer.append_batch, [b"", "wrong"], TIME_NS)
    if source.random() < 0.5:
        packer.take()
    packer.release()
    outcome(packer.append, b"x", TIME_NS)
    places = sorted(source.randrange(90) for _ in range(5))
    if source.random() < 0.5:
        source.shuffle(places)
    offsets, data = exact(struct.pack("<5i", *places)), exact(bytes(80))
    outcome(_codec.pack_payloads, exact(bytes(size)), offsets, data, 0, seq=1, timestamp_ns=1)
    run = damaged(source, random_run(source, 3))
    outcome(_codec.restamp, exact(run), 0, len(run), TIME_NS)


def large() -> None:
    """What only large inputs reach: the lanes of the checksum, the states of resync, growth."""
    for drafts in (
        [Draft(b"p" * (n * 37 % 3000)) for n in range(200)],
        [Draft(b"", key=b"k" * (n * 7)) for n in range(200)],
        [Draft(b"", headers={"h" * n: "v" * (n * 9)}) for n in range(200)],
        [Draft(b"", headers=dict.fromkeys(map(str, range(n)), "")) for n in range(200)],
        [Draft(b"", attributes=dict.fromkeys(range(n), b"")) for n in range(200)],
        [Draft(b"", attributes={n: b"v" * (n * 9)}) for n in range(200)],
    ):
        data = b"".join(_codec.pack(n, TIME_NS, draft) for n, draft in enumerate(drafts))
        read(data)
        read(b"\1" + data)
    unit = struct.pack("<IBBQQ", 9000, 1, 0, 5, TIME_NS)
    read(unit * 5000 + data)
    try:
        _codec.pack(1, 1, Draft(b"", headers={str(n): "" for n in range(0x10000)}))
    except InvalidInput:
        pass


def main() -> None:
    inputs = int(sys.argv[1])
    source = random.Random(11)
    large()
    for number in range(inputs):
        data = random_run(source, source.randrange(1, 4))
        read(data if number % 10 == 0 else damaged(source, data))
        write(source)
    same = random_run(source, 5)
    assert outcome(_codec.skim, same, 0, len(same)) == outcome(codec_py.skim, same, 0, len(same))
    if "--control" in sys.argv:
        held = exact(b"x" * 64)
        ctypes.string_at(ctypes.addressof(held), 66)  # to see that the checker is awake
    print("done")


if __name__ == "__main__":
    main()
