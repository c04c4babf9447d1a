"""Adopting segments that other processes have staged: all or none of them, and only once.

A task of a data pipeline writes messages into segments of its own, in a folder of `staging/`. The
holder of the ledger then puts them behind the last entry, by changing their headers and names.

All or none: several segments need several renames. So that no crash shows a part of them, an empty
*cover* first takes the name of the first one. Its header says that it covers all seqs up to E, so
opening ignores and removes the files behind it. When all others are in place, the first segment is
renamed over the cover: that one rename is the commit. Before the cover is made, `queue.json`
records the seqs up to E as used, so that they are not used again after a crash.

Only once: `transactions.json` holds the last adopted version of each application. Before the commit
it announces the adoption. Whether that happened can be seen after a crash: the first segment has
then left the staging folder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Condition

from penstock import codec
from penstock.codec import Draft
from penstock.errors import LedgerError
from penstock.ledger.files import as_ledger_error
from penstock.ledger.folder import read_fully, write_fully
from penstock.ledger.index import SparseIndex
from penstock.ledger.json_files import (
    TRANSACTION_TAG,
    TRANSACTIONS_NAME,
    Marks,
    Transaction,
    Transactions,
)
from penstock.ledger.ledger import Ledger
from penstock.ledger.reading import Cursor
from penstock.ledger.segment import AdoptedSegment
from penstock.ledger.segment_header import COMPACTED, HEADER_BYTES, SegmentHeader, segment_name
from penstock.ledger.staging import (
    STAGING,
    Staged,
    is_orphan,
    read_drafts,
    staged_bytes,
    stamps_of,
    verify_staged,
)
from penstock.model import NS

SMALL_BYTES = 8 << 20  # less is appended: many small segments would be slow to read
_CHUNK_ENTRIES = 4096
_RESTAMP_NS_PER_BYTE = 8  # 125 MB/s: half the speed of a restamp with its sync
_TOLERANCE_NS = 50_000_000  # a timestamp may be ahead of the clock by this much


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of an adoption."""

    first_seq: int
    entries: int
    repeated: bool = False  # the transaction was adopted before, and nothing was done


Within = Callable[[Callable[[], Adopted]], Adopted]


def adopt_or_append(
    ledger: Ledger,
    staged: Sequence[Staged],
    transaction: Transaction | None,
    *,
    now_ns: int,
    within: Within | None = None,
) -> Adopted:
    """Adopt staged segments, all or none: append small ones, move large ones.

    Then remove their folders, and folders abandoned for a day. `within`: see `adopt`.
    """
    staging = ledger.root.child(STAGING)
    earlier = None if transaction is None else adopted_before(ledger, transaction)
    if earlier is not None:
        adopted = earlier
    elif staged_bytes(staging, staged) < SMALL_BYTES:
        limit = ledger.settings.max_entry_bytes
        drafts = [
            draft
            for one in staged
            for draft in read_drafts(
                staging,
                one,
                identity=ledger.identity,
                max_bytes=SMALL_BYTES,
                max_entry_bytes=limit,
            )
        ]
        adopted = append_once(ledger, drafts, transaction, within=within)
    else:
        adopted = adopt(ledger, staged, transaction, within=within)
    orphans = [name for name in staging.names() if is_orphan(name, now_ns)]
    sweep_staging(ledger, [*dict.fromkeys(one.folder for one in staged), *orphans])
    return adopted


def adopt(
    ledger: Ledger,
    staged: Sequence[Staged],
    transaction: Transaction | None = None,
    *,
    within: Within | None = None,
) -> Adopted:
    """Move staged segments behind the last message, in the order given.

    Pass `within` if others use the ledger meanwhile. It is called with the one step that must not
    be seen half done; everything slow is done before.
    """
    return _Adoption(ledger, transaction, within).of_segments([s for s in staged if s.entries])


def append_once(
    ledger: Ledger,
    drafts: Sequence[Draft],
    transaction: Transaction | None,
    *,
    within: Within | None = None,
) -> Adopted:
    """Append a few messages as one batch that carries the name of the transaction."""
    return _Adoption(ledger, transaction, within).of_drafts(drafts)


