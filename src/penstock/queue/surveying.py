"""Surveys of a queue: one function for each operation of `operations.surveying`.

The lock is held only to copy what is looked at; counting goes on without it.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from penstock.codec import make_id
from penstock.errors import EntryGone
from penstock.ledger import read_entry
from penstock.ledger.damage import QUARANTINE
from penstock.ledger.log import Log
from penstock.ledger.segment import Segment
from penstock.operations import (
    Consumers,
    DamageReport,
    DeadReason,
    DeadReasons,
    GetLimits,
    GetStorage,
    HeldLease,
    Holder,
    KeyBacklog,
    KeyBacklogs,
    Limit,
    Limits,
    ListConsumers,
    ListDeadReasons,
    ListKeys,
    QuarantineFile,
    SegmentState,
    StorageReport,
)
from penstock.queue.behaviours import Behaviours
from penstock.queue.compaction import LiveView
from penstock.queue.core import QueueCore
from penstock.queue.decisions import MAX_GROUPS, most_undelivered
from penstock.queue.dedup import Kind
from penstock.queue.delivery import Delivery, Lease
from penstock.queue.events import Cause
from penstock.queue.group import Group
from penstock.queue.reasons import reason_group
from penstock.queue.settings import QueueSettings

MAX_LEASES = MAX_KEYS = 100_000  # looked at
MAX_DEAD = 200_000
_MAX_REASONS = 10_000  # told apart
_MAX_FILES = 1000


def list_consumers(queue: Behaviours, operation: ListConsumers) -> Consumers:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        leases = core.group(operation.group).leases
        total, looked_at = len(leases), list(islice(leases.items(), MAX_LEASES))
    counts = Counter([lease.holder for _, lease in looked_at])
    oldest: dict[str, int] = {}
    first_end: dict[str, int] = {}
    for lease in {id(lease): lease for _, lease in looked_at}.values():
        began_ns = lease.deadline_ns - lease.length_ns
        oldest[lease.holder] = min(oldest.get(lease.holder, began_ns), began_ns)
        ends_ns = first_end.get(lease.holder, lease.deadline_ns)
        first_end[lease.holder] = min(ends_ns, lease.deadline_ns)
    holders = [
        Holder(name, n, oldest[name], first_end[name])
        for name, n in counts.most_common(operation.limit)
    ]
    soonest = heapq.nsmallest(operation.limit, looked_at, key=lambda one: one[1].deadline_ns)
    held = [_held(core, seq, lease) for seq, lease in soonest]
    return Consumers(total, holders, held, total > len(looked_at))


def _held(core: QueueCore, seq: int, lease: Lease) -> HeldLease:
    return HeldLease(
        _id(core, seq),
        seq,
        lease.holder,
        lease.attempt,
        lease.deadline_ns - lease.length_ns,
        lease.deadline_ns,
    )


def _id(core: QueueCore, seq: int) -> str:
    """Return the id of a message; empty if it cannot be read."""
    try:
        entry = read_entry(core.ledger.messages, seq)
    except EntryGone:
        return ""
    return make_id(entry.timestamp_ns, core.identity, seq)


def list_keys(queue: Behaviours, operation: ListKeys) -> KeyBacklogs:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        total, found = core.group(operation.group).key_backlogs(MAX_KEYS)
    largest = heapq.nlargest(operation.limit, found)
    keys = [
        KeyBacklog(key.decode(errors="replace"), count, _id(core, first_seq))
        for count, key, first_seq in largest
    ]
    return KeyBacklogs(keys, total, total > len(found))


def list_dead_reasons(queue: Behaviours, operation: ListDeadReasons) -> DeadReasons:
    core = queue.core
    with core.lock, core.change:
        core.tick()
        dead = core.group(operation.group).dead
        total, looked_at = len(dead), list(islice(reversed(dead.items()), MAX_DEAD))
    found: dict[str, _Reason] = {}
    known: dict[str, str] = {}
    for seq, delivery in looked_at:
        name = known.get(delivery.reason)
        if name is None:
            name = reason_group(delivery.reason)
            if len(known) < _MAX_REASONS:
                known[delivery.reason] = name
        reason = found.get(name)
        if reason is not None:
            reason.add(delivery)
        elif len(found) < _MAX_REASONS:
            found[name] = _Reason(seq, delivery)
    ordered = heapq.nlargest(operation.limit, found.items(), key=lambda one: one[1].count)
    reasons = [
        DeadReason(
            name,
            one.count,
            one.first_ns,
            one.last_ns,
            _id(core, one.seq),
            Cause(one.cause).name.lower() if one.cause else "",
        )
        for name, one in ordered
    ]
    listed = sum(one.messages for one in reasons)
    return DeadReasons(reasons, total, total - listed, total > len(looked_at))


class _Reason:
    """Dead letters of one reason; the first that is added died last."""

    __slots__ = ("cause", "count", "first_ns", "last_ns", "seq")

    def __init__(self, seq: int, delivery: Delivery) -> None:
        self.seq = seq
        self.cause = delivery.cause
        self.count = 1
        self.first_ns, self.last_ns = delivery.first_failure_ns, delivery.last_failure_ns

    def add(self, delivery: Delivery) -> None:
        self.count += 1
        self.first_ns = min(self.first_ns, delivery.first_failure_ns)
        self.last_ns = max(self.last_ns, delivery.last_failure_ns)


# -- files -----------------------------------------------------------------------------------------


def get_storage(queue: Behaviours, operation: GetStorage) -> StorageReport:
    core, ledger = queue.core, queue.core.ledger
    with core.lock, core.change:
        core.catch_up()
        live = LiveView(core.state)
    found: list[SegmentState] = []
    total = 0
    for name, log in (("messages", ledger.messages), ("events", ledger.events)):
        states = _segments(name, log, live)
        total += len(states)
        found += states[-operation.limit :]
    messages = _segments("messages", ledger.messages, live)
    entries = sum(one.entries for one in messages)
    refusal = ledger.refusal
    return StorageReport(
        found,
        total,
        sum(one.live for one in messages) / entries if entries else 1.0,
        len(ledger.snapshot_seqs()),
        [
            DamageReport(one.file, one.offset, one.length, one.lost, one.reason, one.torn)
            for one in ledger.damage
        ],
        _quarantine(core),
        "" if refusal is None else str(refusal),
    )


def _segments(name: str, log: Log, live: LiveView) -> list[SegmentState]:
    segments: list[Segment] = list(log.segments.all)
    ends = [*(one.base_seq for one in segments[1:]), log.next_seq]
    found = []
    for segment, end_seq in zip(segments, ends, strict=False):
        entries = max(end_seq - segment.base_seq, 0)
        needed = entries
        if name == "messages":
            needed = min(live.count(segment.base_seq, end_seq), entries)
        is_sealed = segment is not segments[-1]
        found.append(
            SegmentState(
                name,
                segment.base_seq,
                entries,
                needed,
                segment.end,
                is_sealed,
                segment.header.created_at_ns,
            )
        )
    return found


def _quarantine(core: QueueCore) -> list[QuarantineFile]:
    folder = core.ledger.root.child(QUARANTINE)
    if not folder.exists():
        return []
    found = []
    for name in sorted(folder.names())[:_MAX_FILES]:
        try:
            fd = folder.files.open(folder.file(name), "read")
        except OSError:
            continue
        try:
            found.append(QuarantineFile(name, folder.files.size(fd)))
        finally:
            folder.files.close(fd)
    return found


# -- limits ----------------------------------------------------------------------------------------

_FULL = {
    "reject": "publishing is refused",
    "block": "publishing waits",
    "drop_oldest": "the oldest messages are dropped",
}


_OF_IDS = (Kind.MESSAGE, Kind.RETRY, Kind.UNIQUE)


def get_limits(queue: Behaviours, operation: GetLimits) -> Limits:
    core = queue.core
    settings = core.settings
    with core.lock, core.change:
        core.tick()
        state = core.state
        groups = [*state.groups.values()]
        undelivered, dedup_ids = most_undelivered(state), state.dedup.count(*_OF_IDS)
        results = state.dedup.count(Kind.RESULT, Kind.STEP)
        deliveries = _limits_of_deliveries(groups, settings, core.clock.now_ns())
        dead = max(len(group.dead) for group in groups)
        dead_bytes = max(group.dead_bytes for group in groups)
    full = _FULL[settings.when_full]
    message_bytes = core.ledger.messages.size_bytes()
    found = [
        Limit("max_messages", undelivered, settings.max_messages, full),
        Limit("max_bytes", message_bytes, settings.max_bytes, full),
        Limit("rate_burst", *queue.publishing.burst_used(), "publishing is refused for a moment"),
        Limit(
            "dead_max_messages",
            dead,
            settings.dead_max_messages,
            "the oldest dead letters are discarded",
        ),
        Limit(
            "dead_max_bytes",
            dead_bytes,
            settings.dead_max_bytes,
            "the oldest dead letters are discarded",
        ),
        Limit(
            "dedup_entries",
            dedup_ids,
            settings.dedup_entries,
            "the oldest ids are forgotten; unique jobs are refused",
        ),
        Limit(
            "result_entries",
            results,
            settings.result_entries,
            "the oldest results are forgotten; workflows are refused while the oldest steps are "
            "not done",
        ),
        Limit("groups", len(groups), MAX_GROUPS, "new groups are refused"),
        *deliveries,
    ]
    return Limits([one for one in found if one.most])


def _limits_of_deliveries(
    groups: Sequence[Group], settings: QueueSettings, now_ns: int
) -> list[Limit]:
    """Return the limits of deliveries, of the group that is closest to each. Caller holds the lock.

    The burst of a rate comes back at the rate, so what is used of it says how close the rate is.
    """
    found: list[Limit] = []
    gates = [group.gate for group in groups if group.gate is not None]
    if gates:
        most = gates[0].limit.burst if gates[0].limit is not None else 0
        used = max(gate.burst_used(now_ns) for gate in gates)
        leased = max(gate.in_flight for gate in gates)
        rate = f"leases wait: {settings.delivery_rate_per_s:g} messages a second"
        found.append(
            Limit("max_in_flight", leased, settings.max_in_flight, "leases wait for one to end")
        )
        found.append(Limit("delivery_burst", used, most, rate))
    shares = [group.fair.closest(now_ns) for group in groups if group.fair is not None]
    if shares:
        fullest = max((one for one, _ in shares), key=lambda one: one.gate.in_flight)
        fastest = max((one for _, one in shares), key=lambda one: one.gate.burst_used(now_ns))
        limit = fastest.gate.limit
        found.append(
            Limit(
                "tenant_max_in_flight",
                fullest.gate.in_flight,
                settings.tenant_max_in_flight,
                f"messages of {fullest} wait for a lease to end",
            )
        )
        found.append(
            Limit(
                "tenant_burst",
                fastest.gate.burst_used(now_ns),
                0 if limit is None else limit.burst,
                f"messages of {fastest} wait: {settings.tenant_rate_per_s:g} a second",
            )
        )
    return found
