"""A small ledger with everything in it, and the truth about what it holds."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from penstock.clock import ManualClock
from penstock.codec import Draft, Entry
from penstock.codec.layout import CHECKPOINT_BYTES, TOMBSTONE
from penstock.ledger import Compactor, Cursor, Ledger, LedgerSettings, Retention
from penstock.ledger.files import Files, OsFiles
from penstock.ledger.log import Log
from penstock.ledger.memory_files import ROOT, Image, MemoryFiles
from penstock.ledger.settings import KIB

PATH = "/queue"
EVENT = 16

SMALL = LedgerSettings(
    sync="never",
    segment_bytes=2048,
    first_step_bytes=512,
    largest_step_bytes=2048,
    max_entry_bytes=4096,
    min_free_bytes=0,
    reserve_bytes=0,
)
LARGE = replace(SMALL, segment_bytes=16 * KIB)  # with indexes of several points

_PLACE = Entry._fields.index("offset")
Content = tuple[Any, ...]  # of an entry
Batches = dict[str, list[range]]  # by log: the seqs of each


@dataclass(frozen=True, slots=True)
class Live:
    """The seqs that compaction must keep."""

    kept: frozenset[int]

    def count(self, first_seq: int, end_seq: int) -> int:
        return sum(1 for seq in self.kept if first_seq <= seq < end_seq)

    def seqs(self, first_seq: int, end_seq: int) -> Iterable[int]:
        return sorted(seq for seq in self.kept if first_seq <= seq < end_seq)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry stands."""

    file: str  # relative to the queue's directory
    start: int
    end: int


@dataclass(slots=True)
class Truth:
    """What was written and is there, by log and seq."""

    settings: LedgerSettings
    image: Image
    files: dict[str, bytes]  # every file, by its path in the queue's directory
    numbers: dict[str, int]  # and its node in the image
    entries: dict[str, dict[int, Content]] = field(default_factory=dict)
    places: dict[str, dict[int, Place]] = field(default_factory=dict)
    last_segments: dict[str, str] = field(default_factory=dict)  # by log
    closing_checkpoints: dict[str, int] = field(default_factory=dict)  # by file: where it starts
    next_seqs: dict[str, int] = field(default_factory=dict)
    batches: dict[str, list[range]] = field(default_factory=dict)
    snapshots: dict[int, bytes] = field(default_factory=dict)


def build(*, size: int = 1, payload_bytes: int = 90, settings: LedgerSettings = SMALL) -> Truth:
    """Rotated, removed, rewritten, with batches, options, events and snapshots; closed in order."""
    files = MemoryFiles(mapped_room_bytes=2 * settings.segment_bytes + 4096, seed="damage")
    ledger = open_store(files, settings)
    random = Random(0)
    clock = ledger.clock
    assert isinstance(clock, ManualClock)
    batches: Batches = {"messages": [], "events": []}
    _write(ledger, batches, random, 50 * size, payload_bytes)
    first_seq = ledger.messages.segments.all[1].base_seq
    live = {seq for seq in range(first_seq, ledger.messages.next_seq) if seq % 4 == 0}
    Compactor(ledger, ledger.messages, Live(frozenset(live)), Retention(), clock).run()
    snapshots = {}
    for _ in range(2):
        _write(ledger, batches, random, 18 * size, payload_bytes)
        event_seq = ledger.events.next_seq - 1
        snapshots[event_seq] = random.randbytes(200)
        ledger.save_snapshot(event_seq, snapshots[event_seq])
    _write(ledger, batches, random, 5, payload_bytes)
    ledger.close()
    truth = _truth(files, settings)
    truth.snapshots, truth.batches = snapshots, batches
    return truth


def open_store(
    files: Files, settings: LedgerSettings, path: str = PATH, **options: object
) -> Ledger:
    """Open it without threads, at a time after everything in it was written."""
    clock = ManualClock(now_s=1_700_000_000 if not files.exists(path) else 1_800_000_000)
    return Ledger.open(
        path,
        settings,
        files=files,
        clock=clock,
        on_dirty=lambda: None,
        **options,  # type: ignore[arg-type]
    )


