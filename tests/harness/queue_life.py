"""Long lives of the queue machine, drawn by a seed: hypothesis looks wide, these look deep."""

from random import Random

from penstock.queue import NewMessage
from tests.harness.queue_machine import DEDUP_IDS, QueueMachine

GROUPS = ("main", "main", "main", "audit", "other")
OUTCOMES = ("nack", "nack", "nack", "nack_later", "ack", "emit", "extend", "release")
# What throws much away comes seldom, or nothing would ever grow old.
OPERATIONS = (
    *("redrive",) * 8,
    *("lease_dead",) * 4,
    *("cancel", "compact", "check", "resume", "create_group") * 3,
    *("discard", "purge", "seek", "delete_group", "pause"),
)


class Life:
    """One machine, and what it is told to do."""

    def __init__(self, machine: QueueMachine, seed: str) -> None:
        self.machine = machine
        self.random = Random(seed)
        self.name = seed

    def live(self, steps: int) -> None:
        for number in range(steps):
            try:
                self._step()
                self.machine.counts_agree()
            except Exception as error:
                raise AssertionError(f"life {self.name!r}, step {number}: {error!r}") from error

    def _step(self) -> None:
        machine, random = self.machine, self.random
        pick = random.randrange(1 << 16)
        match random.choices(range(10), (3, 3, 5, 5, 1, 5, 5, 1, 4 if pick % 8 else 8, 1))[0]:
            case 0:
                machine.enqueue_plain(random.randint(1, 3), random.random() < 0.5)
            case 1:
                new = [self._new_message() for _ in range(random.randint(1, 3))]
                links = [random.randrange(1 << 16) for _ in range(random.choice((0, 0, 1, 2, 4)))]
                machine.publish(new, links)
            case 2:
                machine.lease(random.choice(GROUPS), random.randint(1, 4), random.choice((3, 10)))
            case 3:
                machine.work(random.choice(GROUPS), random.randint(1, 3), random.choice(OUTCOMES))
            case 4:
                machine.dequeue(random.choice(GROUPS), random.randint(1, 2))
            case 5:
                machine.settle(pick, random.choice(OUTCOMES))
            case 6:
                machine.time_passes(random.choice((0.05, 0.1, 0.2, 0.4, 1, 4, 30, 100)))
            case 7:
                if random.random() < 0.5:
                    machine.the_wall_clock_jumps(random.choice((-1000, -3, 0.5, 5, 200)))
                else:
                    self._die(pick)
            case 9:
                change = random.choice(("put", "put", "pause", "resume", "remove"))
                every_s, misfire = random.choice((45, 200)), random.choice(("skip", "once", "all"))
                machine.schedule(change, random.choice("abc"), every_s, misfire)
            case _:
                operation = random.choice(OPERATIONS)
                machine.operate(operation, random.choice(GROUPS), random.choice((None, pick)))

    def _die(self, pick: int) -> None:
        if self.machine.recorded and pick % 3 == 0:
            self.machine.store.cut_power(pick)
            self.machine.reopened()
        else:
            self.machine.die(pick % 3 == 1)

    def _new_message(self) -> NewMessage:
        random = self.random
        ids = (None,) * 20 + (*"xyxy", *DEDUP_IDS)
        return NewMessage(
            payload=b"payload",
            priority=random.choice((None, None, 0, 5, 6, 9)),
            delay=random.choice((None, None, None, 0, 1, 5, 90)),
            ttl=random.choice((None,) * 6 + (0, 3, 30)),
            key=random.choice((None, "a", "a", "b")),
            dedup_id=random.choice(ids),
            max_attempts=random.choice((None, 1, 1, 2, 4)),
            tenant=random.choice((None, "acme", "acme", "acme", "bolt")),
        )
