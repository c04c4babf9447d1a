"""Entries in a wrong place: what a disk leaves that writes a block where another belongs.

Their checksums are right, so only their seqs tell. The seqs of a segment rise by one; where one is
too high, it is either that those before it are lost, or that it stands there by mistake and the
wanted ones come behind it.
"""

from penstock import codec
from penstock.errors import BadEntry, NewerVersion


def lowest_behind(
    view: memoryview, offset: int, end: int, *, min_stored_seq: int, max_entry_bytes: int
) -> int:
    """Of the entry at `offset` and those behind it, the one with the lowest seq that is wanted."""
    while True:
        try:
            stored = codec.unpack(view, offset, end, max_entry_bytes=max_entry_bytes).seq
        except NewerVersion:
            raise
        except BadEntry:  # whole by its checksum, but not an entry that we can read
            return offset
        if stored <= min_stored_seq:
            return offset
        lower = codec.resync(
            view,
            offset + 1,
            end,
            min_seq=min_stored_seq,
            max_seq=stored - 1,
            max_entry_bytes=max_entry_bytes,
        )
        if lower < 0:
            return offset
        offset = lower