def adopted_before(ledger: Ledger, transaction: Transaction) -> Adopted | None:
    """Return the adoption of that version of the application, or of a later one, if any."""
    return _Adoption(ledger, transaction).repeated()


def applications(ledger: Ledger, prefix: str) -> list[str]:
    """Return the remembered applications whose names begin with `prefix`."""
    done = _Adoption(ledger, None).settled().done
    return [app for app in done if app.startswith(prefix)]


def sweep_staging(ledger: Ledger, names: Sequence[str]) -> None:
    """Remove folders of `staging/`: those of failed or finished writers."""
    staging = ledger.root.child(STAGING)
    pending = Transactions.load(ledger.root).pending
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


class _Adoption:
    def __init__(
        self, ledger: Ledger, transaction: Transaction | None, within: Within | None = None
    ) -> None:
        self._ledger = ledger
        self._within = within or (lambda step: step())
        self._is_shared = within is not None
        self._log = ledger.messages
        self._files = ledger.root.files
        self._transaction = transaction
        self._staging = ledger.root.child(STAGING)

    def repeated(self) -> Adopted | None:
        """Return the earlier adoption, if any. First decide what a crash left undecided."""
        transactions = self.settled()
        if self._transaction is None:
            return None
        done = transactions.done.get(self._transaction.app)
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
            found = verify_staged(
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
        if self._is_shared:
            try:
                ahead_ns = self._stamp_ahead(staged, sum(one.end for one in found))
            except OSError as error:
                raise as_ledger_error(self._ledger.path, "stamping segments", error) from error
            found = [one.stamped(ahead_ns) for one in found]

        def move(first_seq: int, last_ns: int) -> tuple[list[AdoptedSegment], int]:
            stamps, at_ns = stamps_of(found, last_ns)
            headers = self._prepare(staged, first_seq, stamps)
            self._move(staged, headers, first_seq, total)
            adopted = []
            for one, header, stamp_ns in zip(found, headers, stamps, strict=True):
                index = SparseIndex.of_staged(
                    one.points,
                    base_seq=header.base_seq,
                    timestamp_ns=ahead_ns if stamp_ns is None else stamp_ns,
                    covered=one.end,
                )
                adopted.append(AdoptedSegment(header, one.end, index))
            return adopted, at_ns

        return self._remember(self._within(lambda: Adopted(self._log.adopt(total, move), total)))

    def of_drafts(self, drafts: Sequence[Draft]) -> Adopted:
        self._ledger.check_writable()
        earlier = self.repeated()
        if earlier is not None:
            return earlier
        if not drafts:
            return self._remember(Adopted(self._log.next_seq, 0))
        self._announce(first_seq=self._log.next_seq, folder="", name="", entries=len(drafts))
        if self._transaction is not None:
            name = {TRANSACTION_TAG: self._transaction.tag_value}
            first, *others = drafts
            drafts = [first._replace(attributes={**(first.attributes or {}), **name}), *others]
        batch = drafts
        adopted = self._within(lambda: Adopted(self._log.append_batch(batch), len(batch)))
        self._ledger.sync()
        return self._remember(adopted)

    # -- transactions ------------------------------------------------------------------------------

    def _announce(self, **where: object) -> None:
        if self._transaction is not None:
            transactions = Transactions.load(self._ledger.root)
            pending = {"app": self._transaction.app, "version": self._transaction.version, **where}
            replace(transactions, pending=pending).save(self._ledger.root)

    def _remember(self, adopted: Adopted) -> Adopted:
        if self._transaction is not None:
            done = Transactions.load(self._ledger.root).with_done(
                self._transaction, adopted.first_seq, adopted.entries
            )
            done.save(self._ledger.root)
        return adopted

    def settled(self) -> Transactions:
        """Return the transactions. First decide whether a pending one happened."""
        transactions = Transactions.load(self._ledger.root)
        pending = transactions.pending
        if pending is None:
            return transactions
        transaction = Transaction(pending["app"], pending["version"])
        first_seq: int | None = pending["first_seq"]
        if not pending["name"]:
            first_seq = self._find_appended(pending["first_seq"], transaction)
        elif self._staging.child(pending["folder"]).has(pending["name"]):
            first_seq = None
        if first_seq is None:
            settled = replace(transactions, pending=None)
        else:
            settled = transactions.with_done(transaction, first_seq, pending["entries"])
        settled.save(self._ledger.root)
        return settled

    def _find_appended(self, from_seq: int, transaction: Transaction) -> int | None:
        """Return the first seq of the batch of a transaction; None if it was never written."""
        wanted = transaction.tag_value
        cursor, expected, complete = Cursor(self._log, from_seq, unsynced=True), from_seq, True
        while entries := cursor.read(_CHUNK_ENTRIES):
            for entry in entries:
                if entry.attributes and entry.attributes.get(TRANSACTION_TAG) == wanted:
                    return entry.seq
                complete = complete and entry.seq == expected
                expected = entry.seq + 1
        if not complete or expected < self._log.next_seq:
            raise LedgerError(
                f"{self._ledger.path}: it is unknown whether transaction {transaction.app!r} "
                f"version {transaction.version} was written, because messages from seq {from_seq} "
                f"on were removed since. If it was, continue with the next version; if not, remove "
                f"{TRANSACTIONS_NAME}."
            )
        return None

    # -- segments ----------------------------------------------------------------------------------

    def _prepare(
        self, staged: Sequence[Staged], first_seq: int, stamps: Sequence[int | None]
    ) -> list[SegmentHeader]:
        """Write the final header, and the new time if any, into each file; return the headers.

        The files are still in their staging folders, and durable there.
        """
        headers = []
        for one, stamp_ns in zip(staged, stamps, strict=True):
            fd = self._files.open(self._path(one), "write")
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
        # The names too: a missing file must later mean that it was adopted.
        self._sync_names(staged)
        self._staging.sync()
        self._staging.parent().sync()
        return headers

    def _stamp_ahead(self, staged: Sequence[Staged], size_bytes: int) -> int:
        """Give all entries a time at which the rewriting will be over, and wait until then.

        Others append meanwhile, so the present time would be too old when the segments are moved.
        If the disk is slower than expected, try once more with twice the time it took. A segment
        that is still too old is rewritten when it is moved, while the others wait.
        """
        clock, takes_ns = self._ledger.clock, size_bytes * _RESTAMP_NS_PER_BYTE
        for _ in range(2):
            began_ns = clock.now_ns()
            at_ns = began_ns + takes_ns
            for one in staged:
                self._stamp(one, at_ns)
            left_ns = at_ns - clock.now_ns()
            if left_ns >= 0:
                break
            takes_ns = 2 * (clock.now_ns() - began_ns)
        if left_ns > _TOLERANCE_NS:
            never_notified = Condition()
            with never_notified:
                clock.wait(never_notified, (left_ns - _TOLERANCE_NS) / NS)
        return at_ns

    def _stamp(self, one: Staged, timestamp_ns: int) -> None:
        fd = self._files.open(self._path(one), "write")
        try:
            self._restamp(fd, timestamp_ns)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)

    def _restamp(self, fd: int, timestamp_ns: int) -> None:
        """Change the time of all entries of a segment, and nothing else."""
        data = bytearray(read_fully(self._files, fd, self._files.size(fd), 0))
        limit = self._log.settings.max_entry_bytes
        codec.restamp(data, HEADER_BYTES, len(data), timestamp_ns, max_entry_bytes=limit)
        write_fully(self._files, fd, memoryview(data)[HEADER_BYTES:], HEADER_BYTES)

    def _move(
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
            cover = replace(first[1], flags=COMPACTED, end_seq=end_seq)
            log.folder.replace(segment_name(cover.base_seq), cover.pack())
            for one, header in others:
                self._rename(one, header)
            self._sync_names(staged)
        self._rename(*first)  # the commit
        self._sync_names(staged)

    def _sync_names(self, staged: Sequence[Staged]) -> None:
        """Sync both directories: a name that moves between them is then durable."""
        self._log.folder.sync()
        for name in dict.fromkeys(one.folder for one in staged):
            self._staging.child(name).sync()

    def _path(self, one: Staged) -> str:
        return self._staging.child(one.folder).file(one.name)

    def _rename(self, one: Staged, header: SegmentHeader) -> None:
        target = self._log.folder.file(segment_name(header.base_seq))
        self._files.rename(self._path(one), target)
