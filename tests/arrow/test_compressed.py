"""Compressed payloads as Arrow columns: as published, in batches of bounded size."""

import json
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
import penstock.arrow
from penstock.arrow.tables import BATCH_BYTES
from penstock.arrow.unpacking import unpacked_parts
from penstock.codec import COLUMN_NAMES, Columns, Draft, decode_columns, pack
from penstock.codec.layout import GZIP, ZSTD
from penstock.errors import PayloadUnreadable
from penstock.queue.compression import compress, zstd_module
from tests.spark.random_queues import open_small

MB = 1 << 20
needs_zstd = pytest.mark.skipif(zstd_module() is None, reason="needs backports.zstd")


def order(random: Random, size: int) -> bytes:
    items = [random.randrange(1000) for _ in range(size)]
    return json.dumps({"items": items, "note": "please ring the bell " * size}).encode()


def decoded(drafts: list[Draft]) -> Columns:
    packed = b"".join(pack(n, n, draft) for n, draft in enumerate(drafts, start=1))
    return decode_columns(packed, 0, len(packed), COLUMN_NAMES, max_bytes=64 * MB)


def payloads(found: Columns, **limits: int) -> list[list[bytes]]:
    """Return the payloads of each part."""
    limits = {"max_unpacked_bytes": 16 * MB, "max_part_bytes": MB, **limits}
    parts = []
    for part in unpacked_parts(found, queue="shop/orders", **limits):
        offsets = memoryview(part.buffers["payload.offsets"]).cast("B").cast("i")
        data = bytes(part.buffers["payload"])
        ends = offsets[: part.rows + 1]
        parts.append([data[a:b] for a, b in pairwise(ends)])
        assert len(part.buffers["seq"]) == 8 * part.rows
    return parts


def joined(parts: Sequence[Sequence[bytes]]) -> list[bytes]:
    return [payload for part in parts for payload in part]


@pytest.mark.parametrize("methods", [["zstd"], ["gzip"], ["zstd", "none"], ["zstd", "gzip"]])
@pytest.mark.parametrize("seed", range(3))
@needs_zstd
def test_payloads_are_read_as_published(tmp_path: Path, methods: list[Any], seed: int) -> None:
    random = Random(seed)
    published = []
    with open_small(tmp_path) as queue:
        for _ in range(200):
            payload = order(random, random.choice((0, 1, 5, 30, 600)))
            published.append(payload)
            queue.enqueue(payload, compression=random.choice(methods))
    table = penstock.arrow.read(tmp_path, columns="seq,payload,compression").read_all()
    assert table["payload"].to_pylist() == published
    assert set(table["compression"].to_pylist()) - {None} == {*methods} - {"none"}
    some = penstock.arrow.read(tmp_path, columns="payload", first_seq=50, end_seq=60).read_all()
    assert some["payload"].to_pylist() == published[49:59]


@needs_zstd
def test_frames_of_every_header_are_unpacked() -> None:
    """The size has one, two, four or eight bytes, or is missing, with or without a checksum."""
    zstd = zstd_module()
    flag = zstd.CompressionParameter.checksum_flag
    wanted, packed = [], []
    for size in (0, 1, 255, 256, 257, 65_791, 65_792, 100_000):
        for checksum in (0, 1):
            payload = bytes(n % 251 for n in range(size))
            wanted.append(payload)
            packed.append(zstd.compress(payload, options={flag: checksum}))
    found = decoded([Draft(data, compression=ZSTD) for data in packed])
    assert joined(payloads(found)) == wanted
    # Written as a stream, a frame does not say how long it is.
    stream = zstd.ZstdCompressor()
    unsized = stream.compress(wanted[-1]) + stream.flush()
    found = decoded([Draft(data, compression=ZSTD) for data in [*packed, unsized, *packed]])
    assert joined(payloads(found)) == [*wanted, wanted[-1], *wanted]


