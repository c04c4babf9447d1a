"""Receipts and message ids, held against each other."""

from penstock.codec import parse_id
from penstock.errors import PenstockError
from penstock.model import Receipt


def is_receipt_of(receipt: str, id: str) -> bool:
    """Is this the receipt of some delivery of that message? Whether it is still good is not asked.

    >>> is_receipt_of("not a receipt", "01HF7YAT00000000G0000000G1")
    False
    """
    try:
        found = Receipt.unpack(receipt)
        _, identity, seq = parse_id(id)
    except (PenstockError, ValueError):
        return False
    return (found.identity, found.seq) == (identity, seq)
