"""Publishing: check, deduplicate, keep within bounds and rate, and write."""

from collections.abc import Mapping, Sequence

from penstock import codec
from penstock.codec import Draft
from penstock.codec.layout import DEFAULT_PRIORITY
from penstock.errors import InvalidInput, NoSuchMessage, QueueFull, RateLimited
from penstock.model import NS, NewMessage, Published, TypedPayload
from penstock.queue.after import after_of, id_bytes, pack_after
from penstock.queue.attributes import AFTER, DEDUP, DUPLICATES, UNIQUE, unpack_dedup
from penstock.queue.core import QueueCore
from penstock.queue.decisions import (
    count_messages,
    decide_drop_oldest,
    exceeded_bound,
    most_undelivered,
)
from penstock.queue.dedup import Kind, Pending, Prepared, kind_in, without_duplicates
from penstock.queue.drafting import check_batch, content_type_attributes, draft_of
from penstock.queue.events import ALL_GROUPS, Event, EventType
from penstock.queue.gate import gate_of
from penstock.queue.quick_drafts import QuickDrafts

_new_tuple = tuple.__new__
_BEFORE_HEADERS = Draft(b"")[1:-3]  # the fields between the payload and the headers


def typed_draft(message: TypedPayload) -> Draft:
    """Return the draft of a payload whose only option is its content type."""
    payload, content_type = message
    attributes = content_type_attributes(content_type)
    return _new_tuple(Draft, (payload, *_BEFORE_HEADERS, None, attributes, 0))


