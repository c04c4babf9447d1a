"""CRC-32C, by instruction and by tables."""

import platform
import random
from pathlib import Path

import pytest

from penstock.codec import codec_py
from tests.codec.bodies import Body, compiled, each_body, needs_compiled

# RFC 3720, appendix B.4, and the check value that every catalogue of checksums gives.
KNOWN = [
    (b"123456789", 0xE3069283),
    (b"", 0),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (
        bytes.fromhex("01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018")
        + bytes.fromhex("28000000 00000000 02000000 00000000"),
        0xD9963A56,
    ),
]


@each_body
@pytest.mark.parametrize(("data", "checksum"), KNOWN)
def test_known_checksums(body: Body, data: bytes, checksum: int) -> None:
    assert body.crc32c(data) == checksum


@needs_compiled
@pytest.mark.parametrize(("data", "checksum"), KNOWN)
def test_known_checksums_by_tables(data: bytes, checksum: int) -> None:
    assert compiled is not None
    assert compiled.crc32c_portable(data) == checksum


@each_body
def test_a_checksum_can_be_continued(body: Body) -> None:
    data = random.Random(1).randbytes(5000)
    for cut in (0, 1, 7, 8, 1536, 4999, 5000):
        assert body.crc32c(data[cut:], body.crc32c(data[:cut])) == body.crc32c(data)


@needs_compiled
def test_instruction_and_tables_agree_at_every_length_and_alignment() -> None:
    assert compiled is not None
    data = memoryview(random.Random(2).randbytes(8192))
    lengths = [
        *range(260),
        *range(380, 390),
        *range(765, 775),
        *range(1530, 1545),
        *range(3065, 3080),
        4608,
        8000,
    ]
    for length in lengths:
        for start in range(9):
            piece = data[start : start + length]
            assert compiled.crc32c(piece) == compiled.crc32c_portable(piece)
        assert compiled.crc32c(data[3 : 3 + length]) == codec_py.crc32c(data[3 : 3 + length])


@needs_compiled
def test_the_cpus_instruction_is_used_where_there_is_one() -> None:
    assert compiled is not None
    flag = {"x86_64": "sse4_2", "aarch64": "crc32"}.get(platform.machine())
    cpu = Path("/proc/cpuinfo")
    if flag is None or not cpu.exists():
        pytest.skip("this machine does not say what its CPU can")
    assert compiled.crc32c_uses_instruction() == (flag in cpu.read_text().split())


@each_body
def test_large_data_and_other_kinds_of_bytes(body: Body) -> None:
    data = random.Random(3).randbytes(70_001)  # over the size at which the lock is released
    checksum = body.crc32c(data)
    assert body.crc32c(bytearray(data)) == checksum
    assert body.crc32c(memoryview(b"-" + data)[1:]) == checksum
    with pytest.raises(BufferError):
        body.crc32c(memoryview(data)[::2])
    with pytest.raises(TypeError):
        body.crc32c(5)
