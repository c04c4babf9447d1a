"""What must be true of a ledger whose writer was killed: everything answered, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.codec import Draft
from penstock.ledger import Ledger
from tests.harness.kill_work import call, is_kept, name_of
from tests.harness.ledger_oracle import contents_of

LOGS = ("messages", "events")


@dataclass(slots=True)
class Judge:
    """Remembers, over all lives in one directory, what was answered and what was seen."""

    must: dict[str, dict[int, Draft]] = field(default_factory=lambda: {log: {} for log in LOGS})
    low: int = 1  # below it, only each third message is kept
    snapshot: int = -1
    cycle: int = 0
    answers: int = 0

    def hear(self, line: str) -> None:
        """A line of the child."""
        match line.split(" "):
            case "answered", seq, thread, number:
                self.answers += 1
                answered = call(self.cycle, int(thread), int(number))
                self.must[answered.log].update(enumerate(answered.drafts, int(seq)))
            case "removing", low:
                self.low = max(self.low, int(low))
            case "snapshot", event_seq:
                self.snapshot = max(self.snapshot, int(event_seq))
            case "error", *_:
                raise AssertionError(f"the child failed: {line}")

    def judge(self, ledger: Ledger) -> None:
        """Compare; what was seen must be seen again the next time."""
        damage = [each for each in ledger.damage if not each.torn]
        assert not damage, f"a kill was taken for damage: {damage[0]}"
        contents = contents_of(ledger)
        for log in LOGS:
            self._judge_log(log, contents[log])
            next_seq = (ledger.messages if log == "messages" else ledger.events).next_seq
            assert next_seq > max(self.must[log], default=0), f"{log}: a seq would be used again"
            self.must[log] = dict(contents[log])
        snapshot = ledger.load_snapshot()
        assert (snapshot.event_seq if snapshot else -1) >= self.snapshot, "a snapshot is lost"
        assert snapshot is None or snapshot.blob == b"%d" % snapshot.event_seq

    def _judge_log(self, log: str, found: Mapping[int, Draft]) -> None:
        for seq, draft in self.must[log].items():
            if not self._may_be_gone(log, seq):
                assert seq in found, f"{log}: seq {seq} was answered and is lost"
            assert found.get(seq, draft) == draft, f"{log}: seq {seq} has another content"
        places: dict[tuple[int, int, int, int], int] = {}
        for seq, draft in found.items():
            name = name_of(draft.payload)
            assert name not in places, f"{log}: {name} is there twice, {places[name]} and {seq}"
            places[name] = seq
            cycle, thread, number, index = name
            wanted = call(cycle, thread, number)
            assert (wanted.log, wanted.drafts[index]) == (log, draft), f"{log}: seq {seq} is odd"
        self._judge_order(log, places)
        self._judge_batches(log, places)

    def _judge_order(self, log: str, places: Mapping[tuple[int, int, int, int], int]) -> None:
        """What one thread wrote, one call after the other, stands in that order."""
        last: dict[tuple[int, int], int] = {}  # by cycle and thread
        for name in sorted(places):
            assert places[name] > last.get(name[:2], 0), f"{log}: {name} is out of order"
            last[name[:2]] = places[name]

    def _judge_batches(self, log: str, places: Mapping[tuple[int, int, int, int], int]) -> None:
        for (cycle, thread, number, index), seq in places.items():
            for other in range(len(call(cycle, thread, number).drafts)):
                other_seq = seq - index + other
                if not self._may_be_gone(log, other_seq):
                    there = places.get((cycle, thread, number, other))
                    assert there == other_seq, f"{log}: half a batch around seq {seq}"

    def _may_be_gone(self, log: str, seq: int) -> bool:
        return log == "messages" and seq < self.low and not is_kept(seq)
