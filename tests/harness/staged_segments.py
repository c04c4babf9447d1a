"""Segments as tasks of a data pipeline stage them."""

from collections.abc import Sequence

from penstock.codec import Draft, Packer
from penstock.ledger.staging import staged_header

NOW_NS = 1_700_000_000_000_000_000


def staged_segment(
    identity: int, items: Sequence[bytes | Draft], *, timestamp_ns: int = NOW_NS
) -> bytes:
    """The content of one staged segment."""
    room = sum(len(item if isinstance(item, bytes) else item.payload) + 1024 for item in items)
    buffer = bytearray(room + (1 << 20))
    packer = Packer(buffer, position=0, limit=len(buffer), next_seq=0)
    if items:
        assert packer.append_batch(items, timestamp_ns) >= 0
    return staged_header(identity, timestamp_ns).pack() + bytes(packer.take())
