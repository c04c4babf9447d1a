"""What the child of the kill ring writes, and how it tells what was answered.

Everything a child writes follows from (cycle, thread, number): these three determine every byte. A
line goes out only after the call it tells of was answered.
"""

import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from random import Random
from threading import Thread

from penstock.clock import ManualClock
from penstock.codec import Draft
from penstock.ledger import Compactor, Ledger, LedgerSettings, Retention
from penstock.ledger.files import Files, OsFiles
from penstock.torture.children import fork_children, say

EVENT = 16
WRITERS = 3


class LyingFiles(OsFiles):
    """Files that say they have synced."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Orders:
    """For one life of a child."""

    path: str
    cycle: int
    sync: str
    mapped: bool
    no_sync: bool = False  # a control: every sync is a lie

    def line(self) -> str:
        """Return the orders as they are given to a child."""
        return json.dumps(asdict(self))

    def files(self) -> Files:
        return LyingFiles() if self.no_sync else OsFiles()

    def settings(self) -> LedgerSettings:
        return LedgerSettings(
            sync=self.sync,  # type: ignore[arg-type]
            sync_interval_s=0.001,
            sync_batch=7,
            segment_bytes=16 * 1024,
            first_step_bytes=1024,
            mapped=self.mapped,
            min_free_bytes=0,
            reserve_bytes=0,
        )


@dataclass(frozen=True, slots=True)
class Appended:
    """What a writing thread appends in one call."""

    log: str
    drafts: tuple[Draft, ...]


@cache
def call(cycle: int, thread: int, number: int) -> Appended:
    """What a thread appends in its n-th call."""
    random = Random(f"{cycle}/{thread}/{number}")
    log = random.choice(("messages", "messages", "messages", "events"))
    count = random.choice((1, 1, 1, random.randint(2, 12)))
    drafts = []
    for index in range(count):
        name = f"{cycle}/{thread}/{number}/{index} ".encode()
        payload = name + random.randbytes(random.choice((0, 20, 100, 100, 700)))
        draft = Draft(payload) if log == "messages" else Draft(payload, type=EVENT)
        if random.random() < 0.3:
            draft = draft._replace(
                priority=random.randint(0, 9),
                key=random.choice((None, b"key")),
                headers={"name": "value"},
                expires_at_ns=1 << 60,
                attributes={7: b"once"},
            )
        drafts.append(draft)
    return Appended(log, tuple(drafts))


@dataclass(frozen=True, slots=True)
class Kept:
    """Live is what is not below `low`, and each third for ever."""

    low: int

    def count(self, first_seq: int, end_seq: int) -> int:
        return len(self.seqs(first_seq, end_seq))

    def seqs(self, first_seq: int, end_seq: int) -> list[int]:
        return [seq for seq in range(first_seq, end_seq) if seq >= self.low or is_kept(seq)]


def is_kept(seq: int) -> bool:
    return seq % 3 == 0


def name_of(payload: bytes) -> tuple[int, int, int, int]:
    """The cycle, thread, number and index that a payload begins with."""
    cycle, thread, number, index = payload.split(b" ", 1)[0].split(b"/")
    return int(cycle), int(thread), int(number), int(index)


def live(orders: Orders) -> None:
    """Write until killed."""
    ledger = Ledger.open(orders.path, orders.settings(), files=orders.files())
    say("open")
    others = [
        Thread(target=_guarded, args=(write, ledger, orders.cycle, thread))
        for thread in range(1, WRITERS)
    ]
    others.append(Thread(target=_guarded, args=(disturb, ledger, orders.cycle, WRITERS)))
    for each in others:
        each.start()
    _guarded(write, ledger, orders.cycle, 0)


def write(ledger: Ledger, cycle: int, thread: int) -> None:
    number = 0
    while True:
        number += 1
        wanted = call(cycle, thread, number)
        log = ledger.messages if wanted.log == "messages" else ledger.events
        if len(wanted.drafts) > 1:
            seq = log.append_batch(wanted.drafts)
        elif wanted.drafts[0] == Draft(wanted.drafts[0].payload):
            seq = log.append(wanted.drafts[0].payload)
        else:
            seq = log.append_draft(wanted.drafts[0])
        ledger.commit()
        say(f"answered {seq} {thread} {number}")


def disturb(ledger: Ledger, cycle: int, thread: int) -> None:
    """What else goes on in a ledger: rest, snapshots, compaction."""
    random = Random(f"{cycle}/{thread}")
    while True:
        match random.randrange(4):
            case 0:
                ledger.rest()
            case 1:
                ledger.sync()
            case 2:
                event_seq = ledger.events.next_seq - 1
                ledger.save_snapshot(event_seq, b"%d" % event_seq)
                say(f"snapshot {event_seq}")
            case _:
                low = random.randint(1, ledger.messages.durable_next_seq)
                say(f"removing {low}")
                Compactor(ledger, ledger.messages, Kept(low), Retention(), ManualClock()).run()


def _guarded(do: object, *arguments: object) -> None:
    try:
        do(*arguments)  # type: ignore[operator]
    except BaseException as error:
        say(f"error {error!r}")
        os._exit(1)


def main() -> None:
    """Fork a child for each line of orders."""
    fork_children(lambda line: live(Orders(**json.loads(line))))
