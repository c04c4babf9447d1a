"""Directories of this machine that hold copies of the files of the open queues.

Their content is lost without harm. A file is fetched when it is first read, and ahead of that if
its messages are next. If the copies take more than the limit, those that were not used for longest
are dropped, and fetched again when they are needed.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from penstock.broker.postgres.database import Database
from penstock.broker.postgres.files import PostgresFiles
from penstock.broker.postgres.membership import Membership
from penstock.ledger.files import Files, OsFiles
from penstock.names import QueueName
from penstock.queue.core import QueueCore

CACHE_PREFIX = "penstock-cache-"
MAX_CACHE_BYTES = 8 << 30
_AHEAD = 2  # segments of messages, behind the one that is read


class Caches:
    """The directories of one broker."""

    has_locks_of_queues = True
    can_delete = True

    def __init__(
        self,
        database: Database,
        membership: Membership,
        directory: str | None,
        on_lost: Callable[[QueueName], object],
        on_behind: Callable[[QueueName], object],
        made: Callable[[QueueName], None],
        delete_queue: Callable[[QueueName], None],
        max_bytes: int = MAX_CACHE_BYTES,
    ) -> None:
        """`on_lost` is called, in any thread, when a queue takes no more writes; `on_behind` in an
        event loop, when much of a queue is to be synced."""
        self._max_bytes = max_bytes
        self._database = database
        self._membership = membership
        self._parent = directory
        self._on_lost = on_lost
        self._on_behind = on_behind
        self.made = made
        self.delete_queue = delete_queue
        self._files = OsFiles()
        self._root: Path | None = None
        self._lock_fd = -1
        self._entered: dict[QueueName, tuple[Path, PostgresFiles]] = {}

    def open(self) -> None:
        """Make the directory, and remove those of processes that died."""
        made = Path(mkdtemp(prefix=f".{CACHE_PREFIX}", dir=self._parent))
        self._lock_fd = self._files.open(str(made / "LOCK"), "create")
        self._files.lock(self._lock_fd)
        self._root = made.rename(made.with_name(made.name[1:]))  # others look at it from now on
        for other in self._root.parent.glob(f"{CACHE_PREFIX}*"):
            if other != self._root:
                self._remove_if_dead(other)

    def close(self) -> None:
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._files.close(self._lock_fd)
            self._root = None

    def enter(self, queue: QueueName) -> tuple[str, Files]:
        """Become the owner of a queue. Return the path of its files in the cache, and the files."""
        assert self._root is not None
        id_, token, identity = self._membership.take(queue)
        cache = self._root / f"{id_}-{token}"
        cache.mkdir()
        files = PostgresFiles(
            self._database,
            id_,
            token,
            str(cache),
            identity=identity,
            on_lost=partial(self._on_lost, queue),
            on_behind=partial(self._on_behind, queue),
        )
        self._entered[queue] = cache, files
        return str(cache / "queue"), files

    @property
    def fetched_bytes(self) -> int:
        """Return how many bytes the open queues have read from the database."""
        return sum(files.fetched_bytes for _, files in self._entered.values())

    def opened(self, core: QueueCore) -> bool:
        """Fetch the segments whose messages are next, so that a lease finds them.

        Return whether other calls may have to fetch one.
        """
        files, log = core.ledger.root.files, core.ledger.messages
        assert isinstance(files, PostgresFiles)
        core.saves_in_thread = True
        if files.has_all:
            return False
        with core.lock:
            groups = list(core.state.groups.values())
            firsts = [group.waiting.first_fresh for group in groups]
            has_others = any(group.waiting.special or group.leases for group in groups)
        for first in firsts:
            segment = None if first is None else log.segments.holding(first)
            for _ in range(1 + _AHEAD):
                if segment is not None:
                    files.prefetch(log.folder.file(segment.name))
                    segment = log.segments.after(segment)
        needed = [1] if has_others else [first for first in firsts if first is not None]
        return bool(needed) and any(
            not files.is_fetched(log.folder.file(segment.name))
            for segment, end in log.sealed_segments()
            if end > min(needed)
        )

    def tidy(self) -> None:
        """Seal complete files, and drop copies beyond the limit."""
        copies = []
        for _, files in list(self._entered.values()):
            files.seal_complete()
            copies += [(used, size, files, node) for used, size, node in files.cached()]
        excess = sum(size for _, size, _, _ in copies) - self._max_bytes
        for _, size, files, node in sorted(copies, key=lambda copy: copy[:2]):
            if excess <= 0:
                return
            with suppress(FileNotFoundError):  # its queue was closed meanwhile
                files.evict(node)
            excess -= size

    def leave(self, queue: QueueName, size_bytes: int) -> None:
        """Remove the cache of a queue that was closed. It stays with this broker."""
        entered = self._entered.pop(queue, None)
        if entered is not None:
            shutil.rmtree(entered[0], ignore_errors=True)

    def _remove_if_dead(self, directory: Path) -> None:
        with suppress(OSError):
            fd = self._files.open(str(directory / "LOCK"), "write")
            try:
                if self._files.lock(fd):
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                self._files.close(fd)
