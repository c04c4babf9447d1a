"""A queue in plain Python to hold the real one against: slow, obvious, and nothing of it shared.

Times are nanoseconds. It is told the time, and what the real queue's ids and receipts are; all it
decides is which message is where.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NS = 1_000_000_000
HEAD_START_NS = 5 * NS  # of tenants that were not served lately
LEVEL_NS = 60 * NS  # ageing: so long a wait counts as one priority more
BACKOFF_BASE_NS = NS // 10
BACKOFF_MAX_NS = 60 * NS
MAX_ATTEMPTS = 2


@dataclass(frozen=True)
class Post:
    """A message as it was published."""

    id: str
    seq: int
    published: int
    priority: int = 5
    deliver_at: int = 0
    expires: int = 0
    key: str | None = None
    max_attempts: int = MAX_ATTEMPTS
    after: tuple[int, ...] = ()  # seqs
    runs_anyway: bool = False
    tenant: str = ""


@dataclass(frozen=True)
class Bucket:
    """A limit: so many at a time, and so many in a time."""

    most: int = 0  # 0: no limit
    interval: int = 0  # 0: no limit
    burst: int = 1

    def lets(self, in_flight: int, due: int, now: int) -> bool:
        is_full = 0 < self.most <= in_flight
        return not is_full and due - (self.burst - 1) * self.interval <= now


@dataclass(frozen=True)
class Rules:
    """The limits of a queue."""

    queue: Bucket = Bucket()
    tenant: Bucket = Bucket()
    fair: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Rules":
        def bucket(most: str, rate: str, burst: str) -> Bucket:
            per_s = settings.get(rate, 0)
            first = settings.get(burst, 0) or max(int(per_s), 1)
            return Bucket(settings.get(most, 0), round(NS / per_s) if per_s else 0, first)

        return cls(
            bucket("max_in_flight", "delivery_rate_per_s", "delivery_burst"),
            bucket("tenant_max_in_flight", "tenant_rate_per_s", "tenant_burst"),
            settings.get("fair", False),
        )

    @property
    def has_tenants(self) -> bool:
        return self.fair or self.tenant != Bucket()


@dataclass
class Counts:
    """What the limits of a group count, as it was delivered."""

    dues: dict[str | None, int] = field(default_factory=dict)  # of rates; None: the queue's own
    served: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    number: int = 0

    def copy(self) -> "Counts":
        return Counts(dict(self.dues), dict(self.served), self.number)

    def deliver(self, place: "Place", rules: Rules, now: int) -> None:
        for whose, bucket in ((None, rules.queue), (place.post.tenant, rules.tenant)):
            if bucket.interval:
                self.dues[whose] = max(self.dues.get(whose, 0), now) + bucket.interval
        self.number += 1
        self.served[place.post.tenant, place.post.priority] = now, self.number

    def reopen(self, rules: Rules, now: int) -> None:
        """A clock that was set back does not keep anyone waiting for longer than a burst."""
        for whose, due in self.dues.items():
            bucket = rules.queue if whose is None else rules.tenant
            self.dues[whose] = min(due, now + bucket.burst * bucket.interval)


@dataclass
class Place:
    """Where a message that is not done stands in a group."""

    post: Post
    due: int
    state: str = "waiting"  # or leased, or dead
    attempt: int = 0
    receipt: str = ""
    ends: int = 0  # of the lease, on the monotonic clock
    deadline: int = 0  # of the lease, on the queue's clock
    length: int = 0
    timed_out: bool = False
    has_failed: bool = False
    was_dead: bool = False  # a dead letter, also while it is handed out
    missing: set[int] = field(default_factory=set)  # messages before it that are not settled
    is_lost: bool = False  # one of them will never be done
    died_of_others: bool = False


@dataclass
class Reader:
    """One consumer group. Only `main` heeds what messages come after."""

    places: dict[int, Place] = field(default_factory=dict)
    is_main: bool = False
    gone: set[int] = field(default_factory=set)  # will never be done
    rules: Rules = Rules()
    delivered: Counts = field(default_factory=Counts)

    def in_flight(self) -> "Counter[str | None]":
        """How many are leased, by tenant and in all (None)."""
        places = self.places.values()
        leased = [p.post.tenant for p in places if p.state == "leased" and not p.was_dead]
        counts: Counter[str | None] = Counter(leased)
        counts[None] = len(leased)
        return counts

    def next_limited(self, count: int, now: int) -> tuple[list[Place], list[Place]]:
        """As `next_ones`, with limits and turns: one by one, each as if it were leased."""
        rules, delivered, in_flight = self.rules, self.delivered.copy(), self.in_flight()
        ready = [self.places[seq] for seq, state in self.states(now).items() if state == "ready"]
        chosen: list[Place] = []
        expired: list[Place] = []

        def turn(place: Place) -> tuple[int, int, int]:
            """Which is first of those with one priority."""
            post = place.post
            if not rules.fair:
                return place.due, 0, post.seq
            served, number = delivered.served.get((post.tenant, post.priority), (0, 0))
            return max(served, place.due - HEAD_START_NS), number, post.seq

        def level(place: Place) -> tuple[int, int, int]:
            """Which is first of those that are first of their priorities."""
            post, since = place.post, place.due
            if rules.fair:
                since = max(delivered.served.get((post.tenant, post.priority), (0, 0))[0], since)
            risen = min(post.priority + (now - since) // LEVEL_NS, 9)
            return -risen, since, -post.priority

        while len(chosen) < count:
            firsts: dict[tuple[str, int], Place] = {}
            for place in sorted(ready, key=lambda one: (one.due, one.post.seq)):
                firsts.setdefault((place.post.tenant, place.post.priority), place)
            free = [
                place
                for place in firsts.values()
                if rules.tenant.lets(
                    in_flight[place.post.tenant], delivered.dues.get(place.post.tenant, 0), now
                )
            ]
            if not free or not rules.queue.lets(in_flight[None], delivered.dues.get(None, 0), now):
                break
            tops = {one.post.priority: one for one in sorted(free, key=turn, reverse=True)}
            place = min(tops.values(), key=level)
            ready.remove(place)
            if 0 < place.post.expires <= now:
                expired.append(place)  # as if it had never been there
                continue
            chosen.append(place)
            in_flight.update([place.post.tenant, None])
            delivered.deliver(place, rules, now)
        return chosen, expired

    def add(self, post: Post) -> None:
        place = self.places[post.seq] = Place(post, max(post.published, post.deliver_at))
        if not self.is_main:
            return
        for seq in post.after:
            earlier = self.places.get(seq)
            if earlier is not None:
                place.missing.add(seq)
            elif seq in self.gone and not post.runs_anyway:
                place.is_lost = True
        if place.missing or place.is_lost:
            place.state = "blocked"

    def has_ended(self, seq: int) -> bool:
        """Done, removed, or a dead letter."""
        place = self.places.get(seq)
        return place is None or place.state == "dead" or place.was_dead

    def settle_dependents(self, now: int) -> None:
        """Let go, kill and bring back what comes after others, until nothing changes."""
        while self.is_main and any(self._settle_one(place, now) for place in self._blocked()):
            pass

    def _blocked(self) -> list[Place]:
        return [
            place
            for _, place in sorted(self.places.items())
            if place.state == "blocked" or (place.state == "dead" and place.died_of_others)
        ]

    def _settle_one(self, place: Place, now: int) -> bool:
        runs_anyway = place.post.runs_anyway
        for seq in list(place.missing):
            earlier = self.places.get(seq)
            if earlier is None:
                place.missing.remove(seq)
                place.is_lost |= seq in self.gone and not runs_anyway
        dead = {seq for seq in place.missing if self.places[seq].was_dead}
        if runs_anyway and dead == place.missing:
            place.missing = dead = set()
        fails = place.is_lost or bool(dead and not runs_anyway)
        if place.state == "blocked" and fails:
            place.state, place.was_dead, place.died_of_others = "dead", True, True
            place.has_failed = True
            return True
        if place.state == "dead" and not fails:
            self.places[place.post.seq] = self.redriven(place, now)
            return True
        if place.state == "blocked" and not place.missing:
            place.state = "waiting"
            place.due = max(place.due, now)
            return True
        return False

    def redriven(self, place: Place, now: int) -> Place:
        """The place of a dead letter that is tried again."""
        again = Place(place.post, now)
        again.missing = {seq for seq in place.missing if seq in self.places}
        if again.missing:
            again.state = "blocked"
        return again

    def fronts(self) -> dict[str, Place]:
        """Of each key, the message whose turn it is: one being worked on, or else the lowest."""
        fronts: dict[str, Place] = {}
        for _, place in sorted(self.places.items()):
            key = place.post.key
            first = key is not None and place.state == "waiting" and key not in fronts
            worked_on = place.state == "leased" and not place.was_dead
            if key is not None and (first or worked_on):
                fronts[key] = place
        return fronts

    def states(self, now: int) -> dict[int, str]:
        """Where each message stands; those that are not here are done."""
        fronts = self.fronts()
        states = {}
        for seq, place in self.places.items():
            if place.state != "waiting":
                states[seq] = place.state
            elif fronts.get(place.post.key or "", place) is not place:
                states[seq] = "parked"
            else:
                states[seq] = "ready" if place.due <= now else "scheduled"
        return states

    def counts(self, now: int) -> dict[str, int]:
        counts = dict.fromkeys(("ready", "scheduled", "leased", "parked", "blocked", "dead"), 0)
        for state in self.states(now).values():
            counts[state] += 1
        failed = [place for place in self.places.values() if place.has_failed]
        counts["retrying"] = sum(not place.was_dead for place in failed)
        return counts

    def waiting(self) -> list[Place]:
        """What is handed to nobody, and not dead, by seq."""
        return [
            place
            for _, place in sorted(self.places.items())
            if place.state in ("waiting", "blocked")
        ]

    def undelivered(self) -> int:
        """What a bounded queue counts; a dead letter that is handed out is in flight again."""
        return sum(place.state != "dead" for place in self.places.values())

    def next_ones(self, count: int, now: int) -> tuple[list[Place], list[Place]]:
        """What would be delivered, and what is found to be expired on the way to it."""
        if self.rules.has_tenants:
            return self.next_limited(count, now)
        bucket, in_flight = self.rules.queue, self.in_flight()[None]
        counts = self.delivered.copy()
        room = 0
        while room <= len(self.places) and bucket.lets(
            in_flight + room, counts.dues.get(None, 0), now
        ):
            room += 1
            if bucket.interval:
                counts.dues[None] = max(counts.dues.get(None, 0), now) + bucket.interval

        def turn(place: Place) -> tuple[int, int, int, int]:
            post = place.post
            level = min(post.priority + (now - place.due) // LEVEL_NS, 9)
            return -level, place.due, -post.priority, post.seq

        ready = [self.places[seq] for seq, state in self.states(now).items() if state == "ready"]
        chosen: list[Place] = []
        expired: list[Place] = []
        for place in sorted(ready, key=turn):
            if len(chosen) == min(count, room):
                break
            (expired if 0 < place.post.expires <= now else chosen).append(place)
        return chosen, expired

    def forget(self, places: list[Place], *, done: bool = False) -> None:
        for place in places:
            del self.places[place.post.seq]
            if not done:
                self.gone.add(place.post.seq)

    def holder_of(self, receipt: str, *, late_is_fine: bool = False) -> Place | None:
        """The place that a receipt may settle."""
        for place in self.places.values():
            late = late_is_fine and place.timed_out and place.state != "leased"
            if place.receipt == receipt and (place.state == "leased" or late):
                return place
        return None

    def fail(self, place: Place, now: int, delay: int | None = None) -> None:
        place.has_failed = True
        if place.was_dead or place.attempt >= place.post.max_attempts:
            place.state, place.was_dead, place.died_of_others = "dead", True, False
            return
        if delay is None:
            delay = min(BACKOFF_BASE_NS * 2 ** (place.attempt - 1), BACKOFF_MAX_NS)
        place.state, place.due = "waiting", now + delay

    def end_leases(self, now: int, mono: int) -> None:
        for place in self.places.values():
            if place.state == "leased" and place.ends <= mono:
                place.timed_out = True
                self.fail(place, now)

    def expire_keyed(self, now: int) -> None:
        """A message with a key frees it when it expires, unless it is being worked on."""
        for place in list(self.places.values()):
            over = 0 < place.post.expires <= now
            watched = place.post.key is not None or (self.is_main and place.post.after)
            if over and watched and place.state in ("waiting", "blocked"):
                self.forget([place])

    def seek(self, target: int, posts: list[Post]) -> None:
        self.places = {s: p for s, p in self.places.items() if p.was_dead and s < target}
        self.gone = {seq for seq in self.gone if seq < target}
        for place in self.places.values():
            place.state = "dead"
            place.missing = {seq for seq in place.missing if seq in self.places}
            place.died_of_others &= bool(place.missing)
        for post in posts:
            if post.seq >= target:
                self.add(post)
