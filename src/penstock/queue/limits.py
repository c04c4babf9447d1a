"""Limits on deliveries: how many messages may be leased at a time, and how many in a time.

They hold for each group of a queue, over all its consumers. A `Gate` is the fold of the leases of
a group, or of one tenant in it, so it is the same after a restart. Pure: no file, no clock, no
lock.
"""

from typing import NamedTuple

from penstock.model import NS
from penstock.queue.settings import QueueSettings

NO_LIMIT = 1 << 62
_MAX_INTERVAL_NS = 100 * 365 * 86400 * NS  # of the slowest rate: times stay within 64 bits


class Limit(NamedTuple):
    """What one gate lets through. In any time of t seconds: at most burst + t * rate deliveries."""

    max_in_flight: int = 0  # 0: no limit
    interval_ns: int = 0  # between two deliveries of a steady rate; 0: no limit
    slack_ns: int = 0  # how much sooner deliveries may come: the burst without its first

    @classmethod
    def of(cls, max_in_flight: int, rate_per_s: float, burst: float) -> "Limit | None":
        """Return a limit, or None if nothing is limited. `burst` 0: the messages of one second."""
        if not max_in_flight and not rate_per_s:
            return None
        if not rate_per_s:
            return cls(max_in_flight)
        interval_ns = max(round(min(NS / rate_per_s, _MAX_INTERVAL_NS)), 1)
        most = max(int(burst or rate_per_s), 1)
        return cls(max_in_flight, interval_ns, (most - 1) * interval_ns)

    @property
    def burst(self) -> int:
        """How many deliveries may come at once, after a long time without any; 0: no limit."""
        return self.slack_ns // self.interval_ns + 1 if self.interval_ns else 0


class Limits(NamedTuple):
    """The limits of a queue, and how it shares between tenants."""

    queue: Limit | None = None
    tenant: Limit | None = None
    fair: bool = False

    @classmethod
    def of(cls, settings: QueueSettings) -> "Limits | None":
        """Return the limits that settings say; None if there are none."""
        made = cls(
            Limit.of(settings.max_in_flight, settings.delivery_rate_per_s, settings.delivery_burst),
            Limit.of(
                settings.tenant_max_in_flight, settings.tenant_rate_per_s, settings.tenant_burst
            ),
            settings.fair,
        )
        return made if made.queue or made.has_tenants else None

    @property
    def has_tenants(self) -> bool:
        """Return whether it matters of which tenant a message is."""
        return self.fair or self.tenant is not None


class Gate:
    """The leases that a limit counts, and when the next delivery of the rate is due.

    The rate is a token bucket, kept as one time (GCRA): `due_ns` moves on by the interval with each
    delivery, and is never before it. A delivery may come `slack_ns` before `due_ns`.

    >>> gate = Gate(Limit.of(2, rate_per_s=1, burst=3))
    >>> for _ in range(2): gate.delivered(5 * NS); gate.in_flight += 1
    >>> gate.room(5 * NS), gate.free_ns(5 * NS)
    (0, 5000000000)
    >>> gate.in_flight = 0
    >>> gate.room(5 * NS), gate.room(7 * NS), gate.burst_used(5 * NS)
    (1, 2, 2.0)
    """

    __slots__ = ("due_ns", "in_flight", "limit")

    def __init__(self, limit: Limit | None) -> None:
        self.limit = limit
        self.in_flight = 0
        self.due_ns = 0

    def copy(self) -> "Gate":
        made = Gate(self.limit)
        made.in_flight, made.due_ns = self.in_flight, self.due_ns
        return made

    @property
    def is_full(self) -> bool:
        """Return whether as many are leased as may be."""
        limit = self.limit
        return limit is not None and 0 < limit[0] <= self.in_flight

    def free_ns(self, now_ns: int) -> int:
        """Return when the rate lets the next one through: now, or later."""
        limit = self.limit
        if limit is None or not limit[1]:
            return now_ns
        return max(self.due_ns - limit[2], now_ns)

    def is_open(self, now_ns: int) -> bool:
        """Return whether a message may be delivered now."""
        limit = self.limit
        return limit is None or (
            not 0 < limit[0] <= self.in_flight
            and (not limit[1] or self.due_ns - limit[2] <= now_ns)
        )

    def room(self, now_ns: int) -> int:
        """Return how many messages may be delivered now."""
        limit = self.limit
        if limit is None:
            return NO_LIMIT
        room = limit.max_in_flight - self.in_flight if limit.max_in_flight else NO_LIMIT
        if limit.interval_ns:
            late_ns = now_ns + limit.slack_ns - max(self.due_ns, now_ns)
            room = min(room, late_ns // limit.interval_ns + 1)
        return max(room, 0)

    def burst_used(self, now_ns: int) -> float:
        """Return how much of the burst is used. It comes back at the rate."""
        limit = self.limit
        if limit is None or not limit.interval_ns:
            return 0.0
        return min(max(self.due_ns - now_ns, 0) / limit.interval_ns, limit.burst)

    def delivered(self, at_ns: int) -> None:
        """Count a delivery for the rate."""
        limit = self.limit
        if limit is not None and limit[1]:
            self.due_ns = max(self.due_ns, at_ns) + limit[1]

    def rebase(self, now_ns: int) -> None:
        """After a restart: wait no longer than after a whole burst just now. The limit may have
        been another before, and the clock may have been set back."""
        limit = self.limit
        if limit is None or not limit.interval_ns:
            self.due_ns = 0
        else:
            self.due_ns = min(self.due_ns, now_ns + limit.slack_ns + limit.interval_ns)
