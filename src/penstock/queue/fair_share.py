"""Ready messages by tenant: whose turn it is, and which tenants have to wait for a limit.

Priority comes first, as in any queue. Within a priority the tenants take turns: next is the tenant
that was served least recently. So a tenant with a million messages has one turn in a round, and one
that asks for less than its share is next at once, however many others have a backlog.

A message counts as if it had been ready for `HEAD_START_NS` already: a tenant that was last served
before that, or never, is behind those that have waited longer. So many new tenants with a message
each delay the others for that time, and no longer. Within a tenant the order is as ever: due time,
then seq. Messages without tenant are one tenant of their own.

Without `fair` the tenants take no turns: next is the oldest message whose tenant is within its
limits.

Whose turn it is follows from the messages and the events of the log alone. Which messages were
known when an event was applied does not matter, so recovery gives the same order. A lease costs
O(log tenants). Pure: no file, no clock, no lock.
"""

from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush, merge
from itertools import chain, islice
from typing import Any

from penstock.codec.layout import DEFAULT_PRIORITY, MAX_PRIORITY
from penstock.queue.limits import Gate, Limits
from penstock.queue.runs import as_runs
from penstock.queue.schedule import Timetable
from penstock.queue.tenants import Seqs, TenantColumn, packed, unpacked
from penstock.queue.turns import HEAD_START_NS, Entry, Tenant, TimeOf, Turn, rotated

NO_TENANT = b""
_SPARE_TENANTS = 10_000  # without messages, that are remembered
_SPARE_ENTRIES = 1024


