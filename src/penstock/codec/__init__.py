"""Encode and decode entries, one or many: compiled, with a pure-Python twin.

`PENSTOCK_CODEC` in the environment chooses one of the two: see `penstock.compiled`.
"""

from typing import TYPE_CHECKING

from penstock.codec.entry import COLUMN_NAMES, Columns, Draft, Entry, Skim
from penstock.codec.layout import ENTRY_OVERHEAD_BYTES
from penstock.compiled import compiled_or_twin

if TYPE_CHECKING:
    from penstock.codec.codec_py import (
        IMPLEMENTATION,
        Notes,
        Packer,
        crc32c,
        decode_columns,
        first_nonzero,
        make_id,
        make_ids,
        pack,
        pack_payloads,
        parse_id,
        read_entries,
        read_messages,
        restamp,
        resync,
        seek,
        skim,
        skip_plain,
        unpack,
    )
else:
    # Raise the revision, here and in _codec.pyx, with each change of a function's parameters.
    _body = compiled_or_twin("penstock.codec._codec", "penstock.codec.codec_py", revision=2)
    IMPLEMENTATION = _body.IMPLEMENTATION
    Notes = _body.Notes
    Packer = _body.Packer
    crc32c = _body.crc32c
    decode_columns = _body.decode_columns
    first_nonzero = _body.first_nonzero
    make_id = _body.make_id
    make_ids = _body.make_ids
    pack = _body.pack
    pack_payloads = _body.pack_payloads
    parse_id = _body.parse_id
    read_entries = _body.read_entries
    read_messages = _body.read_messages
    restamp = _body.restamp
    resync = _body.resync
    seek = _body.seek
    skim = _body.skim
    skip_plain = _body.skip_plain
    unpack = _body.unpack

__all__ = [
    "COLUMN_NAMES",
    "ENTRY_OVERHEAD_BYTES",
    "IMPLEMENTATION",
    "Columns",
    "Draft",
    "Entry",
    "Notes",
    "Packer",
    "Skim",
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
