"""Taking in what others have written beside the log: all of it or nothing, and only once.

A writer elsewhere (a task of a data pipeline) puts messages into segments of its own, in a folder
of `staging/`: relative ones, whose entries count their seqs from 0. The holder of the ledger then
gives them their place behind the last entry, by changing their headers and their names.

All or nothing, with nothing but what recovery does anyway. Several segments need several renames;
so that no crash shows a part of them, an empty *cover* lies at the place of the first one, with a
header that says "I stand for all up to E": what lies behind it does not count, and an opening
removes it. When all others are in place, the first one is renamed over the cover: that one rename
is the commit. Before the cover is made, `queue.json` says that the seqs up to E are given out, so
that after a crash nobody gives them out again.

Only once: `transactions.json` remembers for each application the version it adopted last. Before
the commit it says what is about to happen; whether it did is seen from whether the first segment
has left the staging folder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Condition

from penstock import codec
from penstock.codec import Draft
from penstock.errors import LedgerError
from penstock.ledger.folder import Folder, read_fully, write_fully
from penstock.ledger.index import SparseIndex
from penstock.ledger.ledger import Ledger
from penstock.ledger.manifest import Marks
from penstock.ledger.reading import Cursor
from penstock.ledger.segment import Placed
from penstock.ledger.segment_header import COMPACTED, HEADER_BYTES, SegmentHeader, segment_name
from penstock.ledger.staged_segments import STAGING, Staged, stamps_of, verified
from penstock.ledger.system_errors import as_ledger_error
from penstock.ledger.transactions import (
    TRANSACTION_TAG,
    TRANSACTIONS_NAME,
    Memory,
    Transaction,
    tag_value,
)
from penstock.model import NS

_CHUNK = 4096
_RESTAMP_NS_PER_BYTE = 8  # 125 MB/s: twice as long as it takes, with its sync
_NEARLY_NS = 50_000_000  # a timestamp may be so far ahead of its time


@dataclass(frozen=True, slots=True)
class Adopted:
    """What came of it."""

    first_seq: int
    entries: int
    repeated: bool = False  # the transaction was there already, and nothing was done


Within = Callable[[Callable[[], Adopted]], Adopted]


def _alone(step: Callable[[], Adopted]) -> Adopted:
    return step()


def adopt(
    ledger: Ledger,
    staged: Sequence[Staged],
    transaction: Transaction | None = None,
    *,
    within: Within | None = None,
) -> Adopted:
    """Put staged segments behind the last message, in the order given.

    With `within` others use the ledger meanwhile: it is called with the one step that nobody may
    see half of, and all that takes long is done before.
    """
    return _Adoption(ledger, transaction, within).of_segments([s for s in staged if s.entries])


def append_once(
    ledger: Ledger,
    drafts: Sequence[Draft],
    transaction: Transaction | None,
    *,
    within: Within | None = None,
) -> Adopted:
    """The same for a few messages: one batch of the log, which carries the transaction's name."""
    return _Adoption(ledger, transaction, within).of_drafts(drafts)


def adopted_before(ledger: Ledger, transaction: Transaction) -> Adopted | None:
    """What came of that version of the application, or of a later one, if it was taken in."""
    return _Adoption(ledger, transaction).repeated()


def applications(ledger: Ledger, prefix: str) -> list[str]:
    """Return the applications whose transactions are remembered and whose names begin so."""
    memory = _Adoption(ledger, None).settled()
    return [app for app in memory.done if app.startswith(prefix)]


def sweep_staging(ledger: Ledger, names: Sequence[str]) -> None:
    """Remove folders of `staging/`: those of failed or finished writers."""
    staging = _staging(ledger)
    pending = Memory.load(_root(ledger)).pending
    kept = pending["folder"] if pending is not None else None
    for name in names:
        folder = staging.child(name)
        if name == kept or not folder.exists():
            continue
        for file in folder.files.names(folder.path):
            folder.remove(file)
        folder.files.remove_directory(folder.path)
    if staging.exists():
        staging.sync()


def _root(ledger: Ledger) -> Folder:
    return Folder(ledger.messages.folder.files, ledger.path)


def _staging(ledger: Ledger) -> Folder:
    return _root(ledger).child(STAGING)


# -- doing it --------------------------------------------------------------------------------------


