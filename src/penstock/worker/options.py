"""The options of a worker. `docs/worker.md` lists them; a test compares the two."""

from dataclasses import dataclass

from penstock.checking import check_number, check_whole
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME
from penstock.names import check_name
from penstock.queue.events import as_written
from penstock.queue.settings import MAX_LEASE_S

MAX_HELD = 10_000  # messages that a worker may have leased


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of a worker."""

    concurrency: int = 1  # calls of the handler at a time
    batch: int = 1  # messages a call; above 1 the handler is given a list
    lease_s: float = 30.0  # renewed as long as the handler works
    prefetch: int = 500  # maximum number of calls whose messages are leased ahead; 0: none
    time_limit_s: float | None = None  # for one call of the handler
    stop_s: float = 20.0  # how long a stop waits for what is under way; then it is handed back
    idle_s: float | None = None  # stop when nothing came for so long; None: never
    group: str = MAIN_GROUP_NAME
    holder: str | None = None  # shown by `why` and `history`; None: host and process

    def __post_init__(self) -> None:
        check_name("group", self.group)
        if self.holder is not None:
            as_written("holder", self.holder)  # checks its type
        check_whole("concurrency", self.concurrency, 1, 10_000)
        check_whole("batch", self.batch, 1, 10_000)
        check_whole("prefetch", self.prefetch, 0, 10_000)
        check_number("lease_s", self.lease_s, 0.1, MAX_LEASE_S)
        check_number("stop_s", self.stop_s, 0, 86400)
        for name in ("time_limit_s", "idle_s"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, 30 * 86400)
        if self.concurrency * self.batch > MAX_HELD:
            raise InvalidInput(
                f"concurrency {self.concurrency} times batch {self.batch} is more than the "
                f"{MAX_HELD} messages that a worker may hold"
            )
