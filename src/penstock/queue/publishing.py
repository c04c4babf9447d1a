"""Publishing: deduplication, bounds, and the write."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock import codec
from penstock.codec import Draft, Entry
from penstock.codec.layout import DEFAULT_PRIORITY
from penstock.errors import QueueFull, RateLimited
from penstock.model import NS, NewMessage, Published, TypedPayload
from penstock.queue.core import QueueCore
from penstock.queue.dedup import dedup_hash
from penstock.queue.drafting import check_batch, draft_of, type_attributes
from penstock.queue.events import ALL_GROUPS, Event, EventType
from penstock.queue.rate import TokenBucket
from penstock.queue.runs import as_runs
from penstock.queue.tags import DUPLICATES

_new_tuple = tuple.__new__
_PLAIN_OPTIONS = Draft(b"")[1:-2]  # what stands between the payload and the attributes


class _Pending(NamedTuple):
    """An answer whose id is known once the drafts are written."""

    draft: int
    duplicate: bool


class Prepared(NamedTuple):
    """Messages that were checked and may be written."""

    drafts: list[Draft]
    answers: "list[Published | _Pending]"

    @property
    def duplicates(self) -> int:
        return sum(answer.duplicate for answer in self.answers)


class Publishing:
    """The publishing side of a queue."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._log = core.ledger.messages
        settings = core.settings
        self._bucket: TokenBucket | None = None
        if settings.rate_per_s:
            self._bucket = TokenBucket(
                rate_per_s=settings.rate_per_s,
                burst=settings.rate_burst or max(settings.rate_per_s, 1.0),
                now_ns=core.clock.monotonic_ns(),
            )
        # A message without options on a queue without bounds needs nothing of the state: it is
        # written without its lock, and the state is told when it is next looked at.
        self.plain_is_enough = (
            not (settings.max_messages or settings.max_bytes or settings.rate_per_s)
            and settings.compression == "none"
            and settings.default_priority == DEFAULT_PRIORITY
            and not settings.default_ttl_s
        )

    def publish_plain(self, item: bytes | Draft) -> str:
        """The short way, for `plain_is_enough` and a payload of bytes within its limit, or such a
        payload with its content type as a `typed_draft`."""
        core, log = self._core, self._log
        now_ns = log.now_ns
        try:
            packer = log.fast_packer
            id_ = packer.append_identified(item, now_ns(), core.identity)
            next_seq = packer.next_seq
            if id_ is None:
                seq, timestamp_ns = log.append_batch_stamped([item])
                id_, next_seq = codec.make_id(timestamp_ns, core.identity, seq), seq + 1
            core.metrics.published += 1
            if core.waiting_threads or core.listeners:
                core.arrived()
        except BaseException:  # an interrupt: it may be published, and others wait for it
            core.arrived()
            raise
        if next_seq > core.snapshot_seq:
            core.snapshot_if_due()
        return id_

    def publish_plain_batch(self, payloads: Sequence[bytes | Draft]) -> list[str]:
        """The short way for several, which are there together or not at all."""
        core = self._core
        try:
            first, timestamp_ns = core.ledger.messages.append_batch_stamped(payloads)
            core.metrics.published += len(payloads)
            if core.waiting_threads or core.listeners:
                core.arrived()
        except BaseException:
            core.arrived()
            raise
        if first >= core.snapshot_seq:
            core.snapshot_if_due()
        return codec.make_ids(timestamp_ns, core.identity, first, len(payloads))

    def publish_typed_batch(self, payloads: Sequence[TypedPayload]) -> list[str]:
        """The same for payloads with a content type: it changes nothing about their delivery."""
        return self.publish_plain_batch([typed_draft(payload) for payload in payloads])

    def publish(
        self, messages: Sequence[NewMessage], *, block_s: float | None = None
    ) -> list[Published]:
        """Publish messages, all or none. Duplicates are answered, not written again.

        `block_s`: how long to wait for room, instead of as long as the settings say.
        """
        core = self._core
        check_batch(messages, core.settings)
        drafts = self.drafts_of(messages)
        with core.lock, core.change:
            block_s = core.settings.block_s if block_s is None else block_s
            deadline_ns = core.clock.monotonic_ns() + round(block_s * NS)
            prepared = self.prepare(messages, core.tick(), drafts)
            if prepared.drafts:
                self._take_tokens(len(prepared.drafts))
            while prepared.drafts and not self._has_room(prepared.drafts, deadline_ns):
                # Others were let in meanwhile; what was no duplicate may be one now.
                prepared = self.prepare(messages, core.tick(), drafts)
            if not prepared.drafts:
                core.record([deduplicated(prepared.duplicates)])
            published = self.write_prepared(prepared)
            core.snapshot_if_due()
            return published

    def try_publish(self, messages: Sequence[NewMessage]) -> list[Published]:
        """As `publish`, but nothing where that would wait for room: for those who wait otherwise,
        until something changes."""
        core = self._core
        with core.lock, core.change:
            drafts = self.prepare(messages, core.tick()).drafts
            may_wait = core.settings.when_full == "block" and self._can_fit(len(drafts))
            if drafts and may_wait and self._excess(drafts):
                return []
            return self.publish(messages)

    def write_prepared(
        self, prepared: Prepared, attributes: Mapping[int, bytes] | None = None
    ) -> list[Published]:
        """Write what is no duplicate, with further attributes at the first. Hold the lock."""
        drafts, duplicates = prepared.drafts, prepared.duplicates
        ids: list[str] = []
        if drafts:
            further = dict(attributes or {})
            if duplicates:
                further[DUPLICATES] = duplicates.to_bytes(4, "little")
            if further:
                further = {**(drafts[0].attributes or {}), **further}
                drafts[0] = drafts[0]._replace(attributes=further)
            ids = self.write(drafts)
        self._core.metrics.deduplicated += duplicates
        return [
            Published(ids[answer.draft], answer.duplicate)
            if isinstance(answer, _Pending)
            else answer
            for answer in prepared.answers
        ]

    def write(self, drafts: Sequence[Draft]) -> list[str]:
        """Write drafts as one batch and tell the state. Hold the lock."""
        core = self._core
        log = core.ledger.messages
        first, timestamp_ns = log.append_batch_stamped(drafts)
        if core.state.ingested_upto < first:  # plain ones, written without the lock meanwhile
            core.state.publish_plain(core.state.ingested_upto, first)
        for seq, draft in enumerate(drafts, first):
            core.state.publish(_entry(draft, seq, timestamp_ns))
        core.metrics.published += len(drafts)
        core.arrived()
        core.weigh(len(drafts))
        return codec.make_ids(timestamp_ns, core.identity, first, len(drafts))

    def drafts_of(self, messages: Sequence[NewMessage]) -> list[Draft]:
        """Check and compress messages. Without the lock, since it may take long."""
        settings, now_ns = self._core.settings, self._core.clock.now_ns()
        return [draft_of(message, settings, now_ns, n) for n, message in enumerate(messages)]

    def prepare(
        self, messages: Sequence[NewMessage], now_ns: int, made: Sequence[Draft] | None = None
    ) -> Prepared:
        """What is to be written, and an answer for each message. Hold the lock.

        `made`: their drafts, if they were made before.
        """
        drafts: list[Draft] = []
        answers: list[Published | _Pending] = []
        in_this_batch: dict[bytes, int] = {}
        made = self.drafts_of(messages) if made is None else made
        for message, draft in zip(messages, made, strict=True):
            if message.dedup_id is not None:
                digest = dedup_hash(message.dedup_id)
                found = self._core.state.dedup.first_with(digest, now_ns)
                if found is not None:
                    seq, published_ns = found
                    first_id = codec.make_id(published_ns, self._core.identity, seq)
                    answers.append(Published(first_id, duplicate=True))
                    continue
                if digest in in_this_batch:
                    answers.append(_Pending(in_this_batch[digest], duplicate=True))
                    continue
                in_this_batch[digest] = len(drafts)
            answers.append(_Pending(len(drafts), duplicate=False))
            drafts.append(draft)
        return Prepared(drafts, answers)

    # -- inside ------------------------------------------------------------------------------------

    def _take_tokens(self, count: int) -> None:
        """The rate limit. Hold the lock."""
        core = self._core
        if self._bucket is None:
            return
        wait_s = self._bucket.take(count, core.clock.monotonic_ns())
        if wait_s:
            core.metrics.rejected_rate += count
            raise RateLimited(
                f"the queue takes {self._bucket.rate_per_s:g} messages/s (burst "
                f"{self._bucket.burst:g}); try again in {wait_s:.3f} s",
                wait_s,
            )

    def _has_room(self, drafts: Sequence[Draft], deadline_ns: int) -> bool:
        """Make room or wait for it, as the settings say; False: it waited, so look again.

        Hold the lock; while it waits, others have it.
        """
        core, settings = self._core, self._core.settings
        count, excess = len(drafts), self._excess(drafts)
        if not excess:
            return True
        if (
            settings.when_full == "drop_oldest"
            and excess != "bytes"  # dropping frees none
            and self._drop_oldest(count)
        ):
            return True
        left_ns = deadline_ns - core.clock.monotonic_ns()
        if settings.when_full != "block" or left_ns <= 0 or not self._can_fit(count):
            core.metrics.rejected_full += count
            if self._bucket is not None:
                self._bucket.give_back(count)
            raise QueueFull(
                f"the queue is full ({self._waiting()} messages; max_messages "
                f"{settings.max_messages}, max_bytes {settings.max_bytes}); consume "
                f"some, or raise the bound"
            )
        with core.expecting():
            core.wait(left_ns)
        core.ledger.check_open()
        return False

    def _excess(self, drafts: Sequence[Draft]) -> str:
        """Of what there would be too much with these: "bytes", "messages", or nothing."""
        settings = self._core.settings
        if settings.max_bytes and self._log_bytes(drafts) > settings.max_bytes:
            return "bytes"
        most = settings.max_messages
        return "messages" if most and self._waiting() + len(drafts) > most else ""

    def _can_fit(self, count: int) -> bool:
        """Might there be room for so many, ever?"""
        return not self._core.settings.max_messages or count <= self._core.settings.max_messages

    def _waiting(self) -> int:
        return max(group.undelivered for group in self._core.state.groups.values())

    def _log_bytes(self, drafts: Sequence[Draft]) -> int:
        """What the log holds, and would with these."""
        more = sum(len(draft.payload) + codec.ENTRY_OVERHEAD_BYTES for draft in drafts)
        return self._core.ledger.messages.size_bytes() + more

    def _drop_oldest(self, count: int) -> bool:
        """Make room for so many, in each group that has too little: its oldest that wait go.

        False, and none goes, if those are too few.
        """
        core = self._core
        events = []
        for group in core.state.groups.values():
            excess = group.undelivered + count - core.settings.max_messages
            if excess > group.undelivered - len(group.leases):
                return False
            if excess > 0:
                runs = tuple(as_runs(group.oldest_waiting(excess)))
                events.append(Event(EventType.DROPPED, group=group.number, runs=runs))
        core.record(events)
        core.metrics.dropped += sum(count for event in events for _, count in event.runs)
        return True


def typed_draft(message: TypedPayload) -> Draft:
    """The draft of a payload whose only option is its content type."""
    payload, content_type = message
    attributes = type_attributes(content_type)
    return _new_tuple(Draft, (payload, *_PLAIN_OPTIONS, attributes, 0))


def deduplicated(count: int) -> Event:
    """Of messages that were all duplicates; where some were not, they carry the count."""
    return Event(EventType.DEDUPLICATED, group=ALL_GROUPS, duplicates=count)


def _entry(draft: Draft, seq: int, timestamp_ns: int) -> Entry:
    """The entry that a draft became; the payload is left out, the state has no use for it."""
    return Entry(
        seq,
        timestamp_ns,
        draft.type,
        b"",
        draft.priority,
        draft.expires_at_ns,
        draft.deliver_at_ns,
        draft.key,
        None,
        dict(draft.attributes) if draft.attributes else None,
        draft.compression,
        0,
        0,
    )
