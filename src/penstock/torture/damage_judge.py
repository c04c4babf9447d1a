"""What must be true of a store in which one file was damaged.

1. It opens, for reading and for writing, and everything is read without an error.
2. Every entry that is served is the one that was written under its seq; none comes twice.
3. Every entry whose own bytes the damage spared is served.
4. What is not served is reported as lost, by the reader and by the writer. `verify` reports damage
   to any byte of a segment, except for a copy that takes nothing away.
5. A writer goes on: no seq that was given out is used again, and what was served stays.
"""

from dataclasses import dataclass

from penstock.errors import EntryGone
from penstock.ledger import Damage, Ledger, read_entry, verify
from penstock.ledger.json_files import CLOSED_NAME, MANIFEST_NAME, Closed, Manifest
from penstock.torture.damage_store import (
    LayOut,
    Truth,
    content_of,
    in_memory,
    open_store,
    read_all,
)
from penstock.torture.damage_strokes import Stroke

Served = dict[str, set[int]]  # by log


class PromiseBroken(AssertionError):
    """A damaged store did not behave as promised."""


def judge(truth: Truth, stroke: Stroke, lay_out: LayOut = in_memory) -> None:
    """Raise PromiseBroken if a promise is broken."""
    case = _Case(truth, stroke, lay_out)
    if stroke.content == truth.files[stroke.file]:
        return  # a copy of the same bytes
    case.judge_reader()
    case.judge_verify()
    case.judge_writer()


@dataclass(slots=True)
class _Case:
    truth: Truth
    stroke: Stroke
    lay_out: LayOut

    def judge_reader(self) -> None:
        files, path = self.lay_out(self.truth, self.stroke.file, self.stroke.content)
        with open_store(files, self.truth.settings, path, read_only=True) as ledger:
            served = self._served(ledger)
            self._check_look_ups(ledger, served)
            self._check_snapshot(ledger)
            self._check_reported(list(ledger.damage), served)

    def judge_verify(self) -> None:
        files, path = self.lay_out(self.truth, self.stroke.file, self.stroke.content)
        report = verify(path, files=files, settings=self.truth.settings)
        entries = sum(map(len, self.truth.entries.values()))
        takes_away = "copy" not in self.stroke.kind or report.entries < entries
        if self._must_be_reported() and takes_away and report.is_sound:
            raise PromiseBroken("verify calls it sound")

    def judge_writer(self) -> None:
        files, path = self.lay_out(self.truth, self.stroke.file, self.stroke.content)
        with open_store(files, self.truth.settings, path) as ledger:
            served = self._served(ledger)
            self._check_reported(list(ledger.damage), served)
            next_seqs = {"messages": ledger.messages.next_seq, "events": ledger.events.next_seq}
            for log, next_seq in next_seqs.items():
                if next_seq < self.truth.next_seqs[log]:
                    raise PromiseBroken(f"{log}: a seq is used again")
            new = ledger.messages.append(b"new")
        with open_store(files, self.truth.settings, path) as ledger:
            again = {log: {entry.seq for entry in read_all(getattr(ledger, log))} for log in served}
        served["messages"].add(new)
        if again != served:
            raise PromiseBroken("what was served is not what is served after reopening")

    # -- reading -----------------------------------------------------------------------------------

    def _served(self, ledger: Ledger) -> Served:
        served: Served = {}
        for log, truth in self.truth.entries.items():
            found = [content_of(entry) for entry in read_all(getattr(ledger, log))]
            seqs = [content[0] for content in found]
            served[log] = set(seqs)
            if seqs != sorted(served[log]):
                raise PromiseBroken(f"{log}: out of order, or twice: {seqs}")
            for seq, content in zip(seqs, found, strict=True):
                if content != truth.get(seq):
                    raise PromiseBroken(f"{log}: wrong seq {seq}")
            for seq in truth.keys() - served[log]:
                if self._spares(log, seq):
                    raise PromiseBroken(f"{log}: seq {seq} was spared and is not served")
        return served

    def _check_look_ups(self, ledger: Ledger, served: Served) -> None:
        """By seq, around the damage: the same as in order."""
        for log, places in self.truth.places.items():
            hit = [seq for seq, place in places.items() if place.file == self.stroke.file]
            for seq in hit[:: max(len(hit) // 4, 1)]:
                try:
                    entry = read_entry(getattr(ledger, log), seq)
                except EntryGone:
                    if seq in served[log]:
                        raise PromiseBroken(f"{log}: seq {seq} is not found by its seq") from None
                else:
                    if content_of(entry) != self.truth.entries[log][seq]:
                        raise PromiseBroken(f"{log}: wrong seq {seq}, by its seq")

    def _check_snapshot(self, ledger: Ledger) -> None:
        snapshot = ledger.load_snapshot()
        spared = not self.stroke.file.startswith(("snapshots/", "events/"))
        if snapshot is None:
            if spared:
                raise PromiseBroken("the snapshot was spared and is not found")
            return
        if snapshot.blob != self.truth.snapshots.get(snapshot.event_seq):
            raise PromiseBroken("a snapshot has another content")
        if spared and snapshot.event_seq != max(self.truth.snapshots):
            raise PromiseBroken("an old snapshot is served, and the newest was spared")

    # -- reporting ---------------------------------------------------------------------------------

    def _check_reported(self, damage: list[Damage], served: Served) -> None:
        for log, truth in self.truth.entries.items():
            for seq in truth.keys() - served[log]:
                if not any(
                    each.file == self.stroke.file
                    and each.first_lost_seq <= seq <= each.last_lost_seq
                    for each in damage
                ):
                    raise PromiseBroken(f"{log}: seq {seq} is lost, and no report says so")

    def _must_be_reported(self) -> bool:
        file = self.stroke.file
        if file in _PACKED:
            return not _is_whole(file, self.stroke.content)
        return file.endswith(".log")  # else a cache; snapshots are judged when they are asked for

    def _spares(self, log: str, seq: int) -> bool:
        place = self.truth.places[log][seq]
        return place.file != self.stroke.file or self.stroke.spares(place.start, place.end)


_PACKED: dict[str, type[Manifest] | type[Closed]] = {MANIFEST_NAME: Manifest, CLOSED_NAME: Closed}


def _is_whole(file: str, content: bytes) -> bool:
    try:
        _PACKED[file].unpack(content)
    except Exception:
        return False
    return True