def read_all(log: Log) -> Iterator[Entry]:
    cursor = Cursor(log, 1)
    while entries := cursor.read(1000):
        yield from entries


def content_of(entry: Entry) -> Content:
    """All of it but its place."""
    return entry[:_PLACE]


def _write(
    ledger: Ledger, batches: Batches, random: Random, count: int, payload_bytes: int
) -> None:
    clock = ledger.clock
    assert isinstance(clock, ManualClock)
    for _ in range(count):
        clock.advance(random.choice((0, 0.001, 1)))
        number = ledger.messages.next_seq
        payload = b"%d " % number + random.randbytes(random.choice((0, 10, 40, payload_bytes)))
        draft = Draft(payload)
        if random.random() < 0.3:
            draft = _with_options(draft, random)
        match random.randrange(6):
            case 0:
                batch = [draft._replace(payload=b"%d+%d" % (number, n)) for n in range(4)]
                seq = ledger.messages.append_batch(batch)
                batches["messages"].append(range(seq, seq + len(batch)))
            case 1:
                ledger.events.append_draft(Draft(random.randbytes(payload_bytes // 4), type=EVENT))
            case 2:
                noted = [Draft(b"%d" % n, type=EVENT + n) for n in range(3)]
                seq = ledger.events.append_batch(noted)
                batches["events"].append(range(seq, seq + len(noted)))
            case 3:
                ledger.sync()
                ledger.messages.append_draft(draft)
            case _:
                ledger.messages.append_draft(draft)


def _with_options(draft: Draft, random: Random) -> Draft:
    return draft._replace(
        priority=random.randint(0, 9),
        key=b"key",
        headers={"name": "value"},
        deliver_at_ns=1 << 60,
        attributes={3: random.randbytes(8)},
    )


def _truth(files: MemoryFiles, settings: LedgerSettings) -> Truth:
    image = files.image()
    numbers = dict(_numbers(image, image.directories[ROOT]["queue"], ""))
    contents = {path: image.files[number] for path, number in numbers.items()}
    truth = Truth(settings, image, contents, numbers)
    with open_store(MemoryFiles(image), settings, read_only=True) as ledger:
        for name, log in (("messages", ledger.messages), ("events", ledger.events)):
            truth.next_seqs[name] = log.next_seq
            truth.entries[name] = {}
            truth.places[name] = {}
            for segment in log.segments.all:
                file = f"{name}/{segment.name}"
                entries, _ = segment.read(64, 1_000_000)
                for entry in entries:
                    if entry.type != TOMBSTONE:
                        truth.entries[name][entry.seq] = content_of(entry)
                        place = Place(file, entry.offset, entry.offset + entry.size)
                        truth.places[name][entry.seq] = place
                truth.last_segments[name] = file
            last = truth.last_segments[name]
            truth.closing_checkpoints[last] = len(truth.files[last]) - CHECKPOINT_BYTES
    return truth


# Lays out the files of a store, one of them with another content. Returns them and their directory.
LayOut = Callable[[Truth, str, bytes], tuple[Files, str]]


def in_memory(truth: Truth, file: str, content: bytes) -> tuple[Files, str]:
    """Lay out the files in memory."""
    contents = {**truth.image.files, truth.numbers[file]: content}
    room_bytes = 2 * truth.settings.segment_bytes + 4096
    image = Image(contents, truth.image.directories)
    return MemoryFiles(image, mapped_room_bytes=room_bytes), PATH


def on_disk(root: Path) -> LayOut:
    """Return a function that lays out the files in a directory, in place of what was there."""

    def lay_out(truth: Truth, file: str, content: bytes) -> tuple[Files, str]:
        for each in sorted(root.rglob("*"), reverse=True):
            if each.is_dir():
                each.rmdir()
            else:
                each.unlink()
        for name, whole in truth.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if name == file else whole)
        return OsFiles(), str(root)

    return lay_out


def _numbers(image: Image, directory: int, prefix: str) -> Iterator[tuple[str, int]]:
    for name, number in image.directories[directory].items():
        if number in image.directories:
            yield from _numbers(image, number, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", number
