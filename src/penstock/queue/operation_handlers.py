"""What each operation does in a queue of files: one function for each class of `operations`.

A handler takes the behaviours of an open queue and the operation, and returns the answer. Waiting
for the disk and choosing a thread are the caller's: `Operation.writes` and `Operation.runs` say
what is needed.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from penstock import codec
from penstock.checking import check_whole, unix_ns
from penstock.errors import InvalidInput
from penstock.ledger import seq_at_time
from penstock.model import NS, DeadLetter, HistoryEvent, LeasedMessage, Message, RetryInfo, Stats
from penstock.model import Why as WhyAnswer
from penstock.operations import (
    AwaitEnding,
    Browse,
    Cancel,
    CancelDeliverable,
    Compact,
    CreateGroup,
    DeadPage,
    DeleteGroup,
    Discard,
    ExplainWait,
    Extend,
    FindMessage,
    GetEndings,
    GetLimits,
    GetMessage,
    GetRetryInfo,
    GetSchedule,
    GetStats,
    GetStorage,
    LeaseMessage,
    ListAwaited,
    ListConsumers,
    ListDead,
    ListDeadReasons,
    ListGroups,
    ListHistory,
    ListKeys,
    ListSchedules,
    Nack,
    OpenGate,
    Operation,
    Page,
    Pause,
    PauseSchedule,
    Peek,
    PreviewSeek,
    Purge,
    PutSchedule,
    Redrive,
    Release,
    ReleaseHolder,
    RemoveSchedule,
    Resolve,
    Resume,
    ResumeSchedule,
    Row,
    Seek,
    SeekPreview,
    Sync,
)
from penstock.queue import following, scheduling, surveying
from penstock.queue.behaviours import Behaviours, several
from penstock.queue.decisions import (
    DeadFilter,
    count_messages,
    count_purged,
    decide_cancel,
    decide_cancel_deliverable,
    decide_create_group,
    decide_dead,
    decide_delete_group,
    decide_pause,
    decide_purge,
    decide_seek,
)
from penstock.queue.dedup import dedup_hash
from penstock.queue.events import EventType
from penstock.queue.messages import size_of

A = TypeVar("A")

MAX_SCANNED_BYTES = 256 << 20  # of payloads, for one page
_NO_FILTERS = (None,) * 6
MAX_QUICK_ROWS, MAX_QUICK_BYTES = 100, 256 << 10  # of a page that is made in the event loop


def run(queue: Behaviours, operation: Operation[A]) -> A:
    """Run an operation in a queue and return its answer, which may not be durable yet."""
    handler = _HANDLERS.get(type(operation))
    if handler is None:
        raise InvalidInput(f"{operation!r} is not an operation of penstock.operations")
    return cast(A, handler(queue, operation))


# -- looking ---------------------------------------------------------------------------------------


def get_message(queue: Behaviours, operation: GetMessage) -> Row:
    return queue.inspecting.row(operation.id, operation.group)


def find_message(queue: Behaviours, operation: FindMessage) -> str:
    core = queue.core
    with core.lock, core.change:
        core.ledger.check_open()
        core.catch_up()
        digest = dedup_hash(operation.dedup_id)
        found = core.state.dedup.first_with(digest, core.clock.now_ns())
        return "" if found is None else codec.make_id(found[1], core.identity, found[0])


def peek(queue: Behaviours, operation: Peek) -> list[Row]:
    found = queue.inspecting.peek(operation.n, operation.group, operation.max_bytes)
    return queue.inspecting.rows(found, operation.group)


def browse(queue: Behaviours, operation: Browse) -> Page:
    """Return the next rows that match, reading no more messages than the budget allows."""
    return _page(queue, operation, operation.budget, MAX_SCANNED_BYTES)


def browse_quickly(queue: Behaviours, operation: Browse, max_bytes: int) -> Page | None:
    """Return a page of at most `max_bytes`, like `browse`; None if that takes too long for the
    event loop."""
    if operation.limit > MAX_QUICK_ROWS:
        return None
    quick = queue.quick_pages.page(operation, min(max_bytes, MAX_QUICK_BYTES))
    if quick is not None:
        return quick
    operation = operation.with_internal("max_bytes", max_bytes)
    if not queue.inspecting.is_quick_to_search(operation.state, operation.group):
        return None
    budget = min(operation.budget, MAX_QUICK_ROWS + 1)
    page = _page(queue, operation, budget, MAX_QUICK_BYTES)
    return None if page.exhausted and page.looked_at < operation.budget else page


def _page(queue: Behaviours, operation: Browse, budget: int, max_scanned_bytes: int) -> Page:
    matches = _filter(operation)
    found: list[Message] = []
    looked_at, last_seq, size, scanned_bytes = 0, operation.after_seq, 0, 0
    exhausted = False
    for seq, message in queue.inspecting.search(
        operation.state,
        operation.group,
        after_seq=operation.after_seq,
        chunk=operation.limit + 1,
    ):
        if looked_at == budget or scanned_bytes > max_scanned_bytes:
            exhausted = True
            break
        if len(found) == operation.limit:
            break
        looked_at += 1
        last_seq = seq
        if message is None:
            continue
        scanned_bytes += len(message.payload)
        if matches is None or matches(message):
            size += size_of(message)
            if found and size > operation.max_bytes:
                last_seq = found[-1].seq
                break
            found.append(message)
    else:
        last_seq = 0
    rows = queue.inspecting.rows(found, operation.group, operation.state)
    log = queue.core.ledger.messages
    return Page(rows, last_seq, looked_at, exhausted, log.first_seq, log.next_seq)


def _filter(operation: Browse) -> Callable[[Message], bool] | None:
    wanted = (
        *(operation.key, operation.since, operation.until),
        *(operation.text, operation.header, operation.priority),
    )
    if wanted == _NO_FILTERS:
        return None
    text = operation.text or ""
    data = None if operation.text is None else text.encode()
    name, has_value, value = (operation.header or "").partition("=")
    since_ns, until_ns = _ns(operation.since), _ns(operation.until)

    def matches(message: Message) -> bool:
        headers = message.headers
        return (
            (operation.key is None or message.key == operation.key)
            and (operation.priority is None or message.priority == operation.priority)
            and message.published_ns >= since_ns
            and not 0 < until_ns <= message.published_ns
            and (not name or (headers.get(name) == value if has_value else name in headers))
            and (data is None or data in message.payload or _is_in_headers(text, headers))
        )

    return matches


def _is_in_headers(text: str, headers: Mapping[str, str]) -> bool:
    return any(text in part for header in headers.items() for part in header)


def _ns(time: Any) -> int:
    return 0 if time is None else unix_ns(time)


def list_dead(queue: Behaviours, operation: ListDead) -> DeadPage:
    """Return the next dead letters that match: at least one, and no more than fit into
    `max_bytes`."""
    core, limit = queue.core, operation.limit
    named, wanted = _seqs(queue, operation), _dead_filter(operation)
    named_seqs = None if named is None else set(named)
    with core.lock, core.change:
        core.tick()
        matching = [
            (seq, delivery)
            for seq, delivery in core.group(operation.group).dead.items()
            if seq > operation.after_seq
            and (named_seqs is None or seq in named_seqs)
            and wanted.matches(delivery)
        ]
    found = heapq.nsmallest(limit + 1, matching, key=lambda item: item[0])
    letters: list[DeadLetter] = []
    last_seq = size = 0
    for seq, delivery in found[:limit]:
        letter = queue.inspecting.dead_letter(seq, delivery)
        if letter is not None:
            size += size_of(letter.message)
            if letters and size > operation.max_bytes:
                return DeadPage(letters, last_seq)
            letters.append(letter)
        last_seq = seq
    return DeadPage(letters, last_seq if len(found) > limit else 0)


def explain_wait(queue: Behaviours, operation: ExplainWait) -> WhyAnswer:
    return queue.inspecting.why(operation.id, operation.group)


def get_retry_info(queue: Behaviours, operation: GetRetryInfo) -> RetryInfo:
    return queue.inspecting.retry_info(operation.id, operation.group)


def list_history(queue: Behaviours, operation: ListHistory) -> list[HistoryEvent]:
    return queue.inspecting.history(
        operation.id, operation.group, skip=operation.skip, limit=operation.limit
    )


def get_stats(queue: Behaviours, operation: GetStats) -> Stats:
    return queue.inspecting.stats()


# -- operating -------------------------------------------------------------------------------------


def seek(queue: Behaviours, operation: Seek) -> int:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        group = core.group(operation.group)
        with core.compacting.stepping:
            core.compacting.look_again()
            target = _target(queue, operation)
            core.record(decide_seek(group, target))
        return target


def preview_seek(queue: Behaviours, operation: PreviewSeek) -> SeekPreview:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        group = core.group(operation.group)
        target = _target(queue, operation)
        log = core.ledger.messages
        messages = log.next_seq - target
        waiting = group.undelivered
        after = queue.inspecting.count_unfinished(group, target)
    return SeekPreview(target, messages, messages - after.waiting, waiting - after.undelivered)


def _target(queue: Behaviours, position: Seek | CreateGroup | PreviewSeek) -> int:
    """Return the seq that a position names. Caller holds the lock."""
    log = queue.core.ledger.messages
    if position.id is not None:
        return queue.inspecting.entry(position.id).seq
    if position.time is not None:
        return seq_at_time(log, _at_or_before_ns(cast(float, position.time)))
    if position.seq is not None:
        return max(check_whole("seq", position.seq, 1, log.next_seq), log.first_seq)
    return log.first_seq if position.to == "beginning" else log.next_seq


def _at_or_before_ns(time: float) -> int:
    """Return nanoseconds. A float is exact to 238 ns only: a message's own time must find it."""
    if isinstance(time, int):
        return time * NS
    numerator, denominator = math.nextafter(time, 0).as_integer_ratio()  # exact, unlike a product
    return numerator * NS // denominator


