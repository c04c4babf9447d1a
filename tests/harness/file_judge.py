"""What must be true of a queue in which one file was damaged.

1. No error but those of the tree: from opening, verifying, looking and leasing.
2. No payload but the published one, no id but a published one, in the order of publishing.
3. A message that was not settled and is not delivered is reported as lost, with its seq.
4. A message that was settled and is delivered comes with a report.
5. Damage to anything but the message log loses no message.
6. No seq is given out twice, and what is published afterwards is delivered.

After a kill, the end of a log may be missing without a word, as far as nothing else speaks of it:
that is what a crash may leave.
"""

from dataclasses import dataclass, field

from penstock.clock import ManualClock
from penstock.errors import BadEntry, PenstockError
from penstock.ledger import Cursor, Damage, Ledger, verify
from penstock.queue.events import decode
from penstock.queue.queue import Queue, open_core
from penstock.queue.snapshot import load_state
from penstock.queue.state import QueueState
from tests.harness.file_lives import PATH, Life, files_with, open_writer
from tests.harness.file_strokes import FileStroke

NEW = b"published after the damage"


@dataclass(slots=True)
class Verdict:
    """What became of a damaged queue."""

    refused: bool = False
    reports: list[Damage] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    back: set[str] = field(default_factory=set)


def judge(life: Life, stroke: FileStroke, *, closed: bool) -> Verdict:
    """Raise AssertionError where a promise is broken."""
    return _Case(life, stroke, closed, Verdict()).judge()


@dataclass(slots=True)
class _Case:
    life: Life
    stroke: FileStroke
    closed: bool
    verdict: Verdict

    def judge(self) -> Verdict:
        verdict = self.verdict
        self._verify()
        self._look()
        files = files_with(self.stroke.contents)
        clock = self._clock()
        try:
            queue = open_writer(files, clock, verdict.reports.append)
        except PenstockError:
            verdict.refused = True
            return verdict
        for group in queue.groups:
            self._drain(queue, group, clock)
        for group in self.life.settled.keys() - set(queue.groups):
            assert verdict.reports, f"group {group} is gone, and no report says why"
        self._check_new_seq(queue)
        queue.close()
        again: list[Damage] = []
        queue = open_writer(files, clock, again.append)
        assert {NEW} <= {m.payload for m in queue.browse()}, "what was published is gone"
        known = {(d.first_lost_seq, d.last_lost_seq) for d in verdict.reports}
        news = [d for d in again if d.lost and (d.first_lost_seq, d.last_lost_seq) not in known]
        assert not news, f"lost in mending: {news}"
        queue.close()
        return verdict

    # -- looking -----------------------------------------------------------------------------------

    def _verify(self) -> None:
        try:
            self.verdict.reports += verify(PATH, files=files_with(self.stroke.contents)).problems
        except PenstockError:
            self.verdict.refused = True

    def _look(self) -> None:
        try:
            queue = Queue(
                open_core(
                    PATH,
                    {},
                    files=files_with(self.stroke.contents),
                    clock=self._clock(),
                    read_only=True,
                    on_damage=self.verdict.reports.append,
                )
            )
        except PenstockError:
            return
        with queue:
            queue.stats()
            for group in queue.groups:
                for message in (*queue.browse(group=group), *queue.peek(50, group=group)):
                    self._check(message.id, message.payload)
                for letter in queue.dead(group=group):
                    self._check(letter.message.id, letter.message.payload)
            for id_ in list(self.life.payloads)[::5]:
                try:
                    self._check(id_, queue.get(id_).payload)
                    queue.history(id_)
                    queue.why(id_)
                except PenstockError:
                    pass

    def _check(self, id_: str, payload: bytes) -> None:
        assert id_ in self.life.payloads, f"an unknown id: {id_}, {payload!r}"
        assert payload == self.life.payloads[id_], f"a wrong payload: {payload!r}"

    # -- delivering --------------------------------------------------------------------------------

    def _drain(self, queue: Queue, group: str, clock: ManualClock) -> None:
        life, verdict = self.life, self.verdict
        delivered: list[str] = []
        first_time: list[int] = []  # the seqs of those that were never leased before
        quiet = 0
        while quiet < 2:
            for leased in (found := queue.lease(7, group=group)):
                self._check(leased.message.id, leased.message.payload)
                delivered.append(leased.message.id)
                first_time += [leased.message.seq] if leased.attempt == 1 else []
                queue.ack(leased)
            if not found:
                quiet += 1
                clock.advance(4000)
        assert len(set(delivered)) == len(delivered), "delivered twice"
        if life.ordered:
            assert first_time == sorted(first_time), f"out of order: {first_time}"
        dead = {letter.message.id for letter in queue.dead(group=group)}
        settled = life.settled.get(group, set())
        lost = life.payloads.keys() - settled - dead - set(delivered)
        back = settled & (dead | set(delivered))
        verdict.lost |= lost
        verdict.back |= back
        for id_ in lost:
            self._check_reported(life.seqs[id_])
        if back and not verdict.reports:
            assert self._is_end_of("events"), f"came back without a word: {back}"

    def _check_reported(self, seq: int) -> None:
        assert "messages/" in str(self.stroke), f"seq {seq} is lost, and its log was not damaged"
        if any(d.first_lost_seq <= seq <= d.last_lost_seq for d in self.verdict.reports):
            return
        is_end = self._is_end_of("messages") and seq >= self._spoken_of()
        assert is_end, f"seq {seq} is lost, and no report says so: {self.verdict.reports}"

    def _is_end_of(self, log: str) -> bool:
        """Whether the damage is to the end of a log that was not closed."""
        segments = [file for file in self.stroke.contents if file.startswith(f"{log}/")]
        last = max((*segments, self.stroke.file if self.stroke.file.startswith(log) else ""))
        return not self.closed and last.endswith(".log") and last in str(self.stroke)

    def _spoken_of(self) -> int:
        """Every seq below it is known from elsewhere than the message log."""
        contents = self.stroke.contents
        contents = {k: v for k, v in contents.items() if not k.startswith("messages/")}
        spoken_of = 1
        with Ledger.open(PATH, files=files_with(contents), read_only=True) as ledger:
            cursor = Cursor(ledger.events, 1)
            while entries := cursor.read(1000):
                for entry in entries:
                    try:
                        event = decode(
                            entry.type, entry.payload, timestamp_ns=0, event_seq=entry.seq
                        )
                    except BadEntry:
                        continue
                    spoken_of = max(spoken_of, event.upto_seq)
            for event_seq in ledger.snapshot_seqs():
                state = QueueState(dedup_entries=100)
                try:
                    load_state(state, ledger.read_snapshot(event_seq).blob)
                except (BadEntry, ValueError):
                    continue
                spoken_of = max(spoken_of, state.ingested_upto)
        return spoken_of

    def _check_new_seq(self, queue: Queue) -> None:
        id_ = queue.enqueue(NEW)
        seq = queue.get(id_).seq
        used = max(self.life.seqs.values(), default=0)
        if seq <= used:
            assert self._is_end_of("messages"), f"seq {seq} is given out again"
            assert seq >= self._spoken_of(), f"seq {seq} is given out again, and is spoken of"

    def _clock(self) -> ManualClock:
        return ManualClock(now_s=self.life.clock.now_ns() / 1e9 + 1)
