"""Snapshots: the state as bytes and back, and saving those bytes.

The same state always gives the same bytes: a header of JSON (counts, names), then the bulk as
packed arrays, each with its length.
"""

import json
import logging
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from operator import attrgetter
from queue import SimpleQueue
from typing import Any

from penstock.background_thread import BackgroundThread
from penstock.errors import BadEntry, LedgerError, NewerVersion
from penstock.locks import Lock
from penstock.queue.delivery import Delivery, Lease, State
from penstock.queue.dependencies import Failure, Wait
from penstock.queue.events import MAIN_GROUP, EventType
from penstock.queue.group import Group
from penstock.queue.progress import Progress
from penstock.queue.runs import Runs
from penstock.queue.schedule import Delays
from penstock.queue.state import QueueState

logger = logging.getLogger("penstock.queue")

LARGE_BYTES = 1 << 20  # a larger snapshot is saved in a thread
_VERSION = 2
_WITHOUT_SCHEDULES = 1  # older versions, which would forget the schedules, read this one
_LENGTH = struct.Struct("<Q")
_DEDUP = struct.Struct("<32sQQQ")
# seq and state, then these fields; reason and key are stored as JSON beside them.
_DELIVERY = struct.Struct("<QBBQIQBQQB")
_DELIVERY_FIELDS = (
    "priority",
    "due_ns",
    "attempt",
    "nonce",
    "timed_out",
    "first_failure_ns",
    "last_failure_ns",
    "cause",
)
_LEASE_FIELDS = ("attempt", "nonce", "deadline_ns", "length_ns", "holder", "priority")
_delivery_values = attrgetter(*_DELIVERY_FIELDS)
_lease_values = attrgetter(*_LEASE_FIELDS)


def dump_state(state: QueueState) -> bytes:
    """Return the state as bytes."""
    return freeze_state(state).done()


def freeze_state(state: QueueState) -> "Frozen":
    """Copy the state as it is now. Making bytes of the copy takes longer, and may be done later."""
    writer = Frozen()
    groups = [state.groups[number] for number in sorted(state.groups)]
    progress = [group.progress.items(group.leases) for group in groups]
    dedup = state.dedup.items()
    kinds = sorted(Counter(kind for kind, *_ in dedup).items())  # the order of the ids
    unique = state.unique.items(state.groups[MAIN_GROUP]) if MAIN_GROUP in state.groups else []
    writer.json(
        {
            "version": _VERSION if state.schedules else _WITHOUT_SCHEDULES,
            "ingested_upto": state.ingested_upto,
            "next_group": state.next_group,
            "paused": state.paused,
            "dedup_evicted": state.dedup.evicted,
            "deduplicated": state.deduplicated,
            **({"dedup_kinds": kinds} if any(kind for kind, _ in kinds) else {}),
            "groups": [_group_header(group) for group in groups],
            "has_expiries": True,
            "has_dependencies": MAIN_GROUP in state.groups,  # else an event is damaged
            **({"has_unique": True} if unique else {}),
            **({"has_progress": True} if any(progress) else {}),
            **({"has_limits": True} if state.limits is not None else {}),
        }
    )
    writer.blob(b"".join(_DEDUP.pack(*item[1:]) for item in dedup))
    for group in groups:
        _dump_group(writer, group)
    for group in groups:  # last, where versions without these times do not look
        writer.numbers(_expiries(group))
    if state.schedules:
        writer.json(state.schedules.dump())
    if MAIN_GROUP in state.groups:
        _dump_dependencies(writer, state.groups[MAIN_GROUP])
    if any(progress):
        writer.json(progress)
    if unique:
        writer.json([[attribute.hex(), *times] for attribute, *times in unique])
    if state.limits is not None:
        for group in groups:
            _dump_limits(writer, group)
    return writer


def load_state(state: QueueState, blob: bytes) -> None:
    """Fill a new state from a snapshot. Raise BadEntry if `dump_state` did not make it."""
    try:
        _load_state(state, _Reader(blob))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise BadEntry(0, f"the snapshot cannot be read: {error!r}") from error