def list_groups(queue: Behaviours, operation: ListGroups) -> list[str]:
    core = queue.core
    with core.lock, core.change:
        return sorted(group.name for group in core.state.groups.values())


def create_group(queue: Behaviours, operation: CreateGroup) -> bool:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        if core.state.group_named(operation.name) is not None:
            return False
        with core.compacting.stepping:
            core.compacting.look_again()
            target = _target(queue, operation)
            core.record(decide_create_group(core.state, operation.name, target))
        return True


def delete_group(queue: Behaviours, operation: DeleteGroup) -> None:
    core = queue.core
    with core.lock, core.change:
        core.record(decide_delete_group(core.group(operation.name)))


def cancel(queue: Behaviours, operation: Cancel) -> bool:
    core, entry = queue.core, queue.inspecting.entry(operation.id)
    with core.lock, core.change:
        events = decide_cancel(core.state, entry.seq, core.tick())
        core.record(events)
        return bool(events)


def purge(queue: Behaviours, operation: Purge) -> int:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        group = None if operation.group is None else core.group(operation.group)
        purged = count_purged(core.state, group)
        core.record(decide_purge(core.state, group))
        return purged


def cancel_deliverable(queue: Behaviours, operation: CancelDeliverable) -> int:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        events = decide_cancel_deliverable(core.group(), operation.limit)
        core.record(events)
        return count_messages(events)


