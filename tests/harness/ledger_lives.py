"""The lives that the crash ring runs: short, each about one thing, and mixed ones."""

from collections.abc import Callable

from penstock.codec import Draft
from tests.harness.ledger_life import LedgerLife

Plot = Callable[[LedgerLife], None]


def single_appends(life: LedgerLife) -> None:
    for _ in range(3):
        life.publish()
        life.note()
    life.sync()
    life.publish()
    life.publish()
    life.close()


def equal_sizes(life: LedgerLife) -> None:
    """What was cut off and what is written in its place have the same length."""
    for _ in range(3):
        life.publish(Draft(life.payload(20)))
    life.sync()
    for _ in range(3):
        life.publish(Draft(life.payload(20)))


def batches(life: LedgerLife) -> None:
    life.publish_batch(3)
    life.publish()
    life.note(2)
    life.sync()
    life.publish_batch(2)
    life.publish_batch(4)
    life.close()


def rotation(life: LedgerLife) -> None:
    for number in range(12):
        life.publish(life.draft(100))
        if number % 5 == 0:
            life.note()
    life.publish_batch(8)  # larger than what is left of the segment


def large_entries(life: LedgerLife) -> None:
    """Larger than a segment, than a page, and than a growth step."""
    life.publish(life.draft(30))
    life.publish(life.draft(1500))
    life.publish(life.draft(3900))
    life.publish()
    life.publish_batch(9)


def resting_and_reopening(life: LedgerLife) -> None:
    life.publish()
    life.rest()
    life.publish()
    life.note()
    life.reopen()
    life.publish()
    life.publish(life.draft(300))
    life.publish(life.draft(300))
    life.rest()
    life.rest()
    life.publish()
    life.reopen()
    life.note()


def snapshots(life: LedgerLife) -> None:
    for _ in range(3):
        life.note(3)
        life.note()
        life.snapshot()
    life.note(9)
    life.note(9)
    life.snapshot()
    life.forget_events()
    life.note()
    life.reopen()
    life.note()


def removal(life: LedgerLife) -> None:
    """Segments go from the front, several at a time."""
    for _ in range(12):
        life.publish(life.draft(120))
    life.compact("messages", keep=lambda seq: seq > 8, rewrite_below=0)
    life.publish()
    life.compact("messages", keep=lambda seq: seq > 20, rewrite_below=0)
    life.publish()
    life.reopen()
    life.publish()


def rewriting(life: LedgerLife) -> None:
    """A few live entries hold many segments, which become one."""
    for _ in range(15):
        life.publish(life.draft(130))
    life.compact("messages", keep=lambda seq: seq in (3, 9, 10), rewrite_below=0.6)
    life.publish()
    life.compact("messages", keep=lambda seq: seq in (9, 15), rewrite_below=1)
    life.publish()
    life.reopen()
    life.publish(life.draft(400))
    life.publish(life.draft(400))
    life.compact("messages", keep=lambda seq: seq > 15, rewrite_below=1)


def emptied(life: LedgerLife) -> None:
    """Everything is removed that can be; the seqs go on all the same."""
    for _ in range(6):
        life.publish(life.draft(200))
    life.compact("messages", keep=lambda seq: False, rewrite_below=1)
    life.reopen()
    life.compact("messages", keep=lambda seq: False, rewrite_below=1)
    life.publish()
    life.reopen()


def mixed(life: LedgerLife) -> None:
    """Anything in any order, as the life's own seed has it."""
    choose = life.random
    for _ in range(25):
        match choose.randrange(16):
            case 0 | 1 | 2 | 3:
                life.publish()
            case 4:
                life.publish(life.draft(choose.choice((100, 400, 1000))))
            case 5 | 6:
                life.publish_batch(choose.randint(2, 6))
            case 7 | 8:
                life.note()
            case 9:
                life.note(choose.randint(2, 5))
            case 10:
                life.sync()
            case 11:
                life.rest()
            case 12:
                life.reopen()
            case 13:
                life.snapshot()
                if choose.random() < 0.5:
                    life.forget_events()
            case _:
                part = choose.random()
                kept = {seq for seq in range(1, 200) if choose.random() < part}
                below = choose.choice((0, 0.5, 1))
                life.compact("messages", keep=kept.__contains__, rewrite_below=below)


def go_on(life: LedgerLife) -> None:
    """What follows a crash: a little of something."""
    match life.random.randrange(5):
        case 0:
            life.publish(Draft(life.payload(20)))
            life.note()
        case 1:
            life.publish_batch(3)
            life.publish(life.draft(500))
        case 2:
            life.forget_events()
            life.note()
            life.snapshot()
        case 3:
            kept = {seq for seq in range(1, 200) if life.random.random() < 0.2}
            life.compact("messages", keep=kept.__contains__, rewrite_below=1)
            life.publish()
        case _:
            life.close()


PLOTS: dict[str, Plot] = {
    plot.__name__: plot
    for plot in (
        single_appends,
        equal_sizes,
        batches,
        rotation,
        large_entries,
        resting_and_reopening,
        snapshots,
        removal,
        rewriting,
        emptied,
    )
}