def _load_state(state: QueueState, reader: "_Reader") -> None:
    header = reader.json()
    if header["version"] > _VERSION:
        raise NewerVersion(0, "the snapshot was written by a newer version")
    state.ingested_upto = header["ingested_upto"]
    state.next_group = header["next_group"]
    state.paused = header["paused"]
    state.dedup.evicted = header["dedup_evicted"]
    state.deduplicated = header.get("deduplicated", 0)
    dedup = list(_DEDUP.iter_unpack(reader.blob()))
    counts = header.get("dedup_kinds", [[0, len(dedup)]])
    kinds = chain.from_iterable(repeat(kind, count) for kind, count in counts)
    state.dedup.load([(kind, *item) for kind, item in zip(kinds, dedup, strict=True)])
    state.groups.clear()
    delays = []
    for group_header in header["groups"]:
        group = state.new_group(
            group_header["number"], group_header["name"], group_header["fed_upto"]
        )
        for name, total in group_header["totals"].items():
            group.totals[EventType[name]] = total
        state.groups[group.number] = group
        delays.append(_load_group(reader, group))
    for group, delay in zip(state.groups.values(), delays, strict=True):
        if header.get("has_expiries"):
            _load_expiries(reader, group)
        group.restore(delay)
    if header["version"] > _WITHOUT_SCHEDULES:
        state.schedules.load(reader.json())
    if header.get("has_dependencies"):
        _load_dependencies(reader, state.groups[MAIN_GROUP])
    if header.get("has_progress"):
        for group, said in zip(state.groups.values(), reader.json(), strict=True):
            group.progress.load([(seq, Progress(*values)) for seq, values in said])
    if header.get("has_unique"):
        state.unique.load([(bytes.fromhex(name), *times) for name, *times in reader.json()])
    if header.get("has_limits") and state.limits is not None:
        state.knows_tenants = True
        for group in state.groups.values():
            state.knows_tenants &= _load_limits(reader, group)


def _group_header(group: Group) -> dict[str, Any]:
    return {
        "number": group.number,
        "name": group.name,
        "fed_upto": group.fed_upto,
        "totals": {kind.name: group.totals[kind] for kind in EventType if group.totals[kind]},
    }


def _dump_group(writer: "Frozen", group: Group) -> None:
    waiting = group.waiting
    keyed: list[list[int]] = [[] for _ in waiting.lanes]
    for seq, priority in sorted(waiting.keyed_fresh()):
        keyed[priority].append(seq)
    for priority, (lane, seqs) in enumerate(zip(waiting.lanes, keyed, strict=True)):
        if waiting.fair is None:
            writer.blob(lane.fresh.dump(without=seqs))
        else:
            pack, count = waiting.fair.freeze_fresh(priority, set(seqs))
            writer.later(pack, size=16 * count)
    writer.later(waiting.delays.freeze(), size=17 * len(waiting.delays))
    deliveries = sorted(group.deliveries.items())
    writer.blob(b"".join([_packed_delivery(seq, delivery) for seq, delivery in deliveries]))
    writer.json([[one.reason, None if one.key is None else one.key.hex()] for _, one in deliveries])
    writer.numbers(group.dead)
    held: dict[Lease, list[int]] = {lease: [] for lease in group.leases.values()}
    for lease, seqs in held.items():
        seqs += [seq for seq in lease.seqs if group.leases.get(seq) is lease]
    writer.json(sorted([seqs, *_lease_values(lease)] for lease, seqs in held.items()))


def _load_group(reader: "_Reader", group: Group) -> Delays:
    """Fill a group. Return its delays, for `Group.restore`."""
    for lane in group.waiting.lanes:
        lane.fresh.load(reader.blob())
    delayed = reader.blob()
    packed, texts = reader.blob(), reader.json()
    for (seq, *values), (reason, key) in zip(_DELIVERY.iter_unpack(packed), texts, strict=True):
        group.deliveries[seq] = _delivery(values, reason, key)
    group.dead = {seq: group.deliveries[seq] for seq in reader.numbers()}
    for seqs, *values in reader.json():
        fields = dict(zip(_LEASE_FIELDS, values, strict=True))
        lease = Lease(**fields, ends_mono_ns=0, seqs=seqs)
        group.leases.update(dict.fromkeys(seqs, lease))
    return Delays.load(delayed, group.deliveries)


