"""Message ids: a ULID whose 128 bits are milliseconds (48), queue identity (32) and seq (48).

The id alone finds the queue and the message, so no table of ids is kept. Ids of one queue sort as
its messages do.
"""

from penstock.errors import InvalidInput

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's: no I, L, O, U
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_VALUES.update({letter.lower(): value for letter, value in _VALUES.items()})
# To the digits of `int(…, 32)`; any other byte becomes one that is no digit.
_TO_BASE_32 = bytes(
    b"0123456789abcdefghijklmnopqrstuv"[_VALUES[chr(byte)]] if chr(byte) in _VALUES else 0x21
    for byte in range(256)
)
_ID_LENGTH = 26
MAX_ID_SEQ = (1 << 48) - 1
_MASK_48 = (1 << 48) - 1


def make_id(timestamp_ns: int, identity: int, seq: int) -> str:
    """Return the id of a message.

    >>> make_id(1_700_000_000_000_000_000, 0xCAFE, 42)
    '01HF7YAT00000CNZG00000001A'
    """
    if not 0 <= seq <= MAX_ID_SEQ:
        raise InvalidInput(f"seq {seq} does not fit into an id")
    number = ((timestamp_ns // 1_000_000) & _MASK_48) << 80 | (identity & 0xFFFFFFFF) << 48 | seq
    return "".join([_PAIRS[number >> shift & 0x3FF] for shift in range(120, -1, -10)])


def make_ids(timestamp_ns: int, identity: int, first_seq: int, count: int) -> list[str]:
    """Return the ids of messages that were written together."""
    return [make_id(timestamp_ns, identity, seq) for seq in range(first_seq, first_seq + count)]


def parse_id(text: str) -> tuple[int, int, int]:
    """Return (milliseconds, queue identity, seq) of an id; raise InvalidInput if it is not one."""
    if not isinstance(text, str) or len(text) != _ID_LENGTH:
        raise InvalidInput(f"{text!r} is not a message id: those have {_ID_LENGTH} characters")
    try:
        number = int(text.encode("ascii").translate(_TO_BASE_32), 32)
    except ValueError:
        letter = next(letter for letter in text if letter not in _VALUES)
        raise InvalidInput(
            f"{text!r} is not a message id: {letter!r} is not in the alphabet"
        ) from None
    if number >> 128:
        raise InvalidInput(f"{text!r} is not a message id: it is too large")
    return number >> 80, number >> 48 & 0xFFFFFFFF, number & _MASK_48
