"""Deduplication: the dedup ids that were seen, until when, and in which message.

The record of a dedup id is an attribute of the message itself, so both are one write, and the
table is a fold over the message log like everything else.
"""

import hashlib
import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock import codec
from penstock.codec import Draft
from penstock.model import NewMessage, Published
from penstock.queue.attributes import DEDUP, UNIQUE, unpack_dedup


def dedup_hash(dedup_id: str) -> bytes:
    """Return the digest that stands for a dedup id on disk and in memory."""
    return hashlib.sha256(dedup_id.encode()).digest()


class DedupTable:
    """A bounded table of dedup ids. When it is full, the id whose window ends first is dropped."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self.evicted = 0  # dropped before their window was over
        self._seen: dict[bytes, tuple[int, int, int]] = {}  # digest -> (until, seq, published)
        self._by_end: list[tuple[int, bytes]] = []
        self._newest_seq = 0

    def __len__(self) -> int:
        return len(self._seen)

    def first_with(self, digest: bytes, now_ns: int) -> tuple[int, int] | None:
        """Return (seq, published_ns) of the message with this id, if its window is not over."""
        found = self._seen.get(digest)
        if found is None or found[0] <= now_ns:
            return None
        return found[1], found[2]

    def add(self, digest: bytes, until_ns: int, seq: int, published_ns: int) -> None:
        """Note that a message with this id was published.

        Nothing changes if this or a later message was noted before: a publisher may note its
        message itself, and the fold does so later.
        """
        if seq <= self._newest_seq:
            return
        self._newest_seq = seq
        self._forget_before(published_ns)
        self._seen[digest] = (until_ns, seq, published_ns)
        heapq.heappush(self._by_end, (until_ns, digest))
        while len(self._seen) > self.max_entries:
            self._forget_first()
            self.evicted += 1

    def items(self) -> list[tuple[bytes, int, int, int]]:
        """Return (digest, until_ns, seq, published_ns) of all ids, in a fixed order."""
        return sorted((digest, *record) for digest, record in self._seen.items())

    def load(self, items: list[tuple[bytes, int, int, int]]) -> None:
        self._seen = {digest: (until, seq, at) for digest, until, seq, at in items}
        self._by_end = [(until, digest) for digest, until, _, _ in items]
        heapq.heapify(self._by_end)
        self._newest_seq = max((seq for _, _, seq, _ in items), default=0)

    def _forget_before(self, now_ns: int) -> None:
        while self._by_end and self._by_end[0][0] <= now_ns:
            until_ns, digest = heapq.heappop(self._by_end)
            if self._is_current(until_ns, digest):
                del self._seen[digest]

    def _forget_first(self) -> None:
        while self._by_end:
            until_ns, digest = heapq.heappop(self._by_end)
            if self._is_current(until_ns, digest):
                del self._seen[digest]
                return

    def _is_current(self, until_ns: int, digest: bytes) -> bool:
        found = self._seen.get(digest)
        return found is not None and found[0] == until_ns


# -- duplicates in a batch -------------------------------------------------------------------------


class Pending(NamedTuple):
    """The answer for a message whose id is not known before it is written."""

    draft: int
    duplicate: bool


class Prepared(NamedTuple):
    """Checked messages that may be written, and the answer for each."""

    drafts: list[Draft]
    answers: "list[Published | Pending]"

    @property
    def duplicates(self) -> int:
        return sum(answer.duplicate for answer in self.answers)


def without_duplicates(
    table: DedupTable,
    identity: int,
    messages: Sequence[NewMessage],
    made: Sequence[Draft],
    now_ns: int,
    first_unique: Callable[[bytes], tuple[int, int] | None],
) -> Prepared:
    """Return what of a batch is to be written, given the draft of each message. Pure.

    `first_unique` returns (seq, published_ns) of the message that stands for a unique one.
    """
    drafts: list[Draft] = []
    answers: list[Published | Pending] = []
    in_this_batch: dict[bytes, int] = {}
    for message, draft in zip(messages, made, strict=True):
        attributes = draft.attributes or {}
        names: list[bytes] = []  # of the message in this batch
        found = None
        if message.dedup_id is not None:
            digest, _ = unpack_dedup(attributes[DEDUP])
            found = table.first_with(digest, now_ns)
            names.append(digest)
        if UNIQUE in attributes and found is None:
            found = first_unique(attributes[UNIQUE])
            names.append(attributes[UNIQUE])
        if found is not None:
            seq, published_ns = found
            first_id = codec.make_id(published_ns, identity, seq)
            answers.append(Published(first_id, duplicate=True))
            continue
        earlier = [in_this_batch[name] for name in names if name in in_this_batch]
        if earlier:
            answers.append(Pending(earlier[0], duplicate=True))
            continue
        in_this_batch.update(dict.fromkeys(names, len(drafts)))
        answers.append(Pending(len(drafts), duplicate=False))
        drafts.append(draft)
    return Prepared(drafts, answers)