class TokenBucket:
    """A rate limit with room for a burst. Not part of the fold: it is full after a restart.

    >>> bucket = TokenBucket(rate_per_s=10, burst=2, now_ns=0)
    >>> bucket.take(2, 0), bucket.take(1, 0), bucket.take(1, 100_000_000)
    (0.0, 0.1, 0.0)
    """

    def __init__(self, *, rate_per_s: float, burst: float, now_ns: int) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._tokens = burst
        self._filled_ns = now_ns

    def take(self, count: int, now_ns: int) -> float:
        """Take tokens and return 0, or take none and return the seconds to wait."""
        elapsed_s = max(now_ns - self._filled_ns, 0) / 1e9
        self._tokens = min(self.burst, self._tokens + elapsed_s * self.rate_per_s)
        self._filled_ns = now_ns
        if count > self._tokens:
            return (min(count, self.burst) - self._tokens) / self.rate_per_s or 1 / self.rate_per_s
        self._tokens -= count
        return 0.0

    def used(self, now_ns: int) -> float:
        """Return how many tokens of the burst are taken."""
        elapsed_s = max(now_ns - self._filled_ns, 0) / 1e9
        return max(self.burst - self._tokens - elapsed_s * self.rate_per_s, 0.0)

    def charge(self, count: int, most_debt: float, now_ns: int) -> None:
        """Take tokens that are spent already, up to a debt: later calls wait until it is paid."""
        self.take(0, now_ns)  # fill it
        self._tokens = max(self._tokens - count, -most_debt)

    def give_back(self, count: int) -> None:
        """Return tokens that were taken for nothing."""
        self._tokens = min(self.burst, self._tokens + count)


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
        self._is_unbounded = not (
            settings.max_messages or settings.max_bytes or settings.rate_per_s
        )
        # On a queue without bounds, most messages need no state: they are written without the lock,
        # and fed to the state when that is next used.
        self.drafts = QuickDrafts(settings, core.clock.now_ns) if self._is_unbounded else None
        self.plain_is_enough = (  # for payloads without options
            self._is_unbounded
            and settings.compression == "none"
            and settings.default_priority == DEFAULT_PRIORITY
            and not settings.default_ttl_s
        )

    def burst_used(self) -> tuple[float, float]:
        """Return how much of the burst of the rate limit is used, and the burst; 0, 0: no limit."""
        bucket = self._bucket
        if bucket is None:
            return 0.0, 0.0
        return bucket.used(self._core.clock.monotonic_ns()), bucket.burst

    def publish_plain(self, item: bytes | Draft) -> str:
        """Publish one message on the fast path. Return its id.

        A draft of `drafts` without dedup id; or, if `plain_is_enough`, bytes within the limit, or
        such a payload as a `typed_draft`.
        """
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
        except BaseException:  # an interrupt: the message may be published, so wake waiters
            core.arrived()
            raise
        if next_seq > core.attention_seq:
            core.attend()
        return id_

    def publish_once(self, draft: Draft) -> str | None:
        """Publish one message with a dedup id on the fast path. Return its id.

        Return None if it is a duplicate: `publish` says of which. `draft` is one of `drafts`. The
        table of dedup ids is changed at once, and the rest of the state when it is next used.
        """
        core, log = self._core, self._log
        attributes = draft.attributes
        assert attributes is not None
        digest, until_ns = unpack_dedup(attributes[DEDUP])
        with core.lock, core.change:
            core.ledger.check_open()
            dedup = core.state.dedup
            if dedup.first_with(digest, core.now()) is not None:
                return None
            seq, timestamp_ns = log.append_batch_stamped([draft])
            dedup.add(kind_in(attributes), digest, until_ns, seq, timestamp_ns)
            core.metrics.published += 1
            if core.waiting_threads or core.listeners:
                core.arrived()
            if dedup.evicted > core.evicted_logged:
                core.log_evicted()
        if seq >= core.attention_seq:
            core.attend()
        return codec.make_id(timestamp_ns, core.identity, seq)

    def publish_plain_batch(self, items: Sequence[bytes | Draft]) -> list[str]:
        """Publish several messages on the fast path, all or none. Return their ids."""
        core = self._core
        try:
            first, timestamp_ns = core.ledger.messages.append_batch_stamped(items)
            core.metrics.published += len(items)
            if core.waiting_threads or core.listeners:
                core.arrived()
        except BaseException:
            core.arrived()
            raise
        if first + len(items) > core.attention_seq:
            core.attend()
        return codec.make_ids(timestamp_ns, core.identity, first, len(items))

    def publish_typed_batch(self, payloads: Sequence[TypedPayload]) -> list[str]:
        """Publish several payloads with a content type on the fast path."""
        return self.publish_plain_batch([typed_draft(payload) for payload in payloads])

    def publish(
        self, messages: Sequence[NewMessage], *, block_s: float | None = None
    ) -> list[Published]:
        """Publish messages, all or none. A duplicate is answered with the first id, not written.

        `block_s`: longest wait for room, instead of the setting.
        """
        core = self._core
        check_batch(messages, core.settings)
        drafts = self._quick_drafts(messages)
        needs_lock = not self._is_unbounded
        if drafts is None:
            drafts = self.drafts_of(messages)
            needs_lock |= any(
                message.after is not None or (draft.attributes and UNIQUE in draft.attributes)
                for message, draft in zip(messages, drafts, strict=True)
            )
        if not needs_lock and all(message.dedup_id is None for message in messages):
            ids = self.publish_plain_batch(drafts)
            return [_new_tuple(Published, (id_, False)) for id_ in ids]
        with core.lock, core.change:
            block_s = core.settings.block_s if block_s is None else block_s
            deadline_ns = core.clock.monotonic_ns() + round(block_s * NS)
            follows = core.follows_others
            prepared = self.prepare(messages, self._now(), drafts, follows_others=follows)
            if prepared.drafts and not self._is_unbounded:
                self._take_tokens(len(prepared.drafts))
                while prepared.drafts and not self._has_room(prepared.drafts, deadline_ns):
                    # Others published meanwhile: a message may be a duplicate now.
                    now_ns = core.tick()
                    prepared = self.prepare(messages, now_ns, drafts, follows_others=follows)
            if not prepared.drafts:
                core.record([deduplicated(prepared.duplicates)])
            published = self.write_prepared(prepared)
            if core.has_snapshot_due:
                core.snapshot_if_due()
            return published

    def _now(self) -> int:
        """Return the time, with a state that is up to date as far as publishing needs it."""
        core = self._core
        if not self._is_unbounded:
            return core.tick()  # expired messages make room
        core.ledger.check_open()
        core.catch_up()
        return core.now()

    def _quick_drafts(self, messages: Sequence[NewMessage]) -> list[Draft] | None:
        """Return the drafts of messages that are all usual ones; else None."""
        if self.drafts is None:
            return None
        drafts: list[Draft] = []
        for message in messages:
            draft = self.drafts.of_message(message) if type(message) is NewMessage else None
            if draft is None:
                return None
            drafts.append(draft)
        return drafts

    def try_publish(self, messages: Sequence[NewMessage]) -> list[Published]:
        """Publish, or return [] instead of waiting for room. For tasks, which wait otherwise."""
        core = self._core
        with core.lock, core.change:
            follows = core.follows_others
            drafts = self.prepare(messages, core.tick(), follows_others=follows).drafts
            may_wait = core.settings.when_full == "block" and self._can_fit(len(drafts))
            if drafts and may_wait and self._excess(drafts):
                return []
            return self.publish(messages)

    def write_prepared(
        self, prepared: Prepared, attributes: Mapping[int, bytes] | None = None
    ) -> list[Published]:
        """Write what is no duplicate, with more attributes on the first. Caller holds the lock."""
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
            if isinstance(answer, Pending)
            else answer
            for answer in prepared.answers
        ]

    def write(self, drafts: Sequence[Draft]) -> list[str]:
        """Write drafts as one batch and feed the state. Caller holds the lock."""
        core = self._core
        log = core.ledger.messages
        first, timestamp_ns = log.append_batch_stamped(drafts)
        core.catch_up()
        if core.main.dependencies.touched:  # one comes after a message that failed before
            core.settle_dependents()
        core.metrics.published += len(drafts)
        core.arrived()
        if core.state.dedup.evicted > core.evicted_logged:
            core.log_evicted()
        return codec.make_ids(timestamp_ns, core.identity, first, len(drafts))

    def drafts_of(self, messages: Sequence[NewMessage]) -> list[Draft]:
        """Check and compress messages. Call without the lock: it may take long."""
        settings, now_ns = self._core.settings, self._core.clock.now_ns()
        return [draft_of(message, settings, now_ns, n) for n, message in enumerate(messages)]

    def prepare(
        self,
        messages: Sequence[NewMessage],
        now_ns: int,
        made: Sequence[Draft] | None = None,
        *,
        follows_others: bool = False,
    ) -> Prepared:
        """Find duplicates. Return what is to be written. Caller holds the lock.

        `made`: the drafts, if they were made before. `follows_others`: messages may come after
        those of other queues.
        """
        core, made = self._core, self.drafts_of(messages) if made is None else made
        state = core.state
        if any(draft.attributes and _depends_on_others(draft.attributes) for draft in made):
            now_ns = core.tick()  # a lease that has ended, or a message with a key that has expired
            state.unique.clean(core.main)
        prepared = without_duplicates(
            state.dedup,
            core.identity,
            messages,
            made,
            now_ns,
            lambda key: state.unique.first_with(key, core.main, now_ns),
        )
        try:
            state.dedup.check_room(prepared.drafts, now_ns, core.has_ended)
        except QueueFull:
            core.metrics.rejected_full += len(prepared.drafts)
            raise
        if any(message.after is not None for message in messages):
            self._add_after(messages, prepared, follows_others)
        return prepared

    def _add_after(
        self, messages: Sequence[NewMessage], prepared: Prepared, follows_others: bool
    ) -> None:
        """Add to drafts what they come after. Caller holds the lock.

        Raise NoSuchMessage for a message that was never published. One that retention removed was
        done, so it does not matter.
        """
        drafts, answers = prepared.drafts, prepared.answers
        known: dict[str, int | bytes] = {}  # ids that were looked at: seq, or id of another queue
        for message, answer in zip(messages, answers, strict=True):
            if message.after is None or not isinstance(answer, Pending) or answer.duplicate:
                continue
            near: list[int] = []
            far: list[int] = []
            elsewhere: list[bytes] = []
            gate = gate_of(message)
            for one in message.after:
                earlier = answers[one] if isinstance(one, int) else one
                if isinstance(earlier, Pending):
                    near.append(answer.draft - earlier.draft)
                    continue
                id_ = earlier if isinstance(earlier, str) else earlier.id
                found = known.get(id_)
                if found is None:
                    follows = follows_others or gate is not None  # `tasks` sees to it
                    found = known[id_] = self._find_earlier(id_, follows)
                if isinstance(found, bytes):
                    elsewhere.append(found)
                else:
                    far.append(found)
            runs_anyway = message.after_failed == "run"
            after = after_of(near, far, elsewhere, runs_anyway=runs_anyway, gate=gate)
            draft = drafts[answer.draft]
            attributes = {**(draft.attributes or {}), AFTER: pack_after(after)}
            drafts[answer.draft] = draft._replace(attributes=attributes)

    def _find_earlier(self, id_: str, follows_others: bool) -> int | bytes:
        """Return the seq of a message, or the id as bytes if it is of another queue."""
        core = self._core
        milliseconds, identity, seq = codec.parse_id(id_)
        if identity != core.identity:
            if not follows_others:
                raise InvalidInput(
                    f"after names {id_}, a message of another queue: only a broker follows other "
                    f"queues, and only for messages that are published, not emitted with an ack"
                )
            return id_bytes(id_)
        if not 0 < seq < core.ledger.messages.next_seq:
            raise NoSuchMessage(f"after names {id_}, which was never published")
        core.check_published(id_, seq, milliseconds)
        return seq

    # -- inside ------------------------------------------------------------------------------------

    def _take_tokens(self, count: int) -> None:
        """Raise RateLimited if the rate limit is reached. Caller holds the lock."""
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
        """Make room or wait for it, as `when_full` says. Return False if it waited: check again.

        Caller holds the lock; it is released while waiting.
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
                f"the queue is full ({most_undelivered(core.state)} messages; max_messages "
                f"{settings.max_messages}, max_bytes {settings.max_bytes}); consume "
                f"some, or raise the bound"
            )
        with core.expecting():
            core.wait(left_ns)
        core.ledger.check_open()
        return False

    def _excess(self, drafts: Sequence[Draft]) -> str:
        """Return the bound that these drafts would exceed: "bytes", "messages", or ""."""
        core = self._core
        return exceeded_bound(
            core.state, core.settings, len(drafts), lambda: self._log_bytes(drafts)
        )

    def _can_fit(self, count: int) -> bool:
        """Return whether the bound allows `count` messages at all."""
        return not self._core.settings.max_messages or count <= self._core.settings.max_messages

    def _log_bytes(self, drafts: Sequence[Draft]) -> int:
        """Return the size of the message log with these drafts."""
        more = sum(len(draft.payload) + codec.ENTRY_OVERHEAD_BYTES for draft in drafts)
        return self._core.ledger.messages.size_bytes() + more

    def _drop_oldest(self, count: int) -> bool:
        """Drop the oldest waiting messages to make room. Return False if they are too few."""
        core = self._core
        events = decide_drop_oldest(core.state, count, core.settings.max_messages)
        if events is None:
            return False
        core.record(events)
        core.metrics.dropped += count_messages(events)
        return True


def _depends_on_others(attributes: Mapping[int, bytes]) -> bool:
    """Return whether a message is published depending on the states of others."""
    return UNIQUE in attributes or kind_in(attributes) == Kind.STEP


def deduplicated(count: int) -> Event:
    """Return the event of a batch of duplicates. Otherwise the first message has the count."""
    return Event(EventType.DEDUPLICATED, group=ALL_GROUPS, duplicates=count)
