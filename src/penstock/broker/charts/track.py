"""The history of one queue, and what each sample adds to it.

Counts are differences of totals that the queue keeps anyway; percentiles come from the difference
of two histograms. So recording costs nothing for each message.
"""

from collections.abc import Sequence
from operator import add, sub
from typing import NamedTuple

from penstock.broker.charts.rows import (
    N_COUNTS,
    N_LEVELS,
    RINGS,
    Codes,
    Rows,
    code_of,
    rows_of,
    value_of,
)
from penstock.broker.store import QueueSample
from penstock.model import Stats
from penstock.queue.metrics import Histogram, percentiles_of

_NO_TIMES = (0, 0, 0)
_NOTHING = (0,) * N_COUNTS
Buckets = tuple[int, list[int]]  # the number of durations, and their histogram


class Levels(NamedTuple):
    """What a queue holds at one moment, in all groups."""

    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    parked: int = 0
    dead: int = 0
    oldest_age_s: float = 0.0
    size_bytes: int = 0


class Totals(NamedTuple):
    """What happened in a queue since it was made, in all groups."""

    published: int = 0
    delivered: int = 0
    acked: int = 0
    failed: int = 0  # attempts, whatever came of it
    dead_lettered: int = 0


def levels_of(sample: QueueSample) -> Levels:
    """Return what a queue holds, in all groups."""
    stats = sample.stats
    groups = [*stats.groups.values()]
    if len(groups) == 1:  # the usual case, four times as fast
        one = groups[0]
        held = one.ready, one.scheduled, one.leased, one.parked, one.dead
        age_s = one.oldest_ready_age_s
    else:
        sums = zip(
            *[(g.ready, g.scheduled, g.leased, g.parked, g.dead) for g in groups], strict=True
        )
        held = tuple(map(sum, sums))  # type: ignore[assignment]
        age_s = max([one.oldest_ready_age_s for one in groups])
    return Levels(*held, age_s + sample.passed_s if held[0] else 0.0, stats.storage.log_bytes)


def totals_of(stats: Stats) -> Totals:
    """Return what happened in a queue, in all groups."""
    groups = stats.groups.values()
    dead = sum([one.dead_lettered for one in groups])
    return Totals(
        stats.published,
        sum([one.delivered for one in groups]),
        sum([one.acked for one in groups]),
        sum([one.nacked + one.timed_out for one in groups]) + dead,
        dead,
    )


class Track:
    """The rows of one queue, or of all queues of a broker, in every ring."""

    __slots__ = ("rings",)

    def __init__(self) -> None:
        self.rings = tuple(Rows(kind.steps) for kind in RINGS)

    def clear(self) -> None:
        for rows in self.rings:
            rows.clear()

    @property
    def size_bytes(self) -> int:
        return sum(rows.size_bytes for rows in self.rings)

    def record(
        self,
        ended: Sequence[int | None],
        counts: Sequence[int],
        levels: Levels,
        times: Sequence[Codes],
        *,
        is_needed: bool,
    ) -> None:
        """Record the steps that ended, one of each ring or None, with their percentiles.

        A longer step is the sum of the short ones, also of those before a restart. Without
        `is_needed`, a longer step is recorded only if a short one in it was.
        """
        if not is_needed and ended[1] is None and ended[2] is None:
            return
        held = [code_of(level) for level in levels]
        for ring, step in enumerate(ended):
            if step is None:
                continue
            if ring == 0:
                if is_needed:
                    self.rings[0].add(step, [*map(code_of, counts), *held, *times[0]])
                continue
            per = RINGS[ring].step_s // RINGS[0].step_s
            of_step = range(step * per, (step + 1) * per)
            found = rows_of(self.rings[0].since(of_step.start))
            short = [codes[:N_COUNTS] for at, codes in found if at in of_step]
            if short:
                sums = [code_of(sum(map(value_of, one))) for one in zip(*short, strict=True)]
                self.rings[ring].add(step, [*sums, *held, *times[ring]])

    def last_levels(self) -> Levels:
        """Return what was held at the end of the last step."""
        last = max(
            (
                (rows.last_step * kind.step_s, rows)
                for kind, rows in zip(RINGS, self.rings, strict=True)
            ),
            key=lambda one: one[0],
        )[1]
        for _, codes in rows_of(last.since(last.last_step)):
            held = [value_of(code) for code in codes[N_COUNTS : N_COUNTS + N_LEVELS]]
            ready, scheduled, leased, parked, dead = map(round, held[:5])
            return Levels(ready, scheduled, leased, parked, dead, held[5], round(held[6]))
        return Levels()


