"""Base64 of large payloads, piece by piece.

One call for 16 MiB takes about 100 ms, during which no other thread runs. A piece takes a few.
"""

from binascii import Error, a2b_base64, b2a_base64

_BYTES = 3 << 18  # a multiple of 3, so that no piece but the last is padded
_CHARACTERS = 4 << 18


def to_base64(payload: bytes, *, quote: bytes = b"") -> bytes:
    """Return the payload as base64, without a line end, between two quotes."""
    if len(payload) <= _BYTES:
        return quote + b2a_base64(payload, newline=False) + quote
    view = memoryview(payload)
    starts = range(0, len(payload), _BYTES)
    pieces = [b2a_base64(view[at : at + _BYTES], newline=False) for at in starts]
    return b"".join([quote, *pieces, quote])


def from_base64(text: str) -> bytes:
    """Return the bytes; ValueError if the text is anything but padded base64."""
    if len(text) <= _CHARACTERS:
        return a2b_base64(text, strict_mode=True)
    if text.find("=", 0, len(text) - 2) >= 0:
        raise Error("Discontinuous padding not allowed")
    starts = range(0, len(text), _CHARACTERS)
    return b"".join([a2b_base64(text[at : at + _CHARACTERS], strict_mode=True) for at in starts])
