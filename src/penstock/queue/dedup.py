"""Deduplication: the dedup ids that were seen, until when, and in which message.

The record of a dedup id is an attribute of the message itself, so both are one write, and the
table is a fold over the message log like everything else.

Ids serve several purposes, and each has a table and a limit of its own, so that those of one never
displace those of another. When a table is full, the id that was published first is forgotten. For
unique jobs and steps of workflows, publishing prevents that by refusing the new message.
"""

import hashlib
import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from penstock import codec
from penstock.codec import Draft
from penstock.errors import QueueFull
from penstock.model import NewMessage, Published
from penstock.queue.attributes import DEDUP, DEDUP_KIND, UNIQUE, pack_dedup, unpack_dedup

Item = tuple[int, bytes, int, int, int]  # kind, digest, until_ns, seq, published_ns


class Kind(IntEnum):
    """What a dedup id is for. The numbers are part of the file format."""

    MESSAGE = 0  # the user's own; also ids of versions that knew no kinds
    RETRY = 1  # generated, so that a publish can be retried
    UNIQUE = 2  # a job that is unique for a time
    RESULT = 3  # the result of a job
    STEP = 4  # a step of a workflow
    STEP_RESULT = 5  # the result of a step, or the plan or the gate of a workflow


OWN_PREFIX = "penstock."
UNIQUE_PREFIX = "penstock.unique:"
RESULT_PREFIX = "penstock.result:"
FLOW_PREFIX = "penstock.flow:"
CLIENT_PREFIX = "client:"
OUTBOX_PREFIX = "outbox-"
_RETRY_PREFIXES = (CLIENT_PREFIX, OUTBOX_PREFIX)


def kind_of(dedup_id: str, *, is_delayed: bool = False) -> Kind:
    """Return what the dedup id of a message is for. A plan of a workflow is delayed, a step is not.

    >>> kind_of("order-7").name, kind_of("penstock.result:0198f2").name
    ('MESSAGE', 'RESULT')
    """
    if dedup_id.startswith(_RETRY_PREFIXES):
        return Kind.RETRY
    if not dedup_id.startswith(OWN_PREFIX):
        return Kind.MESSAGE
    if dedup_id.startswith(UNIQUE_PREFIX):
        return Kind.UNIQUE
    if dedup_id.startswith(RESULT_PREFIX):
        return Kind.STEP_RESULT if "/" in dedup_id else Kind.RESULT
    if dedup_id.startswith(FLOW_PREFIX):
        return Kind.STEP_RESULT if is_delayed else Kind.STEP
    return Kind.MESSAGE


def kind_in(attributes: Mapping[int, bytes]) -> int:
    """Return the kind of the dedup id that a message has."""
    return int.from_bytes(attributes.get(DEDUP_KIND, b""), "little")


def dedup_attributes(dedup_id: str, until_ns: int, *, is_delayed: bool = False) -> dict[int, bytes]:
    """Return the attributes of a message with a dedup id."""
    attributes = {DEDUP: pack_dedup(dedup_hash(dedup_id), until_ns)}
    kind = kind_of(dedup_id, is_delayed=is_delayed)
    if kind is not Kind.MESSAGE:
        attributes[DEDUP_KIND] = bytes([kind])
    return attributes


def dedup_hash(dedup_id: str) -> bytes:
    """Return the digest that stands for a dedup id on disk and in memory."""
    return hashlib.sha256(dedup_id.encode()).digest()


