"""What others may read of an open queue's files, and what they may put beside them."""

from asyncio import Future
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol, TypeVar

from penstock.broker.embedded.segment_service import list_segments, read_index, read_segment
from penstock.broker.segments import (
    MAX_RANGE_BYTES,
    MAX_STAGED_SEGMENT_BYTES,
    MAX_STAGED_SEGMENTS,
    Adoption,
    LogName,
    QueueSegments,
    SegmentBytes,
    StagedSegment,
    StagingInfo,
)
from penstock.errors import DiskFull, InvalidInput, TooLarge
from penstock.ledger.adoption import applications, sweep_staging
from penstock.ledger.files import as_ledger_error
from penstock.ledger.folder import Folder, write_fully
from penstock.ledger.staging import STAGING, Staged, check_folder_name, check_segment_name
from penstock.queue.adopting import adopt_staged, check_transaction, refuse_bounds
from penstock.queue.compaction import note_archived
from penstock.queue.core import QueueCore

_T = TypeVar("_T")


class InThread(Protocol):
    """Does what takes long beside the event loop."""

    def __call__(
        self,
        work: Callable[[], _T],
        *,
        writes: bool = False,
        after: Callable[[], None] | None = None,
    ) -> Future[_T]: ...


class QueueFiles:
    """The files of one queue. Called in the event loop, like the queue itself."""

    def __init__(self, core: QueueCore, in_thread: InThread) -> None:
        self._core = core
        self._in_thread = in_thread
        self._written: Counter[str] = Counter()  # folders that are being written to
        self._adopted: Counter[str] = Counter()  # folders that are being adopted
        # What is announced in transactions.json is of one adoption at a time.
        self._adopting = Lock()

    # -- reading -----------------------------------------------------------------------------------

    def segments(self, time_ns: int | None) -> Future[QueueSegments]:
        return self._in_thread(lambda: list_segments(self._core, time_ns))

    def read_segment(
        self, log: LogName, base: int, start: int, end: int | None
    ) -> Future[SegmentBytes]:
        return self._in_thread(lambda: read_segment(self._core, log, base, start, end))

    def read_index(self, log: LogName, base: int) -> Future[bytes]:
        return self._in_thread(lambda: read_index(self._core, log, base))

    def note_archived(self, upto: int) -> Future[None]:
        def note() -> None:
            ledger = self._core.ledger
            ledger.check_writable()
            next_seq = ledger.messages.durable_next_seq
            note_archived(self._root(), ledger.identity, upto, next_seq=next_seq)

        return self._in_thread(note)

    # -- writing -----------------------------------------------------------------------------------

    def staging(self, applications_with: str | None) -> Future[StagingInfo]:
        def staging() -> StagingInfo:
            core = self._core
            core.ledger.check_writable()
            refuse_bounds(core.settings, "the queue")
            self._root().child(STAGING).make()
            found: list[str] = []
            if applications_with is not None:
                with self._adopting:
                    found = applications(core.ledger, applications_with)
            return StagingInfo(core.ledger.identity, core.settings.as_dict(), found)

        return self._in_thread(staging)

    def stage(self, folder: str, name: str, offset: int, data: bytes) -> Future[None]:
        check_folder_name(folder)
        check_segment_name(name)
        if len(data) > MAX_RANGE_BYTES:
            raise TooLarge(
                f"{len(data)} bytes of a segment were sent; the most at a time is {MAX_RANGE_BYTES}"
            )
        if not 0 <= offset <= MAX_STAGED_SEGMENT_BYTES - len(data):
            raise TooLarge(
                f"the part is to lie at {offset}; a segment has at most "
                f"{MAX_STAGED_SEGMENT_BYTES} bytes"
            )
        if self._adopted[folder]:
            raise InvalidInput(f"{folder} is being adopted: nothing can be written to it any more")
        self._written[folder] += 1
        return self._in_thread(
            lambda: self._stage(folder, name, offset, data),
            after=lambda: _less(self._written, folder),
        )

    def _stage(self, folder: str, name: str, offset: int, data: bytes) -> None:
        core = self._core
        core.ledger.check_writable()
        root = self._root()
        try:
            if root.files.free_bytes(root.path) < core.settings.min_free_bytes + len(data):
                raise DiskFull(f"{root.path}: less than min_free_bytes would be left on the disk")
            own = root.child(STAGING).child(folder)
            if not own.exists():
                root.child(STAGING).make()
                own.make()
            try:
                fd = own.files.open(own.file(name), "create")
            except FileExistsError:
                fd = own.files.open(own.file(name), "write")
            try:
                write_fully(own.files, fd, data, offset)
                own.files.fdatasync(fd)
            finally:
                own.files.close(fd)
        except OSError as error:
            raise as_ledger_error(root.path, "staging a segment", error) from error

    def unstage(self, folder: str) -> Future[None]:
        check_folder_name(folder)
        if self._adopted[folder]:
            raise InvalidInput(f"{folder} is being adopted")

        def unstage() -> None:
            self._core.ledger.check_writable()
            sweep_staging(self._core.ledger, [folder])

        return self._in_thread(unstage)

    def adopt(
        self, staged: Sequence[StagedSegment], app: str | None, version: int
    ) -> Future[Adoption]:
        transaction = None if app is None else check_transaction(app, version)
        if len(staged) > MAX_STAGED_SEGMENTS:
            raise TooLarge(f"{len(staged)} segments; the most of a job is {MAX_STAGED_SEGMENTS}")
        folders = {one.folder for one in staged}
        for folder in folders:
            if self._written[folder] or self._adopted[folder]:
                raise InvalidInput(f"{folder} is being written, or adopted already")
        self._adopted.update(folders)

        def adopt() -> Adoption:
            with self._adopting:
                found = adopt_staged(self._core, [Staged(*one) for one in staged], transaction)
            return Adoption(found.first_seq, found.entries, found.repeated)

        def is_over() -> None:
            for folder in folders:
                _less(self._adopted, folder)

        return self._in_thread(adopt, writes=True, after=is_over)

    def _root(self) -> Folder:
        return Folder(self._core.ledger.messages.folder.files, self._core.ledger.path)


def _less(counter: "Counter[str]", name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
