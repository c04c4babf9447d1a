"""Whatever stands in a file, reading it gives an answer or a typed error, and no other.

The entries have their own fuzz ring in `tests/codec`; these are the files around them.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from penstock.codec import crc32c
from penstock.errors import BadEntry, NewerVersion
from penstock.ledger.folder import Folder
from penstock.ledger.index import SparseIndex
from penstock.ledger.json_files import Manifest, Marks, pack_checked
from penstock.ledger.memory_files import MemoryFiles
from penstock.ledger.recovery import examine
from penstock.ledger.segment_header import HEADER_BYTES, MESSAGES, SegmentHeader
from penstock.ledger.snapshots import Snapshots
from tests.codec.damage import TIME_NS, damaged, random_run

INPUTS = 5_000
INPUTS_OF_THE_LONG_RING = 200_000
MAX_ENTRY_BYTES = 1 << 16

VALUES: list[Any] = [0, 1, -1, 1 << 64, 1.5, True, None, "", "text", [], [1], {}, {"low": 1}]


def resealed(data: bytes) -> bytes:
    """With the right checksum in its last four bytes, so that what is behind it is looked at."""
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little")


def fuzz_header(random: Random) -> None:
    header = SegmentHeader(MESSAGES, 7, 1, TIME_NS)
    data = damaged(random, header.pack())
    if random.random() < 0.5:
        data = resealed(data[:HEADER_BYTES])
    try:
        SegmentHeader.unpack(data)
    except BadEntry as error:
        assert error.offset == 0


def fuzz_manifest(random: Random) -> None:
    manifest = Manifest(7, TIME_NS, {"name": "value"}, Marks(3, 9), Marks(1, 5))
    data = damaged(random, manifest.pack())
    if random.random() < 0.7:
        content = json.loads(manifest.pack())
        _change_a_value(random, content)
        content.pop("crc", None)
        data = pack_checked(content)
    try:
        found = Manifest.unpack(data)
    except BadEntry:
        return
    assert 0 <= found.identity < 1 << 32
    assert isinstance(found.settings, dict)
    for marks in (found.messages, found.events):
        assert marks.low >= 1
        assert marks.next >= 1


def _change_a_value(random: Random, content: dict[str, Any]) -> None:
    name = random.choice(list(content))
    if isinstance(content[name], dict) and content[name] and random.random() < 0.7:
        _change_a_value(random, content[name])
    elif random.random() < 0.2:
        del content[name]
    else:
        content[name] = random.choice(VALUES)


def fuzz_index(random: Random) -> None:
    index = SparseIndex(covered=HEADER_BYTES)
    run = memoryview(bytes(HEADER_BYTES) + random_run(random, 5) + random_run(random, 5))
    index.extend(run, len(run), seq_base=0, max_entry_bytes=MAX_ENTRY_BYTES)
    found = SparseIndex.unpack(damaged(random, index.pack()), covered=len(run))
    if found is None:
        return
    seq = random.randrange(200)
    by_seq, by_time = found.before_seq(seq), found.before_time(TIME_NS)
    assert by_seq is None or by_seq.seq <= seq  # even if the points are out of order
    assert by_time is None or by_time.timestamp_ns < TIME_NS


def fuzz_snapshot(random: Random) -> None:
    files = MemoryFiles()
    snapshots = Snapshots(Folder(files, "/"))
    snapshots.save(7, random.randbytes(random.choice((0, 1, 300))))
    [name] = files.names("/")
    fd = files.open(f"/{name}", "write")
    data = damaged(random, files.pread(fd, 1000, 0))
    if random.random() < 0.5 and len(data) >= 4:
        data = resealed(data)
    files.truncate(fd, 0)
    files.pwrite(fd, data, 0)
    try:
        found = snapshots.newest()
    except NewerVersion:
        return
    if found is not None:
        assert found.event_seq == 7
        assert found.blob in data
    else:
        assert snapshots.damaged


def fuzz_last_segment(random: Random) -> None:
    header = SegmentHeader(MESSAGES, 7, random.choice((1, 50)), TIME_NS)
    view = memoryview(header.pack() + damaged(random, random_run(random, random.randint(1, 6))))
    try:
        found = examine(view, header, max_entry_bytes=MAX_ENTRY_BYTES)
    except NewerVersion:
        return
    assert HEADER_BYTES <= found.end <= found.end + found.torn_bytes <= len(view)
    assert 0 <= found.synced_upto <= found.end
    assert found.next_seq >= header.base_seq
    assert found.last_timestamp_ns >= header.created_at_ns
    for hole in found.holes:
        assert HEADER_BYTES <= hole.offset < hole.offset + hole.length <= found.end
    again = examine(view[: found.end], header, max_entry_bytes=MAX_ENTRY_BYTES)
    if not found.holes:
        assert (again.end, again.next_seq, again.torn_bytes) == (found.end, found.next_seq, 0)


FILES: dict[str, Callable[[Random], None]] = {
    "segment header": fuzz_header,
    "queue.json": fuzz_manifest,
    "sparse index": fuzz_index,
    "snapshot": fuzz_snapshot,
    "last segment": fuzz_last_segment,
}


def fuzz(file: str, seed: str, inputs: int) -> None:
    for number in range(inputs):
        try:
            FILES[file](Random(f"{seed} {file} {number}"))
        except Exception as error:
            raise AssertionError(f"{seed} {file} {number}: {error!r}") from error


@pytest.mark.parametrize("file", FILES)
def test_no_damage_to_a_file_is_met_with_anything_but_an_answer(file: str) -> None:
    fuzz(file, "push", INPUTS)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("file", FILES)
def test_no_damage_to_a_file_is_met_with_anything_but_an_answer_in_a_million(file: str) -> None:
    fuzz(file, "long", INPUTS_OF_THE_LONG_RING)