def _expiries(group: Group) -> Iterable[int]:
    """Return the seq and the expiry time of each message with a key and a time to live."""
    found = [(seq, one.expires_at_ns) for seq, one in group.deliveries.items() if one.expires_at_ns]
    return chain.from_iterable(sorted(found))


def _load_expiries(reader: "_Reader", group: Group) -> None:
    numbers = reader.numbers()
    for seq, expires_at_ns in zip(numbers[::2], numbers[1::2], strict=True):
        group.deliveries[seq].expires_at_ns = expires_at_ns


def _dump_dependencies(writer: "Frozen", group: Group) -> None:
    """Write which messages come after which. Only group `main` has such messages."""
    dependencies = group.dependencies
    gone = {kind: runs for kind, runs in sorted(group.gone.runs.items()) if runs.first is not None}
    writer.json([kind.name for kind in gone])
    for runs in gone.values():
        writer.blob(runs.dump())
    # Without those that wait no more: they are removed from the lists when the earlier one ends.
    pairs = [
        (earlier, seq)
        for earlier, later in sorted(dependencies.dependents.items())
        for seq in sorted(later)
        if seq in dependencies.waits
    ]
    writer.numbers(chain.from_iterable(pairs))
    writer.numbers(sorted(dependencies.dead & {earlier for earlier, _ in pairs}))
    waits = sorted(dependencies.waits.items())
    writer.json(
        {
            "waits": [
                [
                    seq,
                    wait.missing,
                    wait.dead,
                    wait.is_lost,
                    wait.runs_anyway,
                    wait.published_ns,
                    None if wait.failure is None else [_text_of(wait.failure.of), wait.failure.how],
                    *([] if wait.gate is None else [_text_of(wait.gate), wait.is_abandoned]),
                ]
                for seq, wait in waits
            ],
            "elsewhere": {
                one.hex(): left
                for one, seqs in dependencies.elsewhere.items()
                if (left := sorted(seq for seq in seqs if seq in dependencies.waits))
            },
            "dead_elsewhere": sorted(
                [one.hex(), seq]
                for one, seq in dependencies.dead_elsewhere
                if seq in dependencies.waits
            ),
        }
    )


def _load_dependencies(reader: "_Reader", group: Group) -> None:
    dependencies = group.dependencies
    for name in reader.json():
        runs = group.gone.runs[EventType[name]] = Runs()
        runs.load(reader.blob())
    pairs = reader.numbers()
    for earlier, seq in zip(pairs[::2], pairs[1::2], strict=True):
        dependencies.dependents.setdefault(earlier, []).append(seq)
    dependencies.dead.update(reader.numbers())
    others = reader.json()
    for seq, missing, dead, is_lost, runs_anyway, published_ns, failure, *gate in others["waits"]:
        wait = dependencies.waits[seq] = Wait(published_ns, runs_anyway=runs_anyway)
        wait.missing, wait.dead, wait.is_lost = missing, dead, is_lost
        if failure is not None:
            of, how = failure
            wait.failure = Failure(_earlier_of(of), how)
        if gate:
            wait.gate, wait.is_abandoned = _earlier_of(gate[0]), gate[1]
    for one, seqs in others["elsewhere"].items():
        dependencies.elsewhere[bytes.fromhex(one)] = seqs
    dependencies.dead_elsewhere.update(
        (bytes.fromhex(one), seq) for one, seq in others["dead_elsewhere"]
    )
    dependencies.touched.update(dependencies.waits)  # whether something is to decide is seen soon


def _dump_limits(writer: "Frozen", group: Group) -> None:
    """Write what limits count, and which message has which tenant. The leases are written
    already."""
    gate, fair = group.gate, group.fair
    assert gate is not None
    writer.json([gate.due_ns, None if fair is None else fair.dump()])
    if fair is None:
        writer.blob(b"")
    else:
        writer.later(fair.freeze_column(), size=fair.column_bytes)


def _load_limits(reader: "_Reader", group: Group) -> bool:
    """Return whether the tenants of the group's messages are known."""
    due_ns, shares = reader.json()
    column = reader.blob()
    if group.gate is not None:
        group.gate.due_ns = due_ns
    if shares is None or group.fair is None:
        return False
    group.fair.load(shares, column)
    return True


def _text_of(earlier: int | bytes) -> int | str:
    return earlier if isinstance(earlier, int) else earlier.hex()