class FairShare:
    """The tenants of a group, and their ready messages."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rotates = limits.fair
        self._column = TenantColumn()
        self._none = Tenant(0, NO_TENANT, Gate(limits.tenant))
        self._tenants: dict[int, Tenant] = {0: self._none}
        self._numbers: dict[bytes, int] = {NO_TENANT: 0}
        self._free: list[int] = []  # numbers of forgotten tenants
        self._sweep_at = _SPARE_TENANTS
        self._heaps: list[list[Entry]] = [[] for _ in range(MAX_PRIORITY + 1)]
        self._unplaced: dict[Turn, None] = {}  # to be put into the heaps
        self._delayed: list[tuple[int, int, Tenant]] = []  # heap: when the rate lets them go
        self._served_no = 0
        self._latest_ns = 0  # of all deliveries

    # -- tenants of messages -----------------------------------------------------------------------

    def join(self, seq: int, name: bytes | None) -> None:
        """Note the tenant of a message that is fed. Its seq is above all others."""
        if name:
            tenant = self._tenant(name)
            self._column.add(seq, tenant.number)
            tenant.count += 1

    def leave(self, seq: int) -> None:
        """Forget a message that is settled."""
        number = self._column.pop(seq)
        if number:
            self._tenants[number].count -= 1

    def tenant_of(self, seq: int) -> Tenant:
        return self._tenants[self._column.get(seq)]

    def _tenant(self, name: bytes) -> Tenant:
        number = self._numbers.get(name)
        if number is not None:
            return self._tenants[number]
        if len(self._tenants) >= self._sweep_at:
            self._sweep()
        number = self._free.pop() if self._free else len(self._tenants)
        self._numbers[name] = number
        tenant = self._tenants[number] = Tenant(number, name, Gate(self._limits.tenant))
        return tenant

    def _sweep(self) -> None:
        """Forget tenants without messages that were not served lately, and whose rate has
        recovered: nothing is lost with them."""
        lately_ns = self._latest_ns - HEAD_START_NS if self._rotates else self._latest_ns
        for number, one in list(self._tenants.items()):
            if (
                number
                and not one.count
                and one.gate.due_ns <= self._latest_ns
                and all(turn.served_ns <= lately_ns for turn in one.turns.values())
            ):
                del self._tenants[number], self._numbers[one.name]
                self._free.append(number)
        self._sweep_at = 2 * len(self._tenants) + _SPARE_TENANTS

    def clear(self, kept: Iterable[int]) -> None:
        """Forget all messages but some, which are not ready. Tenants keep their rates."""
        column, self._column = self._column, TenantColumn()
        for tenant in self._tenants.values():
            tenant.count = tenant.gate.in_flight = 0
            for turn in tenant.turns.values():
                turn.fresh, turn.due, turn.entry = Seqs(), Timetable(), None
        self._unplaced.clear()
        for seq in sorted(kept):
            number = column.get(seq)
            if number:
                self._column.add(seq, number)
                self._tenants[number].count += 1

    # -- ready messages ----------------------------------------------------------------------------

    def add(self, priority: int, seq: int) -> None:
        """Add a ready message that was never delayed."""
        turn = self._turn(seq, priority)
        first = turn.fresh.first
        turn.fresh.add(seq)
        if first is None or seq < first:
            self._changed(turn)

    def add_run(self, first: int, end: int) -> None:
        """Add messages [first, end) of the default priority, without tenant, above all others."""
        turn = self._turn_of(self._none, DEFAULT_PRIORITY)
        was_empty = turn.fresh.first is None
        turn.fresh.extend(range(first, end))
        if was_empty:
            self._changed(turn)

    def add_due(self, priority: int, due_ns: int, seq: int) -> None:
        """Add a message that is ready since a time."""
        turn = self._turn(seq, priority)
        turn.due.add(due_ns, seq)
        self._changed(turn)

    def discard(self, priority: int, seq: int) -> bool:
        """Remove a ready message that was never delayed. Return False if it is not here."""
        turn = self.tenant_of(seq).turns.get(priority)
        if turn is None or not turn.fresh.discard(seq):
            return False
        self._changed(turn)
        return True

    def remove_due(self, priority: int, due_ns: int, seq: int) -> bool:
        """Remove a message that is ready since a time. Return False if it is not here."""
        turn = self.tenant_of(seq).turns.get(priority)
        if turn is None or not turn.due.remove(due_ns, seq):
            return False
        self._changed(turn)
        return True

    def priority_of(self, seq: int) -> int | None:
        """Return the priority of a ready message that was never delayed; None if it is not here."""
        for priority, turn in self.tenant_of(seq).turns.items():
            if seq in turn.fresh:
                return priority
        return None

    def pop_below(self, target: int) -> tuple[list[int], list[int]]:
        """Remove ready messages below a seq. Return those that were never delayed, and others."""
        fresh: list[int] = []
        due: list[int] = []
        for turn in self._turns():
            fresh += turn.fresh.pop_below(target)
            due += turn.due.pop_below(target)
            self._changed(turn)
        return fresh, due

    def _turn(self, seq: int, priority: int) -> Turn:
        return self._turn_of(self._tenants[self._column.get(seq)], priority)

    def _turn_of(self, tenant: Tenant, priority: int) -> Turn:
        turn = tenant.turns.get(priority)
        if turn is None:
            turn = tenant.turns[priority] = Turn(tenant, priority)
        return turn

    def _turns(self) -> Iterator[Turn]:
        return chain.from_iterable(one.turns.values() for one in self._tenants.values())

    def _changed(self, turn: Turn) -> None:
        """Note that the next message of a turn may be another."""
        turn.entry, turn.is_covered = None, False
        self._unplaced[turn] = None

    # -- leases ------------------------------------------------------------------------------------

    def delivered(self, seq: int, priority: int, at_ns: int, *, is_leased: bool) -> None:
        """Note that a message, taken from its turn already, was delivered."""
        tenant = self.tenant_of(seq)
        tenant.gate.delivered(at_ns)
        if is_leased:
            tenant.gate.in_flight += 1
        self._served_no += 1
        self._latest_ns = max(self._latest_ns, at_ns)
        turn = self._turn_of(tenant, priority)
        turn.served_ns, turn.served_no = at_ns, self._served_no
        turn.is_covered = self._rotates and len(turn) > 0

    def ended(self, seq: int) -> None:
        """Note the end of the lease of a message that is not dead."""
        tenant = self.tenant_of(seq)
        if tenant.gate.is_full:
            self._unplaced.update(dict.fromkeys(tenant.turns.values()))
        tenant.gate.in_flight -= 1

    def rebase(self, now_ns: int, leased: Iterable[int]) -> None:
        """After a fold: count these leases, and find all turns again."""
        for tenant in self._tenants.values():
            tenant.gate.rebase(now_ns)
            tenant.gate.in_flight = 0
        for seq in leased:
            self.tenant_of(seq).gate.in_flight += 1
        for turn in self._turns():
            self._changed(turn)

    # -- whose turn it is --------------------------------------------------------------------------

    def next(self, published_ns: TimeOf, *, now_ns: int, level_ns: int) -> int | None:
        """Return the next message that may be delivered now.

        A tenant that waited `level_ns` for its turn is served one priority higher (0: strict
        priorities).
        """
        self._place(published_ns, now_ns)
        best: Entry | None = None
        best_key: tuple[int, int, int] = (0, 0, 0)
        for priority in range(MAX_PRIORITY, -1, -1):
            entry = self._top(self._heaps[priority], now_ns) if self._heaps[priority] else None
            if entry is None:
                continue
            key = _key(priority, entry[4], now_ns, level_ns)
            if best is None or key < best_key:
                best, best_key = entry, key
            if not level_ns:
                break
        if best is None:
            return None
        turn = best[3]
        if not turn.due:
            return turn.fresh.first
        return next(turn.ahead(published_ns, is_timed=False))[1]

    def in_order(
        self,
        published_ns: TimeOf,
        *,
        now_ns: int,
        level_ns: int,
        skipped: Container[int] = frozenset(),
    ) -> Iterator[int]:
        """Yield the messages that may be delivered now, in their order, as if each were leased
        before the next is found. Do not change anything meanwhile.

        A message that the caller adds to `skipped` is as if it had been removed instead.
        """
        self._place(published_ns, now_ns)
        # `_top` removes what is not valid from the heaps, so that it is not copied each time.
        heaps = [(n, heap[:]) for n, heap in enumerate(self._heaps) if self._top(heap, now_ns)]
        entries: dict[Turn, Entry | None] = {}  # of turns that were served
        gates: dict[Tenant, Gate] = {}
        ahead: dict[Turn, Iterator[tuple[int, int]]] = {}
        coming: dict[Turn, int] = {}
        served_no = self._served_no
        while True:
            best: tuple[tuple[int, int, int], list[Entry]] | None = None
            for priority, heap in reversed(heaps):
                while heap:
                    turn = heap[0][3]
                    is_valid = entries.get(turn, turn.entry) is heap[0]
                    if is_valid and gates.get(turn.tenant, turn.tenant.gate).is_open(now_ns):
                        key = _key(priority, heap[0][4], now_ns, level_ns)
                        if best is None or key < best[0]:
                            best = key, heap
                        break
                    heappop(heap)
            if best is None:
                return
            heap = best[1]
            _, last_no, _, turn, _ = heappop(heap)
            if turn not in ahead:
                ahead[turn] = turn.ahead(published_ns, is_timed=not self._rotates)
                coming[turn] = next(ahead[turn])[1]
            yield coming[turn]
            if coming[turn] in skipped:
                entries[turn] = None
                following = next(ahead[turn], None)
                if following is not None:
                    since_ns, coming[turn] = following
                    entry = (since_ns, 0, coming[turn], turn, since_ns)
                    if self._rotates:
                        served_ns = now_ns if last_no > self._served_no else turn.served_ns
                        since_ns = since_ns or published_ns(coming[turn])
                        entry = rotated(since_ns, served_ns, last_no, coming[turn], turn)
                    entries[turn] = entry
                    heappush(heap, entry)
                continue
            gate = gates.get(turn.tenant)
            if gate is None:
                gate = gates[turn.tenant] = turn.tenant.gate.copy()
            gate.in_flight += 1
            gate.delivered(now_ns)
            served_no += 1
            entries[turn] = None
            following = next(ahead[turn], None)
            if following is not None:
                since_ns, coming[turn] = following
                if self._rotates:
                    entry = (now_ns, served_no, 0, turn, now_ns)
                else:
                    entry = (since_ns, 0, coming[turn], turn, since_ns)
                entries[turn] = entry
                heappush(heap, entry)

    def next_free_ns(self, now_ns: int) -> int | None:
        """Return when the rate of a tenant lets a message go that waits for that; None: never."""
        delayed = self._delayed
        return delayed[0][0] if delayed and delayed[0][0] > now_ns else None

    def wake(self, now_ns: int) -> None:
        """Let tenants take turns again that waited for their rate."""
        delayed = self._delayed
        while delayed and delayed[0][0] <= now_ns:
            tenant = heappop(delayed)[2]
            tenant.is_delayed = False
            self._unplaced.update(dict.fromkeys(tenant.turns.values()))

    def _place(self, published_ns: TimeOf, now_ns: int) -> None:
        """Put turns into the heaps that may have changed."""
        self.wake(now_ns)
        if not self._unplaced:
            return
        for turn in self._unplaced:
            if turn.entry is not None or not len(turn):
                continue
            if turn.is_covered:
                entry = (turn.served_ns, turn.served_no, 0, turn, turn.served_ns)
            else:
                since_ns, seq = next(turn.ahead(published_ns, is_timed=True))
                if self._rotates:
                    entry = rotated(since_ns, turn.served_ns, turn.served_no, seq, turn)
                else:
                    entry = (since_ns, 0, seq, turn, since_ns)
            turn.entry = entry
            heap = self._heaps[turn.priority]
            if len(heap) > 2 * len(self._tenants) + _SPARE_ENTRIES:
                heap[:] = [one for one in heap if one[3].entry is one]
                heapify(heap)
            heappush(heap, entry)
        self._unplaced.clear()

    def _top(self, heap: list[Entry], now_ns: int) -> Entry | None:
        """Return the first entry whose tenant may be served."""
        while heap:
            entry = heap[0]
            turn = entry[3]
            if turn.entry is entry:
                if turn.tenant.gate.is_open(now_ns):
                    return entry
                turn.entry = None
                self._hold(turn.tenant, now_ns)
            heappop(heap)
        return None

    def _hold(self, tenant: Tenant, now_ns: int) -> None:
        """Let a tenant wait: for the end of a lease, or for its rate."""
        if not tenant.gate.is_full and not tenant.is_delayed:
            tenant.is_delayed = True
            heappush(self._delayed, (tenant.gate.free_ns(now_ns), tenant.number, tenant))

    # -- looking -----------------------------------------------------------------------------------

    def fresh_pairs(self) -> list[tuple[int, int]]:
        """Return the messages that were never delayed as rising runs [first, end)."""
        seqs = chain.from_iterable(turn.fresh for turn in self._turns())
        return [(first, first + count) for first, count in as_runs(seqs)]

    def due_pairs(self) -> list[tuple[int, int]]:
        """Return (since when it is ready, seq) of messages that were delayed or retried."""
        return [pair for turn in self._turns() for pair in turn.due]

    def lowest(self, count: int) -> list[int]:
        """Return the lowest seqs that were never delayed, rising."""
        return list(islice(merge(*(turn.fresh for turn in self._turns())), count))

    def oldest(self, published_ns: TimeOf) -> tuple[int | None, int | None]:
        """Return the lowest seq that was never delayed, and since when a message has been ready."""
        firsts = [turn.fresh.first for turn in self._turns()]
        first = min((seq for seq in firsts if seq is not None), default=None)
        times = [one[0] for turn in self._turns() if (one := turn.due.first) is not None]
        if first is not None:
            times.append(published_ns(first))
        return first, min(times, default=None)

    def closest(self, now_ns: int) -> tuple[Tenant, Tenant]:
        """Return the tenants that are closest to their limits: of leases, and of the rate."""
        tenants = self._tenants.values()
        return (
            max(tenants, key=lambda one: one.gate.in_flight),
            max(tenants, key=lambda one: one.gate.burst_used(now_ns)),
        )

    def place_of(self, seq: int, priority: int, published_ns: TimeOf, most: int) -> tuple[int, int]:
        """Return how many of its tenant are before a ready message, counted up to `most`, and how
        many tenants have ready messages of its priority."""
        turn = self._turn(seq, priority)
        ahead = islice(turn.ahead(published_ns, is_timed=False), most)
        before = next((n for n, one in enumerate(ahead) if one[1] == seq), most)
        return before, sum(one.priority == priority and len(one) > 0 for one in self._turns())

    # -- snapshots ---------------------------------------------------------------------------------

    def freeze_fresh(self, priority: int, without: set[int]) -> tuple[Callable[[], bytes], int]:
        """Copy the messages of a priority that were never delayed. Return a function that packs
        them as `Runs.dump` does, without some of them, and their number."""
        parts = [turn.fresh.copy() for turn in self._turns() if turn.priority == priority]
        return partial(_pack_runs, parts, without), sum(map(len, parts))

    def dump(self) -> dict[str, Any]:
        """Return the tenants, by name, and how they were served."""
        return {
            "served_no": self._served_no,
            "latest_ns": self._latest_ns,
            "tenants": [
                [
                    one.name.hex(),
                    one.gate.due_ns,
                    [[t.priority, t.served_ns, t.served_no] for t in _by_priority(one.turns)],
                ]
                for one in self._by_name()
            ],
        }

    def freeze_column(self) -> Callable[[], bytes]:
        """Copy which message has which tenant. Return a function that packs it."""
        numbers = {one.number: at for at, one in enumerate(self._by_name())}
        return partial(packed, self._column.freeze(), numbers)

    @property
    def column_bytes(self) -> int:
        return 12 * len(self._column)

    def _by_name(self) -> list[Tenant]:
        return sorted(self._tenants.values(), key=lambda one: one.name)

    def load(self, dumped: Mapping[str, Any], column: bytes) -> None:
        """Fill a new one from `dump` and `freeze_column`. Raise ValueError if they are invalid."""
        self._served_no, self._latest_ns = dumped["served_no"], dumped["latest_ns"]
        tenants = []
        for name, due_ns, turns in dumped["tenants"]:
            tenant = self._tenant(bytes.fromhex(name))
            tenants.append(tenant)
            tenant.gate.due_ns = due_ns
            for priority, served_ns, served_no in turns:
                if not 0 <= priority <= MAX_PRIORITY:
                    raise ValueError(f"a tenant has the priority {priority}")
                turn = self._turn_of(tenant, priority)
                turn.served_ns, turn.served_no = served_ns, served_no
        last = 0
        for seq, number in unpacked(column):
            if seq <= last:
                raise ValueError("the tenants are not rising")
            last = seq
            self.join(seq, tenants[number].name)


def _key(priority: int, since_ns: int, now_ns: int, level_ns: int) -> tuple[int, int, int]:
    """Return what orders the first turns of priorities: the least is next."""
    levels = max(now_ns - since_ns, 0) // level_ns if level_ns else 0
    return -min(priority + levels, MAX_PRIORITY), since_ns, -priority


def _by_priority(turns: Mapping[int, Turn]) -> list[Turn]:
    return [turns[priority] for priority in sorted(turns) if turns[priority].served_no]


def _pack_runs(parts: "list[array[int]]", without: set[int]) -> bytes:
    pairs = array("Q")
    seqs = chain.from_iterable(parts)
    for first, count in as_runs(seq for seq in seqs if seq not in without):
        pairs.extend((first, first + count))
    return pairs.tobytes()