def lease_message(queue: Behaviours, operation: LeaseMessage) -> list[LeasedMessage]:
    return queue.delivering.lease_seq(
        operation.seq, operation.lease_s, operation.group, operation.holder
    )


def release_holder(queue: Behaviours, operation: ReleaseHolder) -> int:
    return queue.settling.release_of(operation.holder, operation.group)


def nack(queue: Behaviours, operation: Nack) -> None:
    leased, reason = several(operation.leased), operation.reason
    queue.settling.nack(leased, reason, operation.delay, final=operation.dead)


def extend(queue: Behaviours, operation: Extend) -> None:
    queue.settling.extend(
        several(operation.leased),
        operation.lease_s,
        progress=operation.progress,
        note=operation.note,
    )


def release(queue: Behaviours, operation: Release) -> None:
    queue.settling.release(several(operation.leased))


def redrive(queue: Behaviours, operation: Redrive) -> int:
    return _settle_dead(queue, EventType.REDRIVEN, operation, dry_run=operation.dry_run)


def discard(queue: Behaviours, operation: Discard) -> int:
    return _settle_dead(queue, EventType.DISCARDED, operation, dry_run=operation.dry_run)


def _settle_dead(
    queue: Behaviours, kind: EventType, operation: Redrive | Discard, *, dry_run: bool = False
) -> int:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        events = decide_dead(
            kind,
            core.group(operation.group),
            _seqs(queue, operation),
            _dead_filter(operation),
            operation.limit,
        )
        if not dry_run:
            core.record(events)
        return count_messages(events)


