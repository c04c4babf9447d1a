"""Segments that others wrote come in whole or not at all, and each transaction once."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Condition
from weakref import ref

import pytest

from penstock import codec
from penstock.clock import ManualClock
from penstock.codec import Draft, Packer
from penstock.codec.layout import INDEX_POINT_BYTES
from penstock.errors import BadEntry, InvalidInput, LedgerError, PenstockError
from penstock.ledger import Cursor, Ledger
from penstock.ledger.adoption import (
    Adopted,
    adopt,
    adopted_before,
    append_once,
    sweep_staging,
)
from penstock.ledger.files import Files, Mapping
from penstock.ledger.folder import Folder, write_fully
from penstock.ledger.json_files import TRANSACTIONS_NAME, Transaction
from penstock.ledger.memory_files import MemoryFiles
from penstock.ledger.segment_header import HEADER_BYTES
from penstock.ledger.staging import MAX_MAPPED, STAGING, Staged, staged_header, verify_staged
from tests.harness.crash_states import CrashState, crash_states
from tests.harness.faults import Fault, FaultyFiles
from tests.harness.journal import RecordedFiles
from tests.harness.ledger_life import PATH, open_ledger

NOW_NS = 1_700_000_000_000_000_000  # of the clock that stands still
NIGHTLY = Transaction("nightly", 7)


def stage(
    files: Files,
    ledger: Ledger,
    folder: str,
    parts: Sequence[Sequence[bytes | Draft]],
    *,
    timestamp_ns: int = NOW_NS,
) -> list[Staged]:
    """What tasks leave behind: a segment each, synced."""
    staging = Folder(files, PATH).child(STAGING)
    staging.make()
    own = staging.child(folder)
    own.make()
    staged = []
    for number, items in enumerate(parts):
        name = f"{number}.log"
        data = staged_header(ledger.identity, timestamp_ns).pack()
        if items:
            buffer = bytearray(64 * 1024)
            packer = Packer(buffer, position=0, limit=len(buffer), next_seq=0)
            packer.append_batch(items, timestamp_ns)
            data += packer.take()
        fd = files.open(own.file(name), "create")
        write_fully(files, fd, data, 0)
        files.fdatasync(fd)
        files.close(fd)
        staged.append(Staged(folder, name, len(items)))
    return staged


def payloads(ledger: Ledger) -> list[bytes]:
    cursor, found = Cursor(ledger.messages, 1), []
    while entries := cursor.read(100):
        found += [entry.payload for entry in entries]
    return found


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def test_staged_segments_follow_the_last_message_in_the_order_given(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        ledger.messages.append(b"before")
        staged = stage(files, ledger, "job", [[b"a", b"b"], [], [Draft(b"c", priority=9)]])
        adopted = adopt(ledger, staged)
        assert (adopted.first_seq, adopted.entries, adopted.repeated) == (2, 3, False)
        assert ledger.messages.append(b"after") == 5
        ledger.commit()
        assert payloads(ledger) == [b"before", b"a", b"b", b"c", b"after"]
    with open_ledger(files) as ledger:
        assert payloads(ledger) == [b"before", b"a", b"b", b"c", b"after"]
        assert Cursor(ledger.messages, 4).read(1)[0].priority == 9


class CountingFiles(MemoryFiles):
    """Counts the mappings that exist at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.most_mapped = 0
        self._views: list[ref[memoryview]] = []

    def map(self, fd: int, size: int, *, writable: bool) -> Mapping:
        mapping = super().map(fd, size, writable=writable)
        self._views = [view for view in self._views if view() is not None]
        self._views.append(ref(mapping.view))
        self.most_mapped = max(self.most_mapped, len(self._views))
        return mapping


def test_a_large_job_is_verified_without_all_of_it_in_memory() -> None:
    """Pages of mapped segments count as memory of the process that adopts them."""
    files = CountingFiles()
    with open_ledger(files) as ledger:
        staged: list[Staged] = []
        for number in range(60):
            at_ns = NOW_NS + number
            staged += stage(files, ledger, f"job {number}", [[b"a", b"b"]], timestamp_ns=at_ns)
        files.most_mapped = 0
        found = verify_staged(
            Folder(files, PATH).child(STAGING),
            staged,
            identity=ledger.identity,
            max_entry_bytes=1000,
        )
    assert [one.first_ns for one in found] == [NOW_NS + number for number in range(60)]
    # A thread that has just ended may hold its mapping for a moment.
    assert MAX_MAPPED <= files.most_mapped < 30


