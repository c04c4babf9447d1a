"""Notes: which messages with options a packer has written, for an owner who looks later."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.codec.entry import Draft
from penstock.codec.layout import DATA, DEFAULT_PRIORITY

if TYPE_CHECKING:
    from penstock.codec.packer_py import Packer


# Seq, timestamp_ns, priority, deliver_at_ns, key, the attributes if one of them is noted, and
# expires_at_ns.
Note = tuple[int, int, int, int, bytes | None, Mapping[int, bytes] | None, int]


class Notes:
    """The messages with a priority, a due time, a key or certain attributes, since the last `take`.

    Set as `notes` of each packer of a log. All messages that are not noted are plain to the owner.
    A message is noted in the same step in which it is written: between threads, and if an interrupt
    comes. The compiled twin does both without running Python code in between. Here, notes are held
    under the first seq of their call before it is written. They count once it is; else the next
    call with that seq replaces them.
    """

    def __init__(self, tags: int) -> None:
        """`tags`: the attributes to note, as the sum of 1 << tag, for tags up to 62."""
        self.tags = tags
        self._held: dict[int, list[Note]] = {}
        self._packer: Packer | None = None

    def follow(self, packer: "Packer") -> None:
        """Take the seqs of this packer from now on. Called by it."""
        self._packer = packer

    @property
    def upto(self) -> int:
        """Every message below it was written, and is noted or plain."""
        return 0 if self._packer is None else self._packer.next_seq

    def __len__(self) -> int:
        return sum(map(len, list(self._held.values())))

    def take(self) -> tuple[int, list[Note]]:
        """Return `upto` and the notes of the messages below it, rising. Forget them."""
        upto, held, taken = self.upto, self._held, list[Note]()
        for first in sorted(held):
            if first < upto:
                taken += held.pop(first)
        return upto, taken

    def hold(self, drafts: list[Draft], first_seq: int, timestamp_ns: int) -> None:
        """Hold the notes of a call that is about to be written."""
        noted = [
            (
                seq,
                timestamp_ns,
                draft.priority,
                draft.deliver_at_ns,
                _key(draft),
                kept,
                draft.expires_at_ns,
            )
            for seq, draft in enumerate(drafts, first_seq)
            if (kept := self._attributes(draft)) is not None or _is_special(draft)
        ]
        if noted:
            self._held[first_seq] = noted
        else:
            self._held.pop(first_seq, None)

    def _attributes(self, draft: Draft) -> Mapping[int, bytes] | None:
        if draft.type != DATA or not draft.attributes:
            return None
        is_noted = any(tag < 63 and self.tags >> tag & 1 for tag in draft.attributes)
        return draft.attributes if is_noted else None


def _is_special(draft: Draft) -> bool:
    return draft.type == DATA and (
        draft.priority != DEFAULT_PRIORITY or draft.deliver_at_ns != 0 or draft.key is not None
    )


def _key(draft: Draft) -> bytes | None:
    return None if draft.key is None else bytes(draft.key)
