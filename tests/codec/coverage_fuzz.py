"""Fuzzes the codec led by coverage: what reaches new lines of the readable body is kept and varied.

Run as a program with the options of libFuzzer, such as `-runs=100000`. Every input is read by both
bodies, as it is and with its checksums made right, and they must agree; the compiled one has no
lines to lead by, the readable one is its specification.
"""

import sys

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

with atheris.instrument_imports(include=["penstock.codec"]):
    from penstock.codec.entry import COLUMN_NAMES
    from tests.codec.bodies import assert_same

from tests.codec.damage import reseal


def read_by_both(data: bytes) -> None:
    end = len(data)
    assert_same("unpack", data, 0, end)
    assert_same("read_entries", data, 0, end, max_count=64)
    assert_same("skim", data, 0, end, index_from=0)
    assert_same("seek", data, 0, end, seq=100)
    assert_same("resync", data, min(1, end), end, min_seq=0, max_seq=1 << 63)
    assert_same("read_messages", data, 0, end, max_count=64, identity=1)
    assert_same("skip_plain", data, 0, end, end_seq=1 << 40)
    assert_same("decode_columns", data, 0, end, COLUMN_NAMES)


def one_input(data: bytes) -> None:
    read_by_both(data)
    resealed = bytearray(data)
    reseal(resealed)
    if resealed != data:
        read_by_both(bytes(resealed))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