class _Ids:
    """The ids of one kind, the one that was published first in front."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self.seen: OrderedDict[bytes, tuple[int, int, int]] = OrderedDict()  # until, seq, published
        self._by_end: list[tuple[int, bytes]] = []

    def add(self, digest: bytes, until_ns: int, seq: int, published_ns: int) -> int:
        """Add an id. Return how many were forgotten before their window was over."""
        self.forget_before(published_ns)
        self.seen.pop(digest, None)  # its window is over, or it would be a duplicate
        self.seen[digest] = (until_ns, seq, published_ns)
        heapq.heappush(self._by_end, (until_ns, digest))
        evicted = 0
        while len(self.seen) > self.max_entries:
            self.seen.popitem(last=False)
            evicted += 1
        if evicted and len(self._by_end) > 2 * self.max_entries + 64:
            self._order_by_end()  # without those that were forgotten
        return evicted

    def load(self, items: Iterable[tuple[bytes, tuple[int, int, int]]]) -> None:
        self.seen = OrderedDict(items)
        self._order_by_end()

    def _order_by_end(self) -> None:
        self._by_end = [(record[0], digest) for digest, record in self.seen.items()]
        heapq.heapify(self._by_end)

    def forget_before(self, now_ns: int) -> None:
        """Forget the ids whose window is over."""
        while self._by_end and self._by_end[0][0] <= now_ns:
            until_ns, digest = heapq.heappop(self._by_end)
            found = self.seen.get(digest)
            if found is not None and found[0] == until_ns:
                del self.seen[digest]


class DedupTable:
    """The dedup ids of all kinds. `max_results` is the limit of results and of steps."""

    def __init__(self, max_entries: int, max_results: int | None = None) -> None:
        self.max_entries = max_entries
        self.max_results = max_entries if max_results is None else max_results
        self.evicted = 0  # forgotten before their window was over
        self._newest_seq = 0
        most = dict.fromkeys(Kind, self.max_entries)
        most[Kind.RESULT] = most[Kind.STEP] = self.max_results
        # Since a step that has not ended, there are at most `max_results` plans, as many gates, and
        # twice as many results: of the steps after it, and of those before it that are remembered.
        # So the plan and the results of a workflow that has not ended are never forgotten early.
        most[Kind.STEP_RESULT] = 4 * self.max_results
        self._of = [_Ids(most[kind]) for kind in Kind]

    def __len__(self) -> int:
        return sum(len(ids.seen) for ids in self._of)

    def count(self, *kinds: Kind) -> int:
        """Return the number of ids of the one of these kinds that has most."""
        return max(len(self._of[kind].seen) for kind in kinds)

    def first_with(self, digest: bytes, now_ns: int) -> tuple[int, int] | None:
        """Return (seq, published_ns) of the message with this id, if its window is not over.

        An id of a version that knew no kinds may be of any, so all are looked at.
        """
        for ids in self._of:
            found = ids.seen.get(digest)
            if found is not None and found[0] > now_ns:
                return found[1], found[2]
        return None

    def add(self, kind: int, digest: bytes, until_ns: int, seq: int, published_ns: int) -> None:
        """Note that a message with this id was published.

        Nothing changes if this or a later message was noted before: a publisher may note its
        message itself, and the fold does so later.
        """
        if seq > self._newest_seq:
            self._newest_seq = seq
            ids = self._of[_known(kind)]
            self.evicted += ids.add(digest, until_ns, seq, published_ns)

    def check_room(
        self, drafts: Sequence[Draft], now_ns: int, has_ended: Callable[[int], bool]
    ) -> None:
        """Raise QueueFull if publishing drafts would make the table forget what it must not.

        That is a unique job, or a step of a workflow that has not ended, as `has_ended` says of the
        seq of its message.
        """
        count = Counter(
            kind_in(draft.attributes)
            for draft in drafts
            if draft.attributes and DEDUP_KIND in draft.attributes
        )
        if self._excess(Kind.UNIQUE, count[Kind.UNIQUE], now_ns):
            raise QueueFull(
                f"the queue remembers {self.max_entries} unique jobs until the end of their "
                f"unique_for_s, and it has {self.count(Kind.UNIQUE)}; publish later, or raise "
                f"dedup_entries"
            )
        excess = self._excess(Kind.STEP, count[Kind.STEP], now_ns)
        steps = self._of[Kind.STEP]
        if excess and (
            count[Kind.STEP] > steps.max_entries
            or not all(has_ended(seq) for _, seq, _ in islice(steps.seen.values(), excess))
        ):
            raise QueueFull(
                f"the queue keeps {self.max_results} steps of workflows, and the oldest of the "
                f"{len(steps.seen)} that it has are not done; publish {count[Kind.STEP]} more "
                f"later, or raise result_entries"
            )

    def _excess(self, kind: Kind, count: int, now_ns: int) -> int:
        """Return how many ids would be forgotten early if this number were added."""
        ids = self._of[kind]
        if count and len(ids.seen) + count > ids.max_entries:
            ids.forget_before(now_ns)
            return max(len(ids.seen) + count - ids.max_entries, 0)
        return 0

    def items(self) -> list[Item]:
        """Return (kind, digest, until_ns, seq, published_ns) of all ids, in a fixed order."""
        return sorted(
            (kind, digest, *record)
            for kind, ids in enumerate(self._of)
            for digest, record in ids.seen.items()
        )

    def load(self, items: list[Item]) -> None:
        """Replace all ids."""
        found: list[list[tuple[bytes, tuple[int, int, int]]]] = [[] for _ in Kind]
        for kind, digest, until_ns, seq, published_ns in sorted(items, key=lambda item: item[3]):
            found[_known(kind)].append((digest, (until_ns, seq, published_ns)))
        for ids, own in zip(self._of, found, strict=True):
            ids.load(own)
        self._newest_seq = max((item[3] for item in items), default=0)


def _known(kind: int) -> int:
    """Return the kind, or that of a user's message for one that a newer version wrote."""
    return kind if kind < len(Kind) else Kind.MESSAGE


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
