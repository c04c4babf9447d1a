"""The ledger against a list: any commands in any order, and both say the same."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.codec import Draft
from penstock.errors import EntryGone
from penstock.ledger import Compactor, Cursor, Retention, read_entry, seq_at_time, verify
from penstock.ledger.compaction import remove_before
from penstock.ledger.log import Log
from penstock.ledger.memory_files import MemoryFiles
from penstock.torture.damage_store import Live
from tests.harness.ledger_oracle import draft_of
from tests.ledger.store import EVENT, MODES, Store, full_draft, seqs

sizes = st.sampled_from([0, 1, 10, 100, 300, 900, 2500])


@dataclass
class Reference:
    """A log as a list: what was written, and what may be gone."""

    written: list[tuple[Draft, int]] = field(default_factory=list)  # and the time, at seq - 1
    dead: set[int] = field(default_factory=set)

    @property
    def next_seq(self) -> int:
        return len(self.written) + 1

    def seqs_from(self, seq: int) -> list[int]:
        """The seqs that must be there, from one on."""
        return [each for each in range(max(seq, 1), self.next_seq) if each not in self.dead]


class LedgerAndList(RuleBasedStateMachine):
    """Every rule does the same to both."""

    def __init__(self) -> None:
        super().__init__()
        self.references = {"messages": Reference(), "events": Reference()}
        self.snapshots: dict[int, bytes] = {}
        self.number = 0

    @initialize(mode=st.sampled_from(sorted(MODES)))
    def open(self, mode: str) -> None:
        small = replace(MODES[mode], segment_bytes=1500, first_step_bytes=256)
        files = MemoryFiles(mapped_room_bytes=1 << 17)
        self.store = Store(Path("/queue"), small, files=files)
        self.store.open()
        self.cursor = Cursor(self.store.messages, 1)

    def log(self, name: str) -> Log:
        return self.store.messages if name == "messages" else self.store.events

    def draft(self, size: int, *, rich: bool, type_: int = 1) -> Draft:
        self.number += 1
        payload = b"%d" % self.number + b"." * size
        draft = full_draft(payload) if rich else Draft(payload)
        return draft._replace(type=type_)

    def wrote(self, name: str, first_seq: int, drafts: list[Draft]) -> None:
        self.store.ledger.commit()
        reference, log = self.references[name], self.log(name)
        assert first_seq == reference.next_seq
        reference.written += [(draft, log.last_timestamp_ns) for draft in drafts]
        assert log.next_seq == reference.next_seq

    # -- writing -----------------------------------------------------------------------------------

    @rule(size=sizes)
    def append(self, size: int) -> None:
        draft = self.draft(size, rich=False)
        self.wrote("messages", self.store.messages.append(draft.payload), [draft])

    @rule(size=sizes)
    def append_draft(self, size: int) -> None:
        draft = self.draft(size, rich=True)
        self.wrote("messages", self.store.messages.append_draft(draft), [draft])

    @rule(sizes=st.lists(sizes, min_size=1, max_size=8), rich=st.booleans())
    def append_batch(self, sizes: list[int], *, rich: bool) -> None:
        drafts = [self.draft(size, rich=rich) for size in sizes]
        self.wrote("messages", self.store.messages.append_batch(drafts), drafts)

    @rule(count=st.integers(1, 4))
    def note(self, count: int) -> None:
        drafts = [self.draft(5, rich=False, type_=EVENT) for _ in range(count)]
        self.wrote("events", self.store.events.append_batch(drafts), drafts)

    @rule(seconds=st.sampled_from([0.001, 1, 3600]))
    def time_passes(self, seconds: float) -> None:
        self.store.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-3600, -1, 86400]))
    def clock_is_set(self, seconds: float) -> None:
        self.store.clock.jump(seconds)

    @rule()
    def sync(self) -> None:
        self.store.ledger.sync()

    @rule()
    def rest(self) -> None:
        self.store.ledger.rest()

    # -- opening again -----------------------------------------------------------------------------

    def opened_again(self) -> None:
        self.cursor = Cursor(self.store.messages, self.cursor.next_seq)
        for name, reference in self.references.items():
            assert self.log(name).next_seq == reference.next_seq

    @rule(mode=st.none() | st.sampled_from(sorted(MODES)))
    def reopen(self, mode: str | None) -> None:
        small = self.store.settings
        if mode is not None:
            small = replace(MODES[mode], segment_bytes=1500, first_step_bytes=256)
        self.store.reopen(small)
        self.opened_again()

    @rule()
    def die(self) -> None:
        self.store.reopen_after_death()
        self.opened_again()

    # -- reading -----------------------------------------------------------------------------------

    @rule(count=st.integers(1, 50))
    def read_on(self, count: int) -> None:
        reference = self.references["messages"]
        first = self.cursor.next_seq
        entries = self.cursor.read(count)
        found = [entry.seq for entry in entries]
        assert found == sorted(set(found))
        for entry in entries:
            draft, timestamp_ns = reference.written[entry.seq - 1]
            assert (draft_of(entry), entry.timestamp_ns) == (draft, timestamp_ns)
        passed = [seq for seq in reference.seqs_from(first) if seq < self.cursor.next_seq]
        assert set(passed) <= set(found)
        if not entries:
            assert reference.seqs_from(self.cursor.next_seq) == []

    @rule(data=st.data())
    def read_one(self, data: st.DataObject) -> None:
        reference = self.references["messages"]
        seq = data.draw(st.integers(0, reference.next_seq))
        try:
            entry = read_entry(self.store.messages, seq)
        except EntryGone:
            assert not 0 < seq < reference.next_seq or seq in reference.dead
        else:
            assert (draft_of(entry), entry.timestamp_ns) == reference.written[seq - 1]

    @rule(data=st.data())
    def seek_time(self, data: st.DataObject) -> None:
        reference = self.references["messages"]
        times = [timestamp_ns for _, timestamp_ns in reference.written]
        time = data.draw(st.sampled_from([0, *times])) + data.draw(st.sampled_from([-1, 0, 1]))
        wanted = reference.seqs_from(bisect_left(times, time) + 1)
        at = seq_at_time(self.store.messages, max(time, 0))
        found = (seq for seq in seqs(self.store.messages, at) if seq not in reference.dead)
        assert next(found, None) == next(iter(wanted), None)

    # -- removing ----------------------------------------------------------------------------------

    @precondition(lambda self: self.references["messages"].written)
    @rule(seed=st.integers(0, 1 << 32), below=st.sampled_from([0, 0.5, 1]), age=st.booleans())
    def compact(self, seed: int, below: float, *, age: bool) -> None:
        reference, random = self.references["messages"], Random(seed)
        share = random.random()
        kept = frozenset(seq for seq in reference.seqs_from(1) if random.random() < share)
        reference.dead |= set(range(1, reference.next_seq)) - kept
        retention = Retention(rewrite_below=below, max_age_s=1000 if age else None)
        store = self.store
        Compactor(store.ledger, store.messages, Live(kept), retention, store.clock).run()

    @rule(part=st.floats(0, 1))
    def remove_events(self, part: float) -> None:
        """What the newest snapshot includes is not needed."""
        snapshot = self.store.ledger.load_snapshot()
        upto = round(part * snapshot.event_seq) if snapshot else 0
        self.references["events"].dead |= set(range(1, upto))
        remove_before(self.store.ledger, self.store.events, upto)

    # -- snapshots ---------------------------------------------------------------------------------

    @rule(size=sizes)
    def save_snapshot(self, size: int) -> None:
        seq = self.references["events"].next_seq - 1
        self.snapshots[seq] = b"%d" % size + b"." * size
        self.store.ledger.save_snapshot(seq, self.snapshots[seq])

    @rule()
    def load_snapshot(self) -> None:
        snapshot = self.store.ledger.load_snapshot()
        newest = max(self.snapshots, default=None)
        assert (snapshot.event_seq if snapshot else None) == newest
        if snapshot is not None:
            assert snapshot.blob == self.snapshots[snapshot.event_seq]

    # -- always ------------------------------------------------------------------------------------

    @invariant()
    def no_damage(self) -> None:
        if hasattr(self, "store"):
            assert self.store.damage == []

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for name, reference in self.references.items():
            assert set(reference.seqs_from(1)) <= set(seqs(self.log(name)))
        assert verify("/queue", files=self.store.files, settings=self.store.settings).is_sound
        self.store.close()


TestLedgerAndList = LedgerAndList.TestCase
TestLedgerAndList.settings = settings(stateful_step_count=60)