class Durations:
    """The durations in the current step of each ring, by what a histogram held at its start."""

    __slots__ = ("_at_start",)

    def __init__(self) -> None:
        self._at_start: list[tuple[int, Sequence[int]]] = [(0, ())] * len(RINGS)

    def end_step(self, ring: int, now: Histogram | None) -> Buckets | None:
        """Return the durations of a step that ended; None if there are none."""
        if now is None:
            self._at_start[ring] = 0, ()
            return None
        count, buckets = self._at_start[ring]
        if now.count == count:
            return None
        if now.count < count:  # the queue was opened anew
            count, buckets = 0, ()
        current = now.buckets()
        self._at_start[ring] = now.count, current
        return now.count - count, list(map(sub, current, buckets)) if buckets else current


class Recorder:
    """Samples of one queue, turned into rows of its track."""

    __slots__ = ("_levels", "_marks", "_stats", "_wait", "_work", "totals", "track")

    def __init__(self, track: Track, totals: Totals, mono_ns: int) -> None:
        self.track = track
        self.totals = totals
        self._levels: Levels | None = None
        self._stats: Stats | None = None
        self._marks = [(mono_ns, totals)]  # the last two samples, for rates
        self._wait, self._work = Durations(), Durations()

    def rates(self, totals: Totals, mono_ns: int) -> tuple[float, float, float]:
        """Return messages published, acked and failed per second, over 10 to 20 seconds."""
        at_ns, before = self._marks[0]
        passed_s = (mono_ns - at_ns) / 1e9
        if passed_s <= 0:
            return 0.0, 0.0, 0.0
        return (
            max(totals.published - before.published, 0) / passed_s,
            max(totals.acked - before.acked, 0) / passed_s,
            max(totals.failed - before.failed, 0) / passed_s,
        )

    def record(
        self, sample: QueueSample, ended: Sequence[int | None], mono_ns: int, into: "OverallSums"
    ) -> None:
        """Record the steps that ended, and add them to those of the broker."""
        levels = levels_of(sample)
        if sample.stats is self._stats:  # nothing happened
            self._marks = [*self._marks[-1:], (mono_ns, self.totals)]
            into.add(_NOTHING, levels)
            if ended[1] is not None or ended[2] is not None:
                self._record(sample, ended, _NOTHING, levels, into, has_changed=False)
            return
        totals = totals_of(sample.stats)
        counts = [max(one, 0) for one in map(sub, totals, self.totals)]
        has_changed = self._levels is None or levels[:5] != self._levels[:5] or any(counts)
        self._stats, self.totals, self._levels = sample.stats, totals, levels
        self._marks = [*self._marks[-1:], (mono_ns, totals)]
        into.add(counts, levels)
        self._record(sample, ended, counts, levels, into, has_changed=has_changed)

    def _record(
        self,
        sample: QueueSample,
        ended: Sequence[int | None],
        counts: Sequence[int],
        levels: Levels,
        into: "OverallSums",
        *,
        has_changed: bool,
    ) -> None:
        times: list[Codes] = []
        for ring, step in enumerate(ended):
            wait = None if step is None else self._wait.end_step(ring, sample.wait)
            work = None if step is None else self._work.end_step(ring, sample.work)
            into.add_times(ring, wait, work)
            times.append((*_codes(wait), *_codes(work)))
        self.track.record(ended, counts, levels, times, is_needed=has_changed)


class OverallSums:
    """The queues of one broker, added up."""

    def __init__(self) -> None:
        self._counts = [0] * N_COUNTS
        self._levels: list[float] = [0] * N_LEVELS
        self._oldest_age_s = 0.0
        self._times: list[list[Buckets | None]] = [[None, None] for _ in RINGS]

    def add(self, counts: Sequence[int], levels: Levels) -> None:
        self._counts = list(map(add, self._counts, counts))
        self._levels = list(map(add, self._levels, levels))
        if levels.oldest_age_s > self._oldest_age_s:
            self._oldest_age_s = levels.oldest_age_s

    def add_times(self, ring: int, *found: Buckets | None) -> None:
        sums = self._times[ring]
        for at, one in enumerate(found):
            old = sums[at]
            if one is not None:
                sums[at] = one if old is None else (old[0] + one[0], list(map(add, old[1], one[1])))

    def record(self, track: Track, ended: Sequence[int | None]) -> None:
        """Record the steps that ended, changed or not: they show that the broker ran."""
        times = [(*_codes(wait), *_codes(work)) for wait, work in self._times]
        ready, scheduled, leased, parked, dead, _, size_bytes = map(int, self._levels)
        levels = Levels(ready, scheduled, leased, parked, dead, self._oldest_age_s, size_bytes)
        track.record(ended, self._counts, levels, times, is_needed=True)


def _codes(found: Buckets | None) -> Codes:
    if found is None:
        return _NO_TIMES
    return tuple(map(code_of, percentiles_of(found[1], found[0])))
