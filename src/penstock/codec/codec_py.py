"""The codec in plain Python: the readable reference, and the fallback without a compiler.

`_codec.pyx` has the same functions with another body; `tests/codec` compares the two. Every
function takes a buffer and offsets into it and never looks outside of them. Offsets in results and
errors are offsets into that buffer.

A reader checks, in this order: the length, the checksum, the version (flags and type), seq and
timestamp, and the fields one after another. Header text comes last, and only if it is wanted.
"""

from penstock.codec.buffer_py import Buffer, crc32c
from penstock.codec.columns_py import decode_columns
from penstock.codec.ids_py import make_id, make_ids, parse_id
from penstock.codec.messages_py import read_messages, skip_plain
from penstock.codec.notes_py import Notes
from penstock.codec.pack_py import pack, pack_payloads
from penstock.codec.packer_py import Packer
from penstock.codec.scan_py import first_nonzero, restamp, resync, seek, skim
from penstock.codec.unpack_py import read_entries, unpack

IMPLEMENTATION = "python"

__all__ = [
    "IMPLEMENTATION",
    "Buffer",
    "Notes",
    "Packer",
    "crc32c",
    "decode_columns",
    "first_nonzero",
    "make_id",
    "make_ids",
    "pack",
    "pack_payloads",
    "parse_id",
    "read_entries",
    "read_messages",
    "restamp",
    "resync",
    "seek",
    "skim",
    "skip_plain",
    "unpack",
]
