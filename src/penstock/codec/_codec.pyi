# The compiled codec has the types of its twin.
from penstock.codec.codec_py import (
    IMPLEMENTATION,
    Buffer,
    Gate,
    Packer,
    SteadyClock,
    crc32c,
    decode_columns,
    first_nonzero,
    make_id,
    make_ids,
    pack,
    parse_id,
    read_entries,
    read_messages,
    resync,
    seek,
    skim,
    skip_plain,
    unpack,
)

def crc32c_portable(data: Buffer, value: int = 0) -> int: ...
def crc32c_uses_instruction() -> bool: ...

__all__ = [
    "IMPLEMENTATION",
    "Gate",
    "Packer",
    "SteadyClock",
    "crc32c",
    "crc32c_portable",
    "crc32c_uses_instruction",
    "decode_columns",
    "first_nonzero",
    "make_id",
    "make_ids",
    "pack",
    "parse_id",
    "read_entries",
    "read_messages",
    "resync",
    "seek",
    "skim",
    "skip_plain",
    "unpack",
]