def _earlier_of(text: int | str) -> int | bytes:
    return text if isinstance(text, int) else bytes.fromhex(text)


def _packed_delivery(seq: int, delivery: Delivery) -> bytes:
    # Ready or scheduled depends on the time alone, so it is stored as scheduled.
    state = State.SCHEDULED if delivery.state is State.READY else delivery.state
    return _DELIVERY.pack(seq, state, *_delivery_values(delivery))


def _delivery(numbers: list[int], reason: str, key: str | None) -> Delivery:
    delivery = Delivery(State(numbers[0]), 0, 0, None if key is None else bytes.fromhex(key))
    for name, value in zip(_DELIVERY_FIELDS, numbers[1:], strict=True):
        setattr(delivery, name, value)
    delivery.timed_out, delivery.reason = bool(delivery.timed_out), reason
    return delivery


class Frozen:
    """The parts of a snapshot: bytes, and functions that make bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes | Callable[[], bytes]] = []
        self.size = 0  # approximately

    def blob(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def later(self, make: Callable[[], bytes], *, size: int) -> None:
        """Add a part that `done` makes."""
        self._parts.append(make)
        self.size += size

    def json(self, value: object) -> None:
        self.blob(json.dumps(value, separators=(",", ":"), sort_keys=True).encode())

    def numbers(self, values: Iterable[int]) -> None:
        self.blob(array("Q", values).tobytes())

    def done(self) -> bytes:
        """Return all parts, each with its length."""
        found: list[bytes] = []
        for part in self._parts:
            data = part if isinstance(part, bytes) else part()
            found += (_LENGTH.pack(len(data)), data)
        return b"".join(found)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def blob(self) -> bytes:
        (length,) = _LENGTH.unpack_from(self._data, self._at)
        start = self._at + _LENGTH.size
        if start + length > len(self._data):
            raise BadEntry(self._at, "the snapshot is cut off")
        self._at = start + length
        return bytes(self._data[start : self._at])

    def json(self) -> Any:
        return json.loads(self.blob())

    def numbers(self) -> "array[int]":
        numbers = array("Q")
        numbers.frombytes(self.blob())
        return numbers


class SnapshotSaver:
    """Save snapshots, one at a time, and never an older one after a newer.

    Writing a state with a million delayed messages takes as long as delivering thousands. A large
    snapshot is therefore saved in a thread, while the queue goes on.
    """

    def __init__(self, save: Callable[[int, bytes], None], name: str) -> None:
        self.write = save
        self._name = name
        self._turn = Lock()
        self._saved_event = 0
        self._handed: SimpleQueue[tuple[int, Frozen, Callable[[], None]] | None] = SimpleQueue()
        self._thread: BackgroundThread | None = None
        self._saving = False

    @property
    def is_busy(self) -> bool:
        """Return whether the thread saves a snapshot, or is about to."""
        return self._saving or not self._handed.empty()

    def save(self, event_seq: int, frozen: Frozen) -> None:
        """Save a snapshot now."""
        with self._turn:
            if event_seq >= self._saved_event:
                self.write(event_seq, frozen.done())
                self._saved_event = event_seq

    def save_in_thread(self, event_seq: int, frozen: Frozen, on_saved: Callable[[], None]) -> None:
        """Save a snapshot in a thread. Not for several callers at once, nor while it `is_busy`."""
        if self._thread is None:
            self._thread = BackgroundThread(self._run)
        self._thread.start()
        self._handed.put((event_seq, frozen, on_saved))

    def end(self) -> None:
        """Finish the snapshot that was handed over, and end the thread."""
        if self._thread is not None:
            self._handed.put(None)
            self._thread.join()
            self._thread, self._handed = None, SimpleQueue()

    def _run(self) -> None:
        while True:
            handed = self._handed.get()
            if handed is None:
                return
            self._save_handed(*handed)
            del handed  # it may be large, and the next one may not come soon

    def _save_handed(self, event_seq: int, frozen: Frozen, on_saved: Callable[[], None]) -> None:
        self._saving = True
        try:
            self.save(event_seq, frozen)
            on_saved()
        except LedgerError as error:  # the disk is full, say: the next one is another chance
            logger.warning("no snapshot of %s was saved: %s", self._name, error)
        finally:
            self._saving = False
