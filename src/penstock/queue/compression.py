"""Payload compression: only if it saves space, and with a limit on decompressed bytes."""

import zlib
from functools import cache
from typing import Any

from penstock.codec.layout import GZIP, ZSTD
from penstock.errors import InvalidInput, PayloadUnreadable

_WORTH_IT = 0.95  # store it compressed if it is at most this part of the original
_GZIP_WINDOW = 31  # zlib's number for the gzip container
_GZIP_OR_ZLIB = 47
_METHODS = ("none", "gzip", "zstd")


@cache
def zstd_module() -> Any:
    """Return Python's own zstd (from 3.14), or its backport, or None.

    Looking for a module that does not exist takes longer than unpacking a message.
    """
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            return None
    return zstd


def check_method(method: str, *, used: bool) -> None:
    """Raise InvalidInput if a method is unknown, or is used and not installed."""
    if method not in _METHODS:
        raise InvalidInput(f"compression is {method!r}; it must be one of none, gzip, zstd")
    if method == "zstd" and used and zstd_module() is None:
        raise InvalidInput(
            "compression 'zstd' needs Python 3.14 or the package backports.zstd: install it, "
            "or use 'gzip'"
        )


def compress(payload: bytes, method: str, *, level: int, min_bytes: int) -> tuple[bytes, int]:
    """Return the payload to store, and its codec number (0: not compressed)."""
    check_method(method, used=len(payload) >= min_bytes)
    if method == "none" or len(payload) < min_bytes:
        return payload, 0
    if method == "gzip":
        packer = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
        packed, number = packer.compress(payload) + packer.flush(), GZIP
    else:
        packed, number = zstd_module().compress(payload, level), ZSTD
    return (packed, number) if len(packed) <= len(payload) * _WORTH_IT else (payload, 0)


def decompress(payload: bytes, number: int, *, max_bytes: int) -> bytes:
    """Return the payload as it was published. Raise PayloadUnreadable if that is impossible."""
    if number == 0:
        return payload
    try:
        if number == GZIP:
            unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
            data = unpacker.decompress(payload, max_bytes + 1)
            whole = unpacker.eof
        elif number == ZSTD:
            zstd = zstd_module()
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
            f"the payload unpacks to more than {max_bytes} bytes: raise max_unpacked_bytes of the "
            f"queue"
        )
    if not whole:
        raise PayloadUnreadable("the compressed payload is cut off")
    return data
