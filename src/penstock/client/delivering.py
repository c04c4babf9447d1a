"""Calls that lease. Sent again only if nothing can have been leased, unless the caller says so."""

from penstock.checking import Duration, check_seconds, check_whole
from penstock.client.call import Call, Reply, Story, post
from penstock.client.reading import leased_of
from penstock.client.settling import ack
from penstock.clock import Clock
from penstock.model import NS, LeasedMessage, Message, Settler
from penstock.queue.events import as_written
from penstock.queue.settings import MAX_LEASE_S, MIN_LEASE_S, YEARS_S
from penstock.queue.streaming import Stopper, is_stopped

# One request waits no longer: what lies between client and broker cuts idle connections sooner or
# later, and a broker that stopped without a word is noticed.
LONGEST_POLL_S = 20.0
STOPPABLE_POLL_S = 2.0  # of a wait that can be stopped: a request that is sent is waited for
_MOST_AT_ONCE = 10_000
_LONGEST_HOLDER = 256


class Lease:
    """What is to be leased, of which queue, and who settles it."""

    def __init__(
        self,
        path: str,
        settler: Settler,
        *,
        n: int,
        lease_s: Duration | None,
        group: str,
        holder: str,
        dead: bool = False,
        repeatable: bool = False,
    ) -> None:
        check_whole("n", n, 1, 1_000_000_000)
        self._path = f"{path}/lease"
        self._settler = settler
        self._group = group
        self._repeatable = repeatable
        self._body = {
            "max": min(n, _MOST_AT_ONCE),
            "lease_s": None
            if lease_s is None
            else check_seconds("lease_s", lease_s, MIN_LEASE_S, MAX_LEASE_S),
            "group": group,
            "holder": as_written("holder", holder)[:_LONGEST_HOLDER],
            "dead": dead or None,
        }

    def once(self, wait_s: float = 0.0) -> Call[list[LeasedMessage]]:
        return post(
            self._path,
            self._read,
            {**self._body, "wait_s": wait_s},
            query={"payload": "b64"},
            repeatable=self._repeatable,
            wait_s=wait_s,
        )

    def _read(self, reply: Reply) -> list[LeasedMessage]:
        return [leased_of(item, self._group, self._settler) for item in reply.data["messages"]]

    def waiting(
        self, wait_s: Duration, clock: Clock, stopper: Stopper | None = None
    ) -> Story[list[LeasedMessage]]:
        """Ask again until something came, the time is over, or it is stopped."""
        wait_s = check_seconds("wait_s", wait_s, 0, YEARS_S)
        poll_s = LONGEST_POLL_S if stopper is None else STOPPABLE_POLL_S
        ends_ns = clock.monotonic_ns() + round(wait_s * NS)
        leased: list[LeasedMessage] = []
        while not is_stopped(stopper):
            left_s = max(ends_ns - clock.monotonic_ns(), 0) / NS
            leased = yield self.once(min(left_s, poll_s))
            if leased or left_s <= poll_s:
                break
        return leased


def forget(streams: list[list[LeasedMessage]], ahead: list[LeasedMessage]) -> None:
    """Take a stream's list out of those that are open. By identity: two empty lists are equal."""
    streams[:] = [one for one in streams if one is not ahead]


def take(lease: Lease, wait_s: Duration, clock: Clock) -> Story[list[Message]]:
    """Lease and ack: what is answered is done with."""
    leased = yield from lease.waiting(wait_s, clock)
    if leased:
        yield ack([one.receipt for one in leased])
    return [one.message for one in leased]
