"""Payload compression: only where it pays, and never a bomb."""

import zlib
from typing import Any

from penstock.codec.layout import GZIP, ZSTD
from penstock.errors import InvalidInput, PayloadUnreadable

_WORTH_IT = 0.95  # keep the compressed form if it is at most this part of the original
_GZIP_WINDOW = 31  # zlib's number for the gzip container
_GZIP_OR_ZLIB = 47
_METHODS = ("gzip", "zstd")


def _zstd() -> Any:
    """Python's own zstd (3.14 on), or the backport of it; None where neither is."""
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            return None
    return zstd


def compress(payload: bytes, method: str, *, level: int, min_bytes: int) -> tuple[bytes, int]:
    """The payload to store, and its codec number (0: as it is)."""
    if method == "none" or (method in _METHODS and len(payload) < min_bytes):
        return payload, 0
    if method == "gzip":
        packer = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
        packed, number = packer.compress(payload) + packer.flush(), GZIP
    elif method == "zstd":
        zstd = _zstd()
        if zstd is None:
            raise InvalidInput(
                "compression 'zstd' needs Python 3.14 or the package backports.zstd: install it, "
                "or use 'gzip'"
            )
        packed, number = zstd.compress(payload, level), ZSTD
    else:
        raise InvalidInput(f"compression is {method!r}; it must be one of none, gzip, zstd")
    return (packed, number) if len(packed) <= len(payload) * _WORTH_IT else (payload, 0)


def decompress(payload: bytes, number: int, *, max_bytes: int) -> bytes:
    """The payload as it was published; PayloadUnreadable where that cannot be had."""
    if number == 0:
        return payload
    try:
        if number == GZIP:
            unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
            data = unpacker.decompress(payload, max_bytes + 1)
            whole = unpacker.eof
        elif number == ZSTD:
            zstd = _zstd()
            if zstd is None:
                raise PayloadUnreadable(
                    "the payload is compressed with zstd: install the package backports.zstd"
                )
            unpacker = zstd.ZstdDecompressor()
            data = unpacker.decompress(payload, max_bytes + 1)
            whole = unpacker.eof
        else:
            raise PayloadUnreadable(f"the payload is compressed with codec {number}, unknown here")
    except PayloadUnreadable:
        raise
    except Exception as error:  # each library has its own
        raise PayloadUnreadable(f"the payload cannot be decompressed: {error}") from error
    if len(data) > max_bytes:
        raise PayloadUnreadable(
            f"the payload unpacks to more than {max_bytes} bytes (max_unpacked_bytes)"
        )
    if not whole:
        raise PayloadUnreadable("the compressed payload is cut off")
    return data