@pytest.mark.parametrize("method", ["zstd", "gzip"])
@needs_zstd
def test_a_small_batch_that_unpacks_to_much_is_split(method: str) -> None:
    data, number = compress(bytes(MB), method, level=3, min_bytes=1)
    assert len(data) < MB // 100
    plain = Draft(b"plain")
    found = decoded([Draft(data, compression=number), plain] * 40)
    parts = payloads(found, max_part_bytes=4 * MB)
    assert joined(parts) == [bytes(MB), b"plain"] * 40
    assert max(sum(map(len, part)) for part in parts) <= 4 * MB
    assert len(parts) <= 14


@needs_zstd
def test_a_batch_of_a_read_is_bounded_by_what_it_unpacks_to(tmp_path: Path) -> None:
    with penstock.open(str(tmp_path), compression="zstd", sync="never") as queue:
        queue.enqueue_batch([bytes(MB)] * 50)
    batches = list(penstock.arrow.read(tmp_path, columns="seq,payload"))
    assert sum(batch.num_rows for batch in batches) == 50
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES + 100
    assert [row for batch in batches for row in batch["seq"].to_pylist()] == list(range(1, 51))


def frame(payload: bytes) -> bytes:
    return bytes(zstd_module().compress(payload))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda: frame(b"a" * 1000)[:-2], "cut off"),
        (lambda: b"no frame at all", "cannot be decompressed"),
        (lambda: b"", "cut off"),
        (lambda: frame(Random(1).randbytes(1000))[:300] + bytes(700), "cannot be decompressed|cut"),
        (lambda: frame(bytes(17 * MB)), "max_unpacked_bytes"),
    ],
)
@needs_zstd
def test_a_payload_that_cannot_be_unpacked_is_reported(bad: Any, said: str) -> None:
    good = Draft(frame(b"good" * 100), compression=ZSTD)
    found = decoded([good, Draft(bad(), compression=ZSTD), good])
    with pytest.raises(PayloadUnreadable, match=f"^queue shop/orders, seq 2: .*({said})"):
        payloads(found)


@pytest.mark.parametrize("verify", [True, False])
def test_a_payload_that_unpacks_to_too_much_is_named_with_what_to_do(
    tmp_path: Path, verify: bool
) -> None:
    settings: dict[str, Any] = {"max_unpacked_bytes": MB, "compression": "gzip"}
    with penstock.open(tmp_path / "orders", **settings) as queue:
        queue.enqueue_batch([b"first", b"second", bytes(2 * MB), b"last"])
    with pytest.raises(PayloadUnreadable) as error:
        penstock.arrow.read(tmp_path / "orders", columns="payload", verify=verify).read_all()
    assert str(error.value) == (
        "queue orders, seq 3: the payload unpacks to more than 1048576 bytes: raise "
        "max_unpacked_bytes of the queue. To read the other messages, leave the column payload "
        "out, leave this seq out of the range, or read payloads as stored (on Spark: "
        "decompress=false)"
    )
    found = penstock.arrow.read(tmp_path / "orders", columns="payload", end_seq=3).read_all()
    assert found["payload"].to_pylist() == [b"first", b"second"]


@needs_zstd
def test_a_frame_that_lies_about_its_size_does_not_shift_others() -> None:
    """A header that claims more or less than the frame has is damage, not the next row's bytes."""
    honest = frame(b"x" * 200)  # the size is one byte, after the descriptor
    for claimed in (199, 201):
        lying = bytearray(honest)
        assert lying[5] == 200
        lying[5] = claimed
        found = decoded([Draft(bytes(one), compression=ZSTD) for one in (honest, lying, honest)])
        with pytest.raises(PayloadUnreadable):
            payloads(found)


@needs_zstd
def test_what_follows_the_first_frame_of_a_payload_is_ignored_in_every_batch() -> None:
    two = frame(b"first") + frame(b"second")
    found = decoded([Draft(two, compression=ZSTD), Draft(frame(b"next"), compression=ZSTD)])
    assert payloads(found) == [[b"first", b"next"]]


def test_gzip_is_read_without_zstd() -> None:
    packer = zlib.compressobj(3, zlib.DEFLATED, 31)
    data = packer.compress(b"abc" * 100) + packer.flush()
    found = decoded([Draft(data, compression=GZIP), Draft(b"plain")])
    assert payloads(found) == [[b"abc" * 100, b"plain"]]
