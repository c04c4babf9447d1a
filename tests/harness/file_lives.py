"""Queues of several shapes whose files are then damaged, and the truth about what they hold."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from penstock.clock import ManualClock
from penstock.ledger import Ledger
from penstock.ledger.adoption import adopt
from penstock.ledger.damage import QUARANTINE
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import Transaction
from penstock.ledger.memory_files import ROOT, Image, MemoryFiles
from penstock.ledger.staging import STAGING, Staged
from penstock.queue import NewMessage
from penstock.queue.queue import Queue, open_core
from tests.harness.staged_segments import staged_segment

PATH = "/queue"
SETTINGS = {
    "sync": "never",
    "min_free_bytes": 0,
    "auto_compact": False,
    "segment_bytes": 1024,
    "lease_s": 30,
    "max_attempts": 2,
    "snapshot_every": 1000,
}
ROOM_BYTES = 1 << 17

Contents = dict[str, bytes]  # of a queue's directory, by path in it


@dataclass(slots=True)
class Life:
    """A queue in use, and what is known of it."""

    files: MemoryFiles = field(default_factory=lambda: MemoryFiles(mapped_room_bytes=ROOM_BYTES))
    clock: ManualClock = field(default_factory=ManualClock)
    payloads: dict[str, bytes] = field(default_factory=dict)  # by id
    seqs: dict[str, int] = field(default_factory=dict)
    settled: dict[str, set[str]] = field(default_factory=lambda: {"main": set()})  # by group
    ordered: bool = True  # all messages are plain: delivered in the order of publishing
    older: list[Contents] = field(default_factory=list)  # the files at earlier moments
    queue: Queue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = open_writer(self.files, self.clock)

    def publish(self, count: int, **options: object) -> None:
        """Publish messages, plain ones unless options are given."""
        for _ in range(count):
            payload = self._payload()
            self._know(self.queue.enqueue(payload, **options), payload)  # type: ignore[arg-type]
        self.clock.advance(0.01)

    def publish_batch(self, count: int) -> None:
        batch = [NewMessage(payload=self._payload(number)) for number in range(count)]
        for id_, message in zip(self.queue.enqueue_batch(batch), batch, strict=True):
            assert isinstance(message.payload, bytes)
            self._know(id_, message.payload)
        self.clock.advance(0.01)

    def work(self, count: int, group: str = "main") -> None:
        """Lease messages and ack them."""
        for leased in self.queue.lease(count, group=group):
            self.queue.ack(leased)
            self.settled[group].add(leased.message.id)
        self.clock.advance(0.01)

    def reopen(self) -> None:
        """Close it in order, keep its files for older copies, and open it again."""
        self.queue.close()
        self.older.append(contents_of(self.files))
        self.queue = open_writer(self.files, self.clock)
        self.older.append(contents_of(self.files))

    def _payload(self, plus: int = 0) -> bytes:
        number = len(self.payloads) + plus
        return b"%d " % number + Random(number).randbytes(40)

    def _know(self, id_: str, payload: bytes) -> None:
        self.payloads[id_] = payload
        self.seqs[id_] = self.queue.get(id_).seq


def one_segment(life: Life) -> None:
    life.publish(5)
    life.reopen()
    life.publish(3)
    life.work(3)


def untouched(life: Life) -> None:
    """Nothing was ever leased: no event, and no snapshot before the last close."""
    life.publish(4)


def many_segments(life: Life) -> None:
    life.publish(30)
    life.work(12)
    life.reopen()
    life.publish(12)
    life.publish_batch(4)
    life.work(6)


def compacted(life: Life) -> None:
    """The first segments are removed, others are rewritten, snapshots and old events as well."""
    life.publish(30)
    life.queue.lease(1)  # not settled: it pins the first segment
    life.work(20)
    life.queue.compact()
    life.reopen()
    life.publish(16)
    life.clock.advance(100)
    life.work(22)
    life.queue.compact()
    life.publish(4)
    life.work(2)


def everything(life: Life) -> None:
    """Groups, delays, priorities, keys, batches, dead letters, follow-ups, dedup."""
    life.ordered = False
    life.settled["audit"] = set()
    life.queue.groups.create("audit")
    life.publish(6)
    life.publish(2, delay=500)
    life.publish(2, priority=9, headers={"a": "b"})
    life.publish(2, key="k", content_type="text/plain")
    life.publish_batch(5)
    life.work(4)
    life.work(6, group="audit")
    for leased in life.queue.lease(2):
        life.queue.nack(leased, delay=0)
    for leased in life.queue.lease(2):
        life.queue.nack(leased, delay=0)
    life.reopen()
    life.publish(4, dedup_id=None, max_attempts=1)
    (leased,) = life.queue.lease(1)
    payload = b"follow-up"
    life.queue.ack(leased, emit=[payload])
    life.settled["main"].add(leased.message.id)
    emitted = next(m for m in life.queue.browse() if m.payload == payload)
    life.payloads[emitted.id], life.seqs[emitted.id] = payload, emitted.seq
    life.queue.compact()
    life.publish(3)
    life.work(2)


def adopted(life: Life) -> None:
    """Segments that others wrote, some of them still in the staging area; and an old quarantine."""
    life.publish(6)
    life.work(2)
    life.queue.close()
    folder = "1700000000000000000-0123456789abcdef"
    with Ledger.open(PATH, files=life.files, clock=life.clock, on_dirty=lambda: None) as ledger:
        root = Folder(life.files, PATH)
        for made in (
            root.child(STAGING),
            root.child(STAGING).child(folder),
            root.child(QUARANTINE),
        ):
            made.make()
        root.child(QUARANTINE).replace("messages-00000000000000000001.log-64.bin", b"damaged")
        staged = []
        for number in range(3):
            payloads = [b"staged %d.%d" % (number, each) for each in range(5)]
            data = staged_segment(ledger.identity, payloads)
            root.child(STAGING).child(folder).replace(f"{number}.log", data)
            staged.append(Staged(folder, f"{number}.log", len(payloads)))
        adopt(ledger, staged[:2], Transaction("job", 1))
    life.queue = open_writer(life.files, life.clock)
    for message in life.queue.browse():
        life.payloads.setdefault(message.id, message.payload)
        life.seqs[message.id] = message.seq
    life.older.append(contents_of(life.files))
    life.publish(3)
    life.work(7)


SHAPES: tuple[Callable[[Life], None], ...] = (
    one_segment,
    untouched,
    many_segments,
    compacted,
    everything,
    adopted,
)


def lived(shape: Callable[[Life], None], *, closed: bool) -> Life:
    """A life of that shape; its files are in `files` as a clean close or a kill leaves them."""
    life = Life()
    shape(life)
    if closed:
        life.queue.close()
    return life


def open_writer(
    files: MemoryFiles, clock: ManualClock, on_damage: Callable[..., None] | None = None
) -> Queue:
    return Queue(
        open_core(
            PATH, SETTINGS, files=files, clock=clock, on_damage=on_damage, on_dirty=lambda: None
        )
    )


def contents_of(files: MemoryFiles) -> Contents:
    """Every file of the queue, by its path in the queue's directory."""
    image = files.image()
    return dict(_contents(image, image.directories[ROOT]["queue"], ""))


def _contents(image: Image, directory: int, prefix: str) -> Iterator[tuple[str, bytes]]:
    for name, number in sorted(image.directories[directory].items()):
        if number in image.directories:
            yield from _contents(image, number, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", image.files[number]


def files_with(contents: Contents) -> MemoryFiles:
    """Fresh files with that content. Nobody holds a lock."""
    image = Image(files={}, directories={ROOT: {"queue": 1}, 1: {}})
    numbers = {"": 1}
    for number, (path, content) in enumerate(contents.items(), 100):
        folder, _, name = path.rpartition("/")
        parent = ""
        for part in folder.split("/") if folder else []:
            inner = f"{parent}/{part}"
            if inner not in numbers:
                numbers[inner] = len(numbers) + 1
                image.directories[numbers[inner]] = {}
                image.directories[numbers[parent]][part] = numbers[inner]
            parent = inner
        image.files[number] = content
        image.directories[numbers[parent]][name] = number
    return MemoryFiles(image, mapped_room_bytes=ROOM_BYTES)
