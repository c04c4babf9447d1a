"""Record the history of the queues of a broker, keep it over restarts, and show it.

Every ten seconds the owner of a queue looks at its counts. Longer steps are made of short ones. A
queue without any change gets no row. Each broker of a store adds its rows to documents that all of
them share, once a minute and when it stops, and learns the rows of the others on that occasion. The
history is a cache: a document that cannot be read is dropped, and an error delays the next save.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from penstock.broker.charts.reading import Range, columns, overall_columns, thinned
from penstock.broker.charts.rows import RINGS, SERIES, RingKind, Rows, is_valid, joined, rows_of
from penstock.broker.charts.track import (
    Levels,
    OverallSums,
    Recorder,
    Totals,
    Track,
    totals_of,
)
from penstock.broker.store import QueueSample, Store, update_document
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.model import NS, Stats
from penstock.names import QueueName

log = logging.getLogger("penstock.broker")

SAVE_S = 60.0
MAX_BYTES = 64 << 20  # of all rows; beyond it, the queues that changed last stay
SPARK_POINTS = 60
_AT_ONCE = 50  # queues recorded before other calls get their turn
_OVERALL = "*"  # before the owner, in keys of the rows of all queues of one broker


class Chart(NamedTuple):
    """Series of equally long steps. None in a series: not known, or there was nothing to measure.

    Counts are per second; the others are values at the end of a step, or percentiles of it.
    """

    start: float  # of the first step, Unix seconds
    step_s: int
    points: int
    series: Mapping[str, Sequence[float | None]]


class _Part(msgspec.Struct):
    """A document: the rows of one ring in a part of its time, by queue."""

    part: int
    rows: dict[str, bytes]


class Charts:
    """The history of the queues that one broker knows. Start it after the broker."""

    def __init__(self, store: Store, clock: Clock, is_known: Callable[[QueueName], bool]) -> None:
        """`is_known`: whether a queue exists; the rows of others are dropped."""
        self._store = store
        self._clock = clock
        self._is_known = is_known
        self._tracks: dict[str, Track] = {}
        self._recorders: dict[QueueName, Recorder] = {}
        self._current = [0] * len(RINGS)  # the step of each ring that has not ended
        self._saved = [0] * len(RINGS)  # the first step of each ring that may not be saved
        self._written: dict[str, int] = {}  # hashes of the documents as this broker wrote them
        self._task: asyncio.Task[None] | None = None
        self._own_key = _OVERALL  # of the rows of all queues of this broker
        self._has_begun = False  # queues that were open before are known
        self._turn = asyncio.Lock()

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Record from now on. What was saved before is read in the background."""
        if self._task is None:
            self._current = [int(self._now_s() // kind.step_s) for kind in RINGS]
            self._saved = list(self._current)
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Record the step that has not ended, and save everything."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        with suppress(PenstockError, OSError):
            await self._record(ends_now=True)
        await self._save()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        await self._load()
        with suppress(PenstockError, OSError):
            await self._begin()
        save_at = loop.time() + SAVE_S
        step_s = RINGS[0].step_s
        while True:
            await asyncio.sleep(step_s - self._now_s() % step_s + 0.001)
            try:
                await self._record()
                if loop.time() >= save_at:
                    save_at = loop.time() + SAVE_S
                    await self._save()
            except Exception as error:  # a gap in the charts, whatever it is, and no more
                log.warning("the charts have a gap: %s", error)

    def _now_s(self) -> float:
        return self._clock.now_ns() / NS

    # -- recording ---------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Note what the queues hold now: what happened before is in no step."""
        mono_ns = self._clock.monotonic_ns()
        for sample in (await self._store.sample()).queues:
            self._recorder(sample, None, mono_ns)
        self._has_begun = True

    def _recorder(self, sample: QueueSample, since: Stats | None, mono_ns: int) -> Recorder:
        """Return the recorder of a queue; a new one counts from `since`, or from now."""
        found = self._recorders.get(sample.queue)
        if found is None:
            totals = totals_of(since or sample.stats)
            found = Recorder(self._track(str(sample.queue)), totals, mono_ns)
            self._recorders[sample.queue] = found
        return found

    def _track(self, key: str) -> Track:
        found = self._tracks.get(key)
        if found is None:
            found = self._tracks[key] = Track()
        return found

    async def _record(self, *, ends_now: bool = False) -> None:
        """Record the steps that ended since the last time."""
        async with self._turn:
            now_s = self._now_s()
            current = [int(now_s // kind.step_s) for kind in RINGS]
            ended = [
                last if step > last or ends_now else None
                for step, last in zip(current, self._current, strict=True)
            ]
            if all(step is None for step in ended):
                return
            owner, samples = await self._store.sample()
            sums, mono_ns = OverallSums(), self._clock.monotonic_ns()
            for number, sample in enumerate(samples, start=1):
                opened = sample.opened if self._has_begun else None
                recorder = self._recorder(sample, opened, mono_ns)
                recorder.record(sample, ended, mono_ns, sums)
                if not number % _AT_ONCE:
                    await asyncio.sleep(0)
            self._has_begun, self._own_key = True, _OVERALL + owner
            sums.record(self._track(self._own_key), ended)
            self._current = current
            known = {sample.queue for sample in samples}
            for queue in [one for one in self._recorders if one not in known]:
                del self._recorders[queue]  # another broker owns it, or it was deleted
                if not self._is_known(queue):
                    self._tracks.pop(str(queue), None)

    # -- saving ------------------------------------------------------------------------------------

    async def _save(self) -> None:
        for ring in range(len(RINGS)):
            try:
                await self._save_ring(ring)
            except (PenstockError, OSError) as error:
                log.warning("the charts are not saved, which is tried again: %s", error)
        self._keep_within_bounds()

    async def _save_ring(self, ring: int) -> None:
        kind, first, end = RINGS[ring], self._saved[ring], self._current[ring] + 1
        new: dict[int, dict[str, bytes]] = {}
        for key, track in self._tracks.items():
            data = track.rings[ring].since(first)
            for part, rows in _in_parts(kind, data):
                new.setdefault(part, {})[key] = rows
        for part, rows_by_key in new.items():
            await self._save_part(ring, part, rows_by_key)
        self._saved[ring] = max(end - 1, first)

    async def _save_part(self, ring: int, part: int, new: dict[str, bytes]) -> None:
        name = _document(RINGS[ring], part)
        merged: dict[str, bytes] = {}
        is_own = True

        def add(old: bytes | None) -> bytes:
            nonlocal merged, is_own
            found = _read_part(old)
            is_own = old is None or hash(old) == self._written.get(name)
            merged = dict(found.rows) if found is not None and found.part == part else {}
            for key, rows in new.items():
                merged[key] = joined(merged.get(key, b""), rows)
            merged = {key: rows for key, rows in merged.items() if self._is_kept(key)}
            return msgspec.msgpack.encode(_Part(part, merged))

        written = await update_document(self._store, name, add)
        self._written[name] = hash(written)
        if not is_own:  # another broker wrote it as well
            self._learn(ring, merged)

    def _is_kept(self, key: str) -> bool:
        return key.startswith(_OVERALL) or self._is_known(QueueName.parse(key))

    def _learn(self, ring: int, rows: Mapping[str, bytes]) -> None:
        for key, data in rows.items():
            self._track(key).rings[ring].merge(data)

    def _keep_within_bounds(self) -> None:
        """Forget the queues that changed longest ago if there are too many rows."""
        size = sum(track.size_bytes for track in self._tracks.values())
        if size <= MAX_BYTES:
            return
        for key, track in sorted(self._tracks.items(), key=lambda one: one[1].rings[0].last_step):
            if size <= MAX_BYTES:
                return
            if not key.startswith(_OVERALL):
                size -= track.size_bytes
                track.clear()  # it begins again when something changes

    async def _load(self) -> None:
        """Read what was saved. What cannot be read is left out."""
        for ring, kind in enumerate(RINGS):
            now_part = int(self._now_s() // kind.step_s) // kind.part_steps
            for number in range(kind.parts):
                try:
                    document = await self._store.load_document(_document(kind, number))
                except (PenstockError, OSError) as error:
                    log.warning("a part of the charts cannot be read: %s", error)
                    continue
                found = _read_part(document)
                if found is None or not now_part - kind.parts < found.part <= now_part:
                    continue
                self._learn(ring, {k: v for k, v in found.rows.items() if self._is_kept(k)})

    # -- reading -----------------------------------------------------------------------------------

    def rates(self, queue: QueueName, totals: Totals, mono_ns: int) -> tuple[float, float, float]:
        """Return messages published, acked and failed per second; 0 if it is not recorded yet."""
        recorder = self._recorders.get(queue)
        return (0.0, 0.0, 0.0) if recorder is None else recorder.rates(totals, mono_ns)

    def last_levels(self, queue: QueueName) -> Levels:
        """Return what a queue held when it was last recorded."""
        track = self._tracks.get(str(queue))
        return Levels() if track is None else track.last_levels()

    def spark(self, queue: QueueName, series: str) -> list[float | None]:
        """Return one series of the last ten minutes, as far as this broker knows it.

        Of a queue of another broker it knows what that one has saved.
        """
        asked = Range(0, self._current[0] - SPARK_POINTS, SPARK_POINTS)
        is_own = queue in self._recorders
        track = self._tracks.get(str(queue))
        rows = b"" if track is None else track.rings[0].since(0)
        steps = {
            step
            for key, one in self._tracks.items()
            if key.startswith(_OVERALL) and (is_own or key != self._own_key)
            for step, _ in rows_of(one.rings[0].since(asked.first))
        }
        return columns(asked, rows, steps, (series,))[series]

    async def read(
        self, queue: QueueName | None, since: float, until: float, max_points: int
    ) -> Chart:
        """Return the history of a queue, or of all."""
        asked = self._range(since, until)
        own = self.rows_for(None if queue is None else str(queue), asked.ring)
        found = [own]
        question = ["chart", None if queue is None else str(queue), asked.ring]
        found += [_checked(one) for one in await self._store.ask_others(question)]
        overall: dict[str, bytes] = {}
        rows = before = b""
        for their_rows, their_before, their_overall in found:
            rows = joined(rows, their_rows)
            before = joined(before, their_before)
            for key, data in their_overall.items():
                overall[key] = joined(overall.get(key, b""), data)
        if queue is None:
            series = overall_columns(asked, overall.values(), SERIES)
        else:
            steps = {step for data in overall.values() for step, _ in rows_of(data)}
            series = columns(asked, rows, steps, SERIES, before)
        step_s = RINGS[asked.ring].step_s
        by, series = thinned(series, asked.steps, max_points)
        points = -(-asked.steps // by)
        return Chart(float(asked.first * step_s), step_s * by, points, series)

    def rows_for(self, key: str | None, ring: int) -> tuple[bytes, bytes, dict[str, bytes]]:
        """Return the rows of a queue, the last row of longer steps, and those of the brokers."""
        track = None if key is None else self._tracks.get(key)
        rows = b"" if track is None else track.rings[ring].since(0)
        before = b"" if track is None else _last_of(track.rings[ring + 1 :])
        overall = {
            one: found.rings[ring].since(0)
            for one, found in self._tracks.items()
            if one.startswith(_OVERALL)
        }
        return rows, before, overall

    def _range(self, since: float, until: float) -> Range:
        """Return the shortest steps that reach back far enough."""
        now_s = self._now_s()
        ring = next(
            (
                number
                for number, kind in enumerate(RINGS)
                if now_s - since <= kind.step_s * (kind.steps + 1)
            ),
            len(RINGS) - 1,
        )
        kind = RINGS[ring]
        end = min(int(until // kind.step_s), self._current[ring])  # this one has not ended
        first = max(int(since // kind.step_s), end - kind.steps)
        return Range(ring, first, max(end - first, 0))


def _last_of(rings: Iterable[Rows]) -> bytes:
    """Return the last row of longer steps, to know what a queue held before the short ones."""
    return next((rows.since(rows.last_step) for rows in rings if len(rows)), b"")


def _document(kind: RingKind, part: int) -> str:
    return f"charts-{kind.name}-{part % kind.parts}"


def _in_parts(kind: RingKind, data: bytes) -> Iterable[tuple[int, bytes]]:
    """Split rows by the documents that they belong to."""
    if not data:
        return []
    rows = Rows(kind.steps, data)
    steps = [step for step, _ in rows_of(data)]
    first, last = steps[0] // kind.part_steps, steps[-1] // kind.part_steps
    if first == last:
        return [(first, data)]
    found = []
    for part in range(first, last + 1):
        from_part = rows.since(part * kind.part_steps)
        after = rows.since((part + 1) * kind.part_steps)
        own = from_part[: len(from_part) - len(after)]
        if own:
            found.append((part, own))
    return found


def _read_part(document: bytes | None) -> _Part | None:
    """Return a document; None if there is none, or it is damaged."""
    if document is None:
        return None
    try:
        found = msgspec.msgpack.decode(document, type=_Part)
        for key in found.rows:
            if not key.startswith(_OVERALL):
                QueueName.parse(key)
    except (msgspec.DecodeError, ValueError, PenstockError):
        return None
    return found if all(map(is_valid, found.rows.values())) else None


def _checked(answer: Any) -> tuple[bytes, bytes, dict[str, bytes]]:
    """Return the rows that another broker sent; none if they cannot be used."""
    try:
        rows, before, overall = answer
        if all(map(is_valid, (rows, before, *overall.values()))):
            return rows, before, overall
    except (ValueError, TypeError, AttributeError):
        pass
    return b"", b"", {}
