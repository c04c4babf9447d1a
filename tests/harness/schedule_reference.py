"""Schedules in plain Python, to hold the real ones against: every tick is looked at by itself."""

from dataclasses import dataclass, field

NS = 1_000_000_000


@dataclass
class Plan:
    """A schedule with an interval, and how far it got."""

    every_s: int
    misfire: str
    grace_s: int
    catch_up_max: int
    anchor: int  # when its times were put
    done: int  # ticks up to here are dealt with
    paused: bool = False
    fired: int = 0
    last_due: int = 0
    last_missed: int = 0

    def next(self) -> int:
        if self.paused:
            return 0
        at = self.anchor + self.every_s * NS
        while at <= self.done:
            at += self.every_s * NS
        return at

    def due(self, now: int) -> list[int]:
        """Return the ticks that get a message, and note all that are due as dealt with."""
        ticks: list[int] = []
        while 0 < (at := self.next()) <= now:
            ticks.append(at)
            self.done = at
        on_time = [at for at in ticks if now - at <= self.grace_s * NS]
        missed = [at for at in ticks if at not in on_time]
        chosen = on_time
        if self.misfire == "all":
            chosen = missed[-self.catch_up_max :] + on_time
        elif self.misfire == "once" and not on_time:
            chosen = missed[-1:]
        for at in ticks:
            if at not in chosen:
                self.last_missed = at
        if chosen:
            self.fired += len(chosen)
            self.last_due = chosen[-1]
        return chosen


@dataclass
class Plans:
    """All schedules of a queue, by name."""

    plans: dict[str, Plan] = field(default_factory=dict)

    def due(self, now: int) -> list[tuple[str, int]]:
        """Return (name, tick) of each message that is published now, in order."""
        order = sorted((plan.next(), name) for name, plan in self.plans.items())
        return [
            (name, at)
            for first, name in order
            if 0 < first <= now
            for at in self.plans[name].due(now)
        ]

    def shown(self) -> list[tuple[str, bool, int, int, int, int]]:
        return [
            (name, plan.paused, plan.next(), plan.fired, plan.last_due, plan.last_missed)
            for name, plan in sorted(self.plans.items())
        ]