def _seqs(queue: Behaviours, operation: ListDead | Redrive | Discard) -> list[int] | None:
    """Return the seqs of the ids that an operation names; None if it names none."""
    ids = operation.ids
    return None if ids is None else [queue.inspecting.entry(id_).seq for id_ in ids]


def _dead_filter(operation: ListDead | Redrive | Discard) -> DeadFilter:
    since, until = cast("float | None", operation.since), cast("float | None", operation.until)
    return DeadFilter(operation.reason, since, until, operation.reason_group)


def pause(queue: Behaviours, operation: Pause | Resume) -> None:
    core = queue.core
    with core.lock, core.change:
        core.record(decide_pause(core.state, isinstance(operation, Pause)))


def compact(queue: Behaviours, operation: Compact) -> int:
    return queue.core.compacting.compact(seals=operation.seal).bytes_freed


def sync(queue: Behaviours, operation: Sync) -> None:
    queue.core.ledger.sync()


_HANDLERS: dict[type[Operation[Any]], Callable[[Behaviours, Any], Any]] = {
    Browse: browse,
    Cancel: cancel,
    AwaitEnding: following.await_ending,
    GetEndings: following.get_endings,
    GetLimits: surveying.get_limits,
    GetSchedule: scheduling.get_schedule,
    ListSchedules: scheduling.list_schedules,
    PauseSchedule: scheduling.pause_schedule,
    PutSchedule: scheduling.put_schedule,
    RemoveSchedule: scheduling.remove_schedule,
    ResumeSchedule: scheduling.pause_schedule,
    ListAwaited: following.list_awaited,
    Resolve: following.resolve,
    OpenGate: following.open_gate,
    GetStorage: surveying.get_storage,
    ListConsumers: surveying.list_consumers,
    ListDeadReasons: surveying.list_dead_reasons,
    ListKeys: surveying.list_keys,
    PreviewSeek: preview_seek,
    CancelDeliverable: cancel_deliverable,
    Compact: compact,
    CreateGroup: create_group,
    DeleteGroup: delete_group,
    Discard: discard,
    ExplainWait: explain_wait,
    Extend: extend,
    FindMessage: find_message,
    GetMessage: get_message,
    GetRetryInfo: get_retry_info,
    GetStats: get_stats,
    LeaseMessage: lease_message,
    ListDead: list_dead,
    ListGroups: list_groups,
    ListHistory: list_history,
    Nack: nack,
    Pause: pause,
    Peek: peek,
    Purge: purge,
    Redrive: redrive,
    Release: release,
    ReleaseHolder: release_holder,
    Resume: pause,
    Seek: seek,
    Sync: sync,
}