def test_an_empty_queue_takes_segments_in(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        assert adopt(ledger, stage(files, ledger, "job", [[b"a"], [b"b"]])).first_seq == 1
    with open_ledger(files) as ledger:
        assert payloads(ledger) == [b"a", b"b"]


def test_times_never_go_back_even_if_the_segments_were_written_before(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        staged = stage(files, ledger, "job", [[b"a", b"b"]], timestamp_ns=NOW_NS - 5)
        ledger.messages.append(b"meanwhile")
        adopt(ledger, staged)
        times = [entry.timestamp_ns for entry in Cursor(ledger.messages, 1).read(10)]
        assert times == sorted(times)
        assert payloads(ledger) == [b"meanwhile", b"a", b"b"]
    with open_ledger(files) as ledger:
        assert payloads(ledger) == [b"meanwhile", b"a", b"b"]


def test_only_what_is_older_than_what_lies_before_it_gets_another_time(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        ledger.messages.append(b"first")
        staged = []
        for number, later_ns in enumerate((5, 3, 3, 9)):
            staged += stage(files, ledger, f"t{number}", [[b"x"]], timestamp_ns=NOW_NS + later_ns)
        before = [content(files, STAGING, one.folder, one.name) for one in staged]
        adopt(ledger, staged)
        firsts = [Cursor(ledger.messages, seq).read(1)[0] for seq in range(1, 6)]
        assert [entry.timestamp_ns - NOW_NS for entry in firsts] == [0, 5, 5, 5, 9]
        for seq, old, changed in zip(range(2, 6), before, (False, True, True, False), strict=True):
            new = content(files, "messages", f"{seq:020d}.log")
            assert (new[HEADER_BYTES:] != old[HEADER_BYTES:]) == changed


def test_a_segment_whose_times_are_not_one_gets_one(files: MemoryFiles) -> None:
    """Only its first and its highest time are known: between them it may go back."""
    with open_ledger(files) as ledger:
        (one,) = stage(files, ledger, "job", [[b"a"]], timestamp_ns=NOW_NS + 5)
        fd = files.open(f"{PATH}/{STAGING}/{one.folder}/{one.name}", "write")
        for seq, later_ns in ((1, 2), (2, 9)):
            write_fully(files, fd, codec.pack(seq, NOW_NS + later_ns, Draft(b"b")), files.size(fd))
        files.close(fd)
        adopt(ledger, [replace(one, entries=3)])
        times = [entry.timestamp_ns - NOW_NS for entry in Cursor(ledger.messages, 1).read(10)]
        assert times == [9, 9, 9]


class PatientClock(ManualClock):
    """Whoever waits for a time has it come."""

    def wait(self, condition: Condition, timeout_s: float | None) -> None:
        assert timeout_s is not None
        self.advance(timeout_s)


class SlowFiles(MemoryFiles):
    """On a disk that takes ten seconds for a sync, however little there is to write."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.slow = False

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        if self.slow:
            self.clock.advance(10)


def test_beside_others_a_slow_disk_does_not_keep_them_waiting() -> None:
    clock = PatientClock()
    files = SlowFiles(clock)
    with open_ledger(files, clock=clock) as ledger:
        staged = stage(files, ledger, "job", PARTS)
        before: list[bytes] = []

        def within(step: Callable[[], Adopted]) -> Adopted:
            files.slow = False
            ledger.messages.append(b"meanwhile")
            before.extend(content(files, STAGING, one.folder, one.name) for one in staged)
            return step()

        files.slow = True
        adopted = adopt(ledger, staged, within=within)
        first = adopted.first_seq
        for old in before:
            new = content(files, "messages", f"{first:020d}.log")
            assert new[HEADER_BYTES:] == old[HEADER_BYTES:]  # not rewritten while others wait
            first = next(entry.seq for entry in Cursor(ledger.messages, first).read(100)[-1:]) + 1
        assert payloads(ledger) == [b"meanwhile", *WHOLE]


@pytest.mark.parametrize("company", [False, True])
def test_the_index_that_is_saved_is_that_of_the_segments(files: MemoryFiles, company: bool) -> None:
    many = [b"x" * 100] * 200
    with open_ledger(files) as ledger:
        ledger.messages.append(b"first")
        staged = stage(files, ledger, "a", [many], timestamp_ns=NOW_NS + 5)
        staged += stage(files, ledger, "b", [many, many], timestamp_ns=NOW_NS + 3)
        adopt(ledger, staged, within=(lambda step: step()) if company else None)
        for segment in ledger.messages.segments.all[1:]:
            name = f"{segment.base_seq:020d}.idx"
            saved = content(files, "messages", name)
            Folder(files, PATH).child("messages").remove(name)
            segment.close()
            assert saved == segment.packed_index()
            assert len(saved) > 6 * INDEX_POINT_BYTES


def content(files: MemoryFiles, *path: str) -> bytes:
    *folders, name = path
    folder = Folder(files, PATH)
    for one in folders:
        folder = folder.child(one)
    return folder.read(name, max_bytes=1 << 20)


def test_beside_others_times_rise_and_the_one_step_is_taken_within(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        staged = stage(files, ledger, "job", PARTS, timestamp_ns=NOW_NS - 10**9)
        steps = []

        def within(step: Callable[[], Adopted]) -> Adopted:
            ledger.messages.append(b"meanwhile")
            steps.append(step())
            return steps[-1]

        assert adopt(ledger, staged, within=within) == steps[0] == Adopted(2, 6)
        ledger.messages.append(b"behind")
        ledger.commit()
        assert payloads(ledger) == [b"meanwhile", *WHOLE, b"behind"]
        times = [entry.timestamp_ns for entry in Cursor(ledger.messages, 1).read(100)]
        assert times == sorted(times)
        few = append_once(ledger, [Draft(b"x")], Transaction("few", 1), within=within)
        assert few == steps[1]


def test_a_transaction_is_adopted_once(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        adopt(ledger, stage(files, ledger, "first", [[b"a"], [b"b"]]), NIGHTLY)
        assert adopted_before(ledger, NIGHTLY)
        again = adopt(ledger, stage(files, ledger, "second", [[b"a"], [b"b"]]), NIGHTLY)
        assert again.repeated and (again.first_seq, again.entries) == (1, 2)
        older = adopt(ledger, stage(files, ledger, "third", [[b"x"]]), Transaction("nightly", 6))
        assert older.repeated
        assert not adopted_before(ledger, Transaction("nightly", 8))
        assert not adopted_before(ledger, Transaction("weekly", 1))
        assert payloads(ledger) == [b"a", b"b"]


def test_a_few_messages_are_appended_once(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        assert append_once(ledger, [Draft(b"a"), Draft(b"b")], NIGHTLY).first_seq == 1
        assert append_once(ledger, [Draft(b"a"), Draft(b"b")], NIGHTLY).repeated
    with open_ledger(files) as ledger:
        assert append_once(ledger, [Draft(b"a"), Draft(b"b")], NIGHTLY).repeated
        assert payloads(ledger) == [b"a", b"b"]


def test_a_transaction_without_messages_is_remembered_too(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        adopt(ledger, [], NIGHTLY)
        assert adopted_before(ledger, NIGHTLY)
        append_once(ledger, [], Transaction("nightly", 8))
        assert adopted_before(ledger, Transaction("nightly", 8))


def test_a_damaged_staged_segment_is_refused_and_nothing_changes(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        staged = stage(files, ledger, "job", [[b"a"], [b"bbbb"]])
        fd = files.open(Folder(files, PATH).child(STAGING).child("job").file("1.log"), "write")
        files.pwrite(fd, b"\xff", HEADER_BYTES + 24)
        files.close(fd)
        with pytest.raises(BadEntry, match="1.log is not what was written"):
            adopt(ledger, staged, NIGHTLY)
        assert payloads(ledger) == []
        assert ledger.messages.append(b"goes on") == 1
        assert not adopted_before(ledger, NIGHTLY)


def test_a_segment_with_fewer_entries_than_were_told_is_refused(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        (one,) = stage(files, ledger, "job", [[b"a"]])
        with pytest.raises(BadEntry, match="entries are missing"):
            adopt(ledger, [Staged(one.folder, one.name, 2)])


def test_a_segment_of_another_queue_is_refused(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        staging = stage(files, ledger, "job", [[b"a"]])
        fd = files.open(Folder(files, PATH).child(STAGING).child("job").file("0.log"), "write")
        files.pwrite(fd, staged_header(ledger.identity ^ 1, NOW_NS).pack(), 0)
        files.close(fd)
        with pytest.raises(InvalidInput, match="not staged for this queue"):
            adopt(ledger, staging)


def test_a_damaged_memory_of_transactions_is_an_error_and_no_guess(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        adopt(ledger, stage(files, ledger, "job", [[b"a"]]), NIGHTLY)
        Folder(files, PATH).replace(TRANSACTIONS_NAME, b'{"done": {}}')
        with pytest.raises(LedgerError, match="remove the file"):
            adopted_before(ledger, NIGHTLY)


def test_staging_is_swept_but_not_what_is_being_adopted(files: MemoryFiles) -> None:
    with open_ledger(files) as ledger:
        stage(files, ledger, "old", [[b"a"]])
        sweep_staging(ledger, ["old", "never there"])
        assert not Folder(files, PATH).child(STAGING).child("old").exists()


# -- crashes ---------------------------------------------------------------------------------------

PARTS = [[b"a1", b"a2"], [b"b1"], [b"c1", b"c2", b"c3"]]
WHOLE = [b"a1", b"a2", b"b1", b"c1", b"c2", b"c3"]


def life(recorded: RecordedFiles) -> None:
    """A queue with messages, three staged segments that come in, and a message after them."""
    with open_ledger(recorded) as ledger:
        ledger.messages.append(b"before")
        ledger.commit()
        recorded.mark("before")
        staged = stage(recorded, ledger, "job", PARTS)
        adopt(ledger, staged, NIGHTLY)
        recorded.mark("adopted")
        ledger.messages.append(b"after")
        ledger.commit()
        recorded.mark("after")


def life_in_company(recorded: RecordedFiles) -> None:
    """The same beside others, who write until the very moment."""
    with open_ledger(recorded) as ledger:
        ledger.messages.append(b"before")
        ledger.commit()
        recorded.mark("before")
        staged = stage(recorded, ledger, "job", PARTS, timestamp_ns=NOW_NS - 1)

        def within(step: Callable[[], Adopted]) -> Adopted:
            ledger.messages.append(b"after")  # not in order, as such: it comes meanwhile
            return step()

        adopt(ledger, staged, NIGHTLY, within=within)
        recorded.mark("adopted")


def small_life(recorded: RecordedFiles) -> None:
    with open_ledger(recorded) as ledger:
        ledger.messages.append(b"before")
        ledger.commit()
        recorded.mark("before")
        append_once(ledger, [Draft(payload) for payload in WHOLE], NIGHTLY)
        recorded.mark("adopted")
        ledger.messages.append(b"after")
        ledger.commit()
        recorded.mark("after")


def judge(state: CrashState, files: MemoryFiles) -> None:
    """All or nothing; and whoever does not know which does it again, and it is there once."""
    with open_ledger(files) as ledger:
        found = payloads(ledger)
        expected = [b"before"] if "before" in state.marks else found[:1]
        assert found[: len(expected)] == expected
        rest = [payload for payload in found if payload not in (b"before", b"after")]
        assert rest in ([], WHOLE), rest
        assert rest == WHOLE or "adopted" not in state.marks
        assert b"after" in found or "after" not in state.marks
        again = adopt(ledger, stage(files, ledger, "again", PARTS), NIGHTLY)
        assert again.repeated == (rest == WHOLE)
        assert ledger.messages.append(b"goes on") == ledger.messages.next_seq - 1
        ledger.commit()
        whole = [payload for payload in payloads(ledger) if payload in WHOLE]
        assert whole == WHOLE
    with open_ledger(files) as ledger:
        assert [payload for payload in payloads(ledger) if payload in WHOLE] == WHOLE
        assert payloads(ledger)[-1] == b"goes on"


@pytest.mark.parametrize("of", [life, life_in_company, small_life])
def test_a_crash_at_any_instant_leaves_all_of_it_or_nothing(of: object) -> None:
    recorded = RecordedFiles()
    assert callable(of)
    of(recorded)
    logging.getLogger("penstock.ledger").disabled = True
    count = 0
    try:
        for state in crash_states(recorded.journal, life=str(of), cuts=2, tears=1):
            try:
                judge(state, state.files())
            except Exception as error:
                raise AssertionError(f"{state.name}: {error!r}") from error
            count += 1
    finally:
        logging.getLogger("penstock.ledger").disabled = False
    assert count > 200


def test_a_crash_after_a_crash_leaves_all_of_it_or_nothing() -> None:
    recorded = RecordedFiles()
    life(recorded)
    logging.getLogger("penstock.ledger").disabled = True
    count = 0
    try:
        for first in list(crash_states(recorded.journal, life="first", cuts=0, tears=0))[::20]:
            again = first.recorded()
            with open_ledger(again) as ledger:
                ledger.messages.append(b"after")
                ledger.commit()
            for second in crash_states(again.journal, life=first.name, cuts=1, tears=0):
                try:
                    judge(second, second.files())
                except Exception as error:
                    raise AssertionError(f"{second.name}: {error!r}") from error
                count += 1
    finally:
        logging.getLogger("penstock.ledger").disabled = False
    assert count > 150


def test_a_call_that_fails_leaves_all_of_it_or_nothing() -> None:
    logging.getLogger("penstock.ledger").disabled = True
    try:
        for nth in range(1, 500):
            files = MemoryFiles()
            with open_ledger(files) as ledger:
                ledger.messages.append(b"before")
                staged = stage(files, ledger, "job", PARTS)
            faulty = FaultyFiles(files, Fault(nth))
            try:
                with open_ledger(faulty) as ledger:
                    adopt(ledger, staged, NIGHTLY)
            except PenstockError:
                pass
            judge(
                CrashState(f"call {nth}", "kill", ("before",), RecordedFiles().journal.start), files
            )
            if faulty.chosen_calls < nth:
                return
    finally:
        logging.getLogger("penstock.ledger").disabled = False
    raise AssertionError("there are more calls than that")
