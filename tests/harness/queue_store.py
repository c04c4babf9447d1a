"""A queue's directory for a test: opened, reopened, killed, and cut from its power."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from penstock.clock import ManualClock
from penstock.ledger import Damage
from penstock.ledger.files import Files
from penstock.ledger.memory_files import MemoryFiles
from penstock.queue.queue import Queue, open_core
from tests.harness.disk import Disk
from tests.harness.journal import Mark, RecordedFiles
from tests.harness.power_cuts import Shredded

PATH = "/queue"
ROOM_BYTES = 1 << 24  # for each mapped file; taken from memory only as it is used
# No thread or timer of its own, no free space that a test machine may not have, and few attempts.
QUIET = {
    "sync": "never",
    "min_free_bytes": 0,
    "auto_compact": False,
    "max_attempts": 5,
    "backoff_base_s": 0.1,
    "backoff_max_s": 60.0,
}


class QueueStore:
    """One directory and its clock; at most one writer at a time.

    In memory, unless a path is given; with `recorded`, power can be cut.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        path: Path | None = None,
        recorded: bool = False,
        files: Files | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.settings = {**QUIET, **(settings or {})}
        self.clock = clock or ManualClock()
        self.path = PATH if path is None else str(path)
        self.damage: list[Damage] = []  # what was reported, over all openings
        self._files: Files | None = files
        if path is None and files is None:
            self._files = RecordedFiles() if recorded else _memory()
        self._queue: Queue | None = None

    @property
    def queue(self) -> Queue:
        """The open writer; opened when first asked for."""
        return self._queue or self.open()

    def open(self, **settings: Any) -> Queue:
        """Open as the writer; other settings stay for the next time."""
        self.settings.update(settings)
        self._queue = Queue(self._core())
        return self._queue

    def look(self, **settings: Any) -> Queue:
        """Open for reading, beside a writer or not."""
        return Queue(
            open_core(self.path, settings, files=self._files, clock=self.clock, read_only=True)
        )

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def reopen(self, **settings: Any) -> Queue:
        self.close()
        return self.open(**settings)

    def kill(self, **settings: Any) -> Queue:
        """The process dies and another one opens the directory: only its files are left."""
        assert isinstance(self._files, MemoryFiles)
        if isinstance(self._files, RecordedFiles):
            self._files = RecordedFiles(self._disk())
        else:
            self._files = _memory(self._files)
        return self._restart(settings)

    def cut_power(self, seed: int = 0, **settings: Any) -> Queue:
        """The machine dies: what was not synced is there, or not, or in parts."""
        self._files = RecordedFiles(self._disk().after(Shredded(Random(seed))))
        return self._restart(settings)

    def _restart(self, settings: Mapping[str, Any]) -> Queue:
        wall_s = self.clock.now_ns() / 1e9
        self.clock = ManualClock(now_s=wall_s)  # monotonic time begins anew
        return self.open(**settings)

    def _disk(self) -> Disk:
        assert isinstance(self._files, RecordedFiles)
        self._files.mark("now")
        disk = self._files.journal.start.copy()
        for step in self._files.journal.steps:
            if not isinstance(step, Mark):
                disk.apply(step)
        return disk

    def _core(self) -> Any:
        return open_core(
            self.path,
            self.settings,
            files=self._files,
            clock=self.clock,
            on_damage=self.damage.append,
            on_dirty=lambda: None,
            own_timer=bool(self.settings.get("compact_interval_s")),
        )


def _memory(files: MemoryFiles | None = None) -> MemoryFiles:
    image = None if files is None else files.image()
    return MemoryFiles(image, mapped_room_bytes=ROOM_BYTES)
