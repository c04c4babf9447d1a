"""One entry to bytes and back, and passing over many: compiled, with a pure-Python twin.

The compiled body is used where it was built; elsewhere the twin does the same, slower, and says so
once in the log. `PENSTOCK_CODEC=python` or `PENSTOCK_CODEC=compiled` in the environment asks for
one of them.
"""

import logging
import os
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.codec.entry import COLUMN_NAMES, Columns, Draft, Entry, Skim
from penstock.codec.layout import ENTRY_OVERHEAD_BYTES


def _choose() -> ModuleType:
    wanted = os.environ.get("PENSTOCK_CODEC", "")
    if wanted not in ("", "python", "compiled"):
        raise ImportError(f"PENSTOCK_CODEC is {wanted!r}; it may be 'python' or 'compiled'")
    if wanted != "python":
        try:
            return import_module("penstock.codec._codec")  # its error names what is missing
        except ImportError as error:
            if wanted == "compiled":
                raise ImportError(
                    f"PENSTOCK_CODEC asks for the compiled codec, but it cannot be used ({error}). "
                    "Install a C compiler and the Python headers (Debian: apt install gcc "
                    "python3-dev), then install penstock again; or unset PENSTOCK_CODEC."
                ) from error
            logging.getLogger("penstock").warning(
                "the compiled codec cannot be used (%s); the pure-Python one does the same, many "
                "times slower. Install a C compiler and the Python headers, then penstock again; "
                "PENSTOCK_CODEC=python silences this",
                error,
            )
    from penstock.codec import codec_py

    return codec_py


if TYPE_CHECKING:
    from penstock.codec.codec_py import (
        IMPLEMENTATION,
        Gate,
        Packer,
        SteadyClock,
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
    _body = _choose()
    IMPLEMENTATION = _body.IMPLEMENTATION
    Gate = _body.Gate
    Packer = _body.Packer
    SteadyClock = _body.SteadyClock
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
    "Gate",
    "Packer",
    "Skim",
    "SteadyClock",
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