class _Adoption:
    def __init__(
        self, ledger: Ledger, transaction: Transaction | None, within: Within | None = None
    ) -> None:
        self._ledger = ledger
        self._within = within or _alone
        self._has_company = within is not None
        self._log = ledger.messages
        self._files = ledger.messages.folder.files
        self._transaction = transaction
        self._root = _root(ledger)
        self._staging = _staging(ledger)

    def repeated(self) -> Adopted | None:
        """The earlier adoption, if there was one. Finds out first what a crash left undecided."""
        memory = self.settled()
        if self._transaction is None:
            return None
        done = memory.done.get(self._transaction.app)
        if done is None or done[0] < self._transaction.version:
            return None
        _, first_seq, entries = done
        return Adopted(first_seq, entries, repeated=True)

    def of_segments(self, staged: Sequence[Staged]) -> Adopted:
        self._ledger.check_writable()
        earlier = self.repeated()
        if earlier is not None:
            return earlier
        try:
            found = verified(
                self._staging,
                staged,
                identity=self._ledger.identity,
                max_entry_bytes=self._log.settings.max_entry_bytes,
            )
        except OSError as error:
            raise as_ledger_error(self._ledger.path, "reading staged segments", error) from error
        total = sum(one.entries for one in staged)
        if not total:
            return self._remember(Adopted(self._log.next_seq, 0))
        ahead_ns: int | None = None
        if self._has_company:
            try:
                ahead_ns = self._stamped_ahead(staged, sum(one.end for one in found))
            except OSError as error:
                raise as_ledger_error(self._ledger.path, "stamping segments", error) from error
            found = [one.stamped(ahead_ns) for one in found]

        def place(first_seq: int, last_ns: int) -> tuple[list[Placed], int]:
            stamps, at_ns = stamps_of(found, last_ns)
            headers = self._prepared(staged, first_seq, stamps)
            self._put_in_place(staged, headers, first_seq, total)
            placed = []
            for one, header, stamp_ns in zip(found, headers, stamps, strict=True):
                index = SparseIndex.of_staged(
                    one.points,
                    base_seq=header.base_seq,
                    timestamp_ns=ahead_ns if stamp_ns is None else stamp_ns,
                    covered=one.end,
                )
                placed.append(Placed(header, one.end, index))
            return placed, at_ns

        return self._remember(self._within(lambda: Adopted(self._log.take_in(total, place), total)))

    def of_drafts(self, drafts: Sequence[Draft]) -> Adopted:
        self._ledger.check_writable()
        earlier = self.repeated()
        if earlier is not None:
            return earlier
        if not drafts:
            return self._remember(Adopted(self._log.next_seq, 0))
        self._announce(first_seq=self._log.next_seq, folder="", name="", entries=len(drafts))
        if self._transaction is not None:
            name = {TRANSACTION_TAG: tag_value(self._transaction)}
            first, *others = drafts
            drafts = [first._replace(attributes={**(first.attributes or {}), **name}), *others]
        batch = drafts
        adopted = self._within(lambda: Adopted(self._log.append_batch(batch), len(batch)))
        self._ledger.sync()
        return self._remember(adopted)

    # -- transactions ------------------------------------------------------------------------------

    def _announce(self, **where: object) -> None:
        if self._transaction is not None:
            memory = Memory.load(self._root)
            pending = {"app": self._transaction.app, "version": self._transaction.version, **where}
            replace(memory, pending=pending).save(self._root)

    def _remember(self, adopted: Adopted) -> Adopted:
        if self._transaction is not None:
            memory = Memory.load(self._root)
            memory.with_done(self._transaction, adopted.first_seq, adopted.entries).save(self._root)
        return adopted

    def settled(self) -> Memory:
        """Return what is remembered. Find out first whether what was announced did happen."""
        memory = Memory.load(self._root)
        pending = memory.pending
        if pending is None:
            return memory
        transaction = Transaction(pending["app"], pending["version"])
        first_seq: int | None = pending["first_seq"]
        if not pending["name"]:
            first_seq = self._appended(pending["first_seq"], transaction)
        elif self._staging.child(pending["folder"]).has(pending["name"]):
            first_seq = None
        if first_seq is None:
            settled = replace(memory, pending=None)
        else:
            settled = memory.with_done(transaction, first_seq, pending["entries"])
        settled.save(self._root)
        return settled

    def _appended(self, from_seq: int, transaction: Transaction) -> int | None:
        """Where the batch with the transaction's name begins; None if it was never written."""
        wanted = tag_value(transaction)
        cursor, expected, complete = Cursor(self._log, from_seq, unsynced=True), from_seq, True
        while entries := cursor.read(_CHUNK):
            for entry in entries:
                if entry.attributes and entry.attributes.get(TRANSACTION_TAG) == wanted:
                    return entry.seq
                complete = complete and entry.seq == expected
                expected = entry.seq + 1
        if not complete or expected < self._log.next_seq:
            raise LedgerError(
                f"{self._ledger.path}: it cannot be said whether transaction {transaction.app!r} "
                f"version {transaction.version} was written: the messages from seq {from_seq} on "
                f"were removed meanwhile. If it was, go on with the next version; if not, remove "
                f"{TRANSACTIONS_NAME}."
            )
        return None

    # -- segments ----------------------------------------------------------------------------------

    def _prepared(
        self, staged: Sequence[Staged], first_seq: int, stamps: Sequence[int | None]
    ) -> list[SegmentHeader]:
        """Give each its place, durably, still in its folder; and its time, where that is old."""
        headers = []
        for one, stamp_ns in zip(staged, stamps, strict=True):
            folder = self._staging.child(one.folder)
            fd = self._files.open(folder.file(one.name), "write")
            try:
                if stamp_ns is not None:
                    self._restamp(fd, stamp_ns)
                old = SegmentHeader.unpack(read_fully(self._files, fd, HEADER_BYTES, 0))
                header = replace(old, base_seq=first_seq)
                write_fully(self._files, fd, header.pack(), 0)
                self._files.fdatasync(fd)
                headers.append(header)
            finally:
                self._files.close(fd)
            first_seq += one.entries
        # Their names too: that one is missing later must mean that it was adopted.
        self._sync_names(staged)
        self._staging.sync()
        self._staging.parent().sync()
        return headers

    def _stamped_ahead(self, staged: Sequence[Staged], size_bytes: int) -> int:
        """Give all entries a time at which the rewriting will be over, and wait for it to come.

        Others write meanwhile, so the time of now would be too old when these take their place. On
        a slow disk it takes longer than thought: once more then, with twice the time it took. What
        is too old even so is rewritten when it takes its place, while the others wait.
        """
        clock, takes_ns = self._ledger.clock, size_bytes * _RESTAMP_NS_PER_BYTE
        for _ in range(2):
            began_ns = clock.now_ns()
            at_ns = began_ns + takes_ns
            self._stamp(staged, at_ns)
            left_ns = at_ns - clock.now_ns()
            if left_ns >= 0:
                break
            takes_ns = 2 * (clock.now_ns() - began_ns)
        if left_ns > _NEARLY_NS:
            nobody = Condition()
            with nobody:
                clock.wait(nobody, (left_ns - _NEARLY_NS) / NS)
        return at_ns

    def _stamp(self, staged: Sequence[Staged], timestamp_ns: int) -> None:
        for one in staged:
            fd = self._files.open(self._staging.child(one.folder).file(one.name), "write")
            try:
                self._restamp(fd, timestamp_ns)
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)

    def _restamp(self, fd: int, timestamp_ns: int) -> None:
        """Give all entries of a segment that time; nothing else of them changes."""
        data = bytearray(read_fully(self._files, fd, self._files.size(fd), 0))
        limit = self._log.settings.max_entry_bytes
        codec.restamp(data, HEADER_BYTES, len(data), timestamp_ns, max_entry_bytes=limit)
        write_fully(self._files, fd, memoryview(data)[HEADER_BYTES:], HEADER_BYTES)

    def _put_in_place(
        self, staged: Sequence[Staged], headers: Sequence[SegmentHeader], first_seq: int, total: int
    ) -> None:
        log, end_seq = self._log, first_seq + total
        marks = self._ledger.marks(log)
        self._ledger.save_marks(log, Marks(low=marks.low, next=max(marks.next, end_seq)))
        first, *others = zip(staged, headers, strict=True)
        self._announce(
            first_seq=first_seq, folder=first[0].folder, name=first[0].name, entries=total
        )
        if others:
            self._cover(first[1], end_seq)
            for one, header in others:
                self._rename(one, header)
            self._sync_names(staged)
        self._rename(*first)  # the commit
        self._sync_names(staged)

    def _sync_names(self, staged: Sequence[Staged]) -> None:
        """A name that moves between directories is safe when both are synced."""
        self._log.folder.sync()
        for name in dict.fromkeys(one.folder for one in staged):
            self._staging.child(name).sync()

    def _cover(self, first: SegmentHeader, end_seq: int) -> None:
        cover = replace(first, flags=COMPACTED, end_seq=end_seq)
        self._log.folder.replace(segment_name(first.base_seq), cover.pack())

    def _rename(self, one: Staged, header: SegmentHeader) -> None:
        source = self._staging.child(one.folder).file(one.name)
        self._files.rename(source, self._log.folder.file(segment_name(header.base_seq)))
