"""A queue's directory: two logs, snapshots and a lock.

The ledger knows files, not queues: the layer above decides what an entry or an event means.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.checking import check_local
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    BadEntry,
    CorruptLedger,
    EntryGone,
    LedgerClosed,
    LedgerForked,
    LedgerStopped,
    PenstockError,
    ReadOnly,
    again,
)
from penstock.ledger.commit import BackgroundSync, GroupCommit
from penstock.ledger.damage import QUARANTINE, Damage, DamageListener, DamageReporter
from penstock.ledger.files import Files, OsFiles, as_ledger_error, watch_fork
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import (
    CLOSED_NAME,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    TRANSACTIONS_NAME,
    Closed,
    JsonFiles,
    Manifest,
    Marks,
    save_metadata,
)
from penstock.ledger.log import Begun, Log
from penstock.ledger.opening import LogOpener
from penstock.ledger.queue_directory import DirectoryLock, check_location
from penstock.ledger.segment_header import EVENTS, MESSAGES, segment_name
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.snapshots import Snapshot, Snapshots
from penstock.ledger.space import Space
from penstock.locks import RLock

if TYPE_CHECKING:
    import asyncio

    from penstock.ledger import sync_pool

_EXPECTED = (
    "a queue is a directory, such as ./orders, or a queue of a broker, such as "
    "http://127.0.0.1:8080/default/orders"
)


class PendingSync:
    """What a sync covers whose files are made durable by the caller of `Ledger.begin_sync`."""

    def __init__(self) -> None:
        self.parts: list[tuple[Log, Begun]] = []

    def end(self) -> None:
        """Note that it is durable. Earlier syncs must have ended."""
        for log, begun in self.parts:
            log.end_sync(begun)

    def fail(self, error: OSError) -> PenstockError:
        """Stop the ledger. Return the error for the calls that wait."""
        for log, _ in self.parts:
            return log.fail_sync(error)
        return LedgerStopped(str(error))


class Ledger:
    """The files of one queue, open for writing or for reading. Thread-safe.

    >>> import tempfile
    >>> with Ledger.open(tempfile.mkdtemp()) as ledger:
    ...     seq = ledger.messages.append(b"hello")
    ...     ledger.commit()
    """

    messages: Log
    events: Log

    def __init__(
        self,
        root: Folder,
        settings: LedgerSettings,
        clock: Clock,
        *,
        read_only: bool,
        own_lock: bool,
        on_damage: DamageListener | None,
        on_dirty: Callable[[], None] | None,
        on_stop: Callable[[PenstockError], None] | None,
    ) -> None:
        self.path = root.path
        self.settings = settings
        self._waits = settings.sync == "always"
        self.read_only = read_only
        self.root = root
        self.clock = clock
        self._lock = RLock()
        self._listener = on_damage
        self._reporter = DamageReporter(root, self._damaged, keep_bytes=not read_only)
        self._json = JsonFiles(root, self._reporter, read_only=read_only)
        self._directory_lock = DirectoryLock(root) if own_lock and not read_only else None
        self._space = Space(root, settings)
        self._snapshots = Snapshots(root.child("snapshots"))
        self._group = GroupCommit(self._sync_logs)
        self._background: BackgroundSync | None = None
        self._on_dirty = on_dirty or self._sync_later
        self._on_stop = on_stop
        self._closing = RLock()
        self._closed = False
        self._refusal: PenstockError | None = None
        if read_only:
            self._refusal = ReadOnly(f"{self.path} was opened for reading")
        self.summary: dict[str, Any] = {}  # added to metadata.json for the layer above

    # -- opening -----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str,
        settings: LedgerSettings | None = None,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        read_only: bool = False,
        create: bool = True,
        queue_settings: dict[str, Any] | None = None,
        own_lock: bool = True,
        on_damage: DamageListener | None = None,
        on_dirty: Callable[[], None] | None = None,
        on_stop: Callable[[PenstockError], None] | None = None,
    ) -> "Ledger":
        """Open a directory, or create one. Recover from whatever a crash left.

        `queue_settings` are stored with a new queue, for the layer above. `own_lock=False` is for
        a broker, whose one lock covers all its queues. `on_dirty` replaces the timer of
        `sync="interval"`: it is called when there is something to sync, and must call `sync()`.
        `on_stop` gets the reason when the ledger stops taking writes, once, from any thread.
        """
        settings = settings or LedgerSettings()
        clock = clock or SystemClock()
        # Files that are not the system's have paths of their own: a broker's are URLs.
        location = str(path) if files is not None else check_local(str(path), _EXPECTED)
        root = Folder(files or OsFiles(), location)
        ledger = cls(
            root,
            settings,
            clock,
            read_only=read_only,
            own_lock=own_lock,
            on_damage=on_damage,
            on_dirty=on_dirty,
            on_stop=on_stop,
        )
        try:
            check_location(
                root,
                create=create and not read_only,
                network_too=settings.allow_network_file_system,
            )
            if ledger._directory_lock is not None:
                ledger._directory_lock.take(clock)
            ledger._open_files(queue_settings or {})
            if not read_only:
                watch_fork(ledger)
        except OSError as error:
            ledger.abandon()
            raise as_ledger_error(path, "opening", error) from error
        except BaseException:
            ledger.abandon()
            raise
        return ledger

    @staticmethod
    def stored_queue_settings(path: str, *, files: Files | None = None) -> dict[str, Any]:
        """Return what the layer above stored with a queue; {} if it cannot be read."""
        try:
            root = Folder(files or OsFiles(), str(path))
            return Manifest.unpack(root.read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)).settings
        except (OSError, BadEntry, ValueError):
            return {}

    def check_writable(self) -> None:
        """Raise if the ledger takes no writes: read-only, stopped or closed."""
        if self._refusal is not None:
            raise again(self._refusal)
        self.messages.check_readable()

    def check_open(self) -> None:
        """Raise if the ledger is closed, or was opened before a fork."""
        self.messages.check_readable()

    def _open_files(self, queue_settings: dict[str, Any]) -> None:
        if not self.read_only:
            self.root.sweep()
        closed = self._json.load_closed()
        # Listed before the logs are read: a writer in another process may add snapshots of events
        # that the logs, as read here, do not have.
        self._early_snapshots = frozenset(self._snapshots.seqs())
        self._json.load_manifest(queue_settings, self.clock)
        closed = self._json.check_closed(closed)
        self._json.check_transactions(closed)
        if not self.read_only:
            for name in ("messages", "events", "snapshots"):
                self.root.child(name).make()
            self.root.sync()
            self.root.child(QUARANTINE).sweep()
            self.root.child("snapshots").sweep()
            self.root.child("snapshots").sync()  # a name seen here may be in the cache only
        messages = self._opener("messages", self._reporter, closed)
        self.messages = self._open_log(messages)
        events = self._opener("events", self._reporter, closed)
        self.events = self._open_log(events)
        if self._refusal is not None:
            self._stop(self._refusal)
            return
        self._record_lost_seqs(self.messages, messages)
        self._record_lost_seqs(self.events, events)
        if self._json.has_closed() and (messages.lacks_its_end or events.lacks_its_end):
            self._sync_logs()
            self.root.remove(CLOSED_NAME)  # its log ends are known to be lost
            self.root.sync()

    def _opener(self, name: str, reporter: DamageReporter, closed: Closed | None) -> LogOpener:
        is_messages = name == "messages"
        manifest = self._json.manifest
        log_end = None
        if closed is not None:
            log_end = closed.messages if is_messages else closed.events
        return LogOpener(
            self.root.child(name),
            name,
            kind=MESSAGES if is_messages else EVENTS,
            identity=manifest.identity,
            marks=manifest.messages if is_messages else manifest.events,
            closed=log_end,
            settings=self.settings,
            clock=self.clock,
            reporter=reporter,
            read_only=self.read_only,
            is_current=self._json.are_current,
        )

    def _open_log(self, opener: LogOpener) -> Log:
        return opener.open(
            space=self._space, lock=self._lock, on_dirty=self._on_dirty, on_stop=self._stop
        )

    def _record_lost_seqs(self, log: Log, opener: LogOpener) -> None:
        """Record which seqs are missing, so that none of them is used again."""
        marks = self.marks(log)
        log.skip_to(opener.floor_seq)
        if log.first_seq > marks.low:
            self.save_marks(log, Marks(low=log.first_seq, next=marks.next))

    # -- state -------------------------------------------------------------------------------------

    @property
    def identity(self) -> int:
        """32 random bits, chosen at creation; part of every message's id."""
        return self._json.manifest.identity

    @property
    def created_at_ns(self) -> int:
        return self._json.manifest.created_at_ns

    @property
    def queue_settings(self) -> dict[str, Any]:
        """The settings that the layer above stored with the queue."""
        return dict(self._json.manifest.settings)

    def save_queue_settings(self, settings: dict[str, Any]) -> None:
        """Store the settings of the layer above, durably."""
        with self._lock:
            self._save(replace(self._json.manifest, settings=settings))

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_stopped(self) -> bool:
        """Whether it takes no writes: read-only, damaged, or after a failed write."""
        return self._refusal is not None

    @property
    def refusal(self) -> PenstockError | None:
        """The reason why it takes no writes; None if it takes them."""
        return self._refusal

    def report(self, damage: Damage) -> None:
        """Report damage that the layer above found."""
        self._reporter.report(damage)

    def report_missing(self, log: str, damage: Damage) -> None:
        """Report seqs that a log lacks, unless that was reported before."""
        self._reporter.report_missing(log, damage)

    def next_seq_now(self, log: Log) -> int:
        """Return the next seq of a log according to its files now. A reader's own view is older."""
        if not self.read_only:
            return log.next_seq
        name = "messages" if log is self.messages else "events"
        quiet = DamageReporter(self.root, None, keep_bytes=False)
        try:
            return self._open_log(self._opener(name, quiet, None)).next_seq
        except OSError as error:
            raise as_ledger_error(self.path, "reading", error) from error

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damage found since this ledger was opened."""
        return tuple(self._reporter.found)

    # -- durability --------------------------------------------------------------------------------

    def commit(self) -> None:
        """Return when all earlier appends are as durable as the sync policy promises.

        If the ledger was closed since, they are durable: `close` syncs.
        """
        if self._waits:
            try:
                self._group.wait()
            except LedgerClosed:
                self._check_closed_cleanly()

    def _check_closed_cleanly(self) -> None:
        """Wait for the end of a `close` in another thread. Raise if it did not sync everything."""
        with self._closing:
            if not (self.messages.closed_cleanly and self.events.closed_cleanly):
                raise LedgerStopped(
                    f"{self.path} was closed before this call ended, and its last writes may not "
                    f"be on disk: open it again, and look what is there"
                )

    def commit_async(self) -> "asyncio.Future[None] | None":
        """As `commit`, for asyncio: return a future, or None if there is nothing to wait for."""
        return self._group.wait_async() if self._waits else None

    def sync(self) -> None:
        """Return when all earlier appends are on disk, whatever the policy."""
        self._group.wait()

    def syncs(self) -> "list[Callable[[], None]]":
        """Return the steps of `sync` as calls that may run in parallel threads.

        In turn, they sync messages first. In parallel, a crash in between may leave an event about
        a message that is missing. So it may with any policy other than "always", and opening
        ignores such an event.
        """
        needed = [log.sync for log in (self.messages, self.events) if log.needs_sync]
        return needed or [self.sync]  # which raises if the ledger has stopped

    def begin_sync(self) -> "PendingSync | None":
        """Write what was appended to the files, which the caller then makes durable itself.

        Return None while another sync runs.
        """
        pending = PendingSync()
        for log in (self.events, self.messages):  # messages last: those of all written events
            begun = log.begin_sync()
            if begun is None:
                return None
            pending.parts += [(log, one) for one in begun]
        return pending

    def start_sync(self, pool: "sync_pool.SyncPool", pending: "PendingSync") -> bool:
        """Sync in the background, as jobs of `pool` whose owner is `pending`; see `Log.start_sync`.

        Return False if a log is being synced already. What was started is in `pending.parts`, and
        ends as usual.
        """
        if self._refusal is not None:
            raise again(self._refusal)
        for log in (self.messages, self.events):  # first what the events refer to
            if log.needs_sync:
                begun = log.start_sync(pool, pending)
                if begun is None:
                    return False
                pending.parts.append((log, begun))
        return True

    def _sync_logs(self) -> None:
        # Messages first: an event on disk should not refer to a message that is not.
        self.messages.sync()
        self.events.sync()

    def _sync_later(self) -> None:
        if self.settings.sync in ("interval", "batch"):
            if self._background is None:
                self._background = BackgroundSync(
                    self.sync, interval_s=self.settings.sync_interval_s, name=self.path
                )
            self._background.wake()

    def rest(self) -> None:
        """Sync, and keep no file open until the next append."""
        self.messages.rest()
        self.events.rest()

    def seal_old_segments(self) -> None:
        """Seal segments older than `segment_age_s`, also if nothing is appended."""
        self.messages.seal_if_old()
        self.events.seal_if_old()

    # -- snapshots ---------------------------------------------------------------------------------

    def save_snapshot(self, event_seq: int, blob: bytes) -> None:
        """Save a fold of everything up to and including an event, durably."""
        self.sync()  # after a crash, a snapshot must not be ahead of the logs
        try:
            self._snapshots.save(event_seq, blob)
            self._save_metadata()
        except OSError as error:
            raise as_ledger_error(self.path, "saving a snapshot", error) from error

    def load_snapshot(self) -> Snapshot | None:
        """Return the newest undamaged snapshot.

        If it includes events that the log lacks, the log is damaged: both were on disk together. A
        reader ignores snapshots that a writer in another process has made since.
        """
        last_event = self.events.next_seq - 1
        try:
            snapshot = self._snapshots.newest(upto=last_event, trusted=self._early_snapshots)
        except OSError as error:
            raise as_ledger_error(self.path, "reading the snapshots", error) from error
        if snapshot is not None and snapshot.event_seq > last_event:
            reason = "a snapshot includes events that are not in the log"
            lost = (last_event + 1, snapshot.event_seq)
            self.report_missing("events", Damage(self._end_of("events"), 0, 0, *lost, reason))
        for name, reason in self._snapshots.damaged:
            self._reporter.report(Damage(f"snapshots/{name}", 0, 0, 1, 0, reason))
        self._snapshots.damaged.clear()
        return snapshot

    def check_snapshots_stayed(self) -> None:
        """Raise EntryGone if a writer beside this reader replaced the snapshots it had found."""
        if self.read_only and not self._early_snapshots <= frozenset(self.snapshot_seqs()):
            raise EntryGone(
                f"{self.path}: the writer replaced the snapshots while the queue was opened for "
                f"reading: open it again"
            )

    def _end_of(self, log: str) -> str:
        """Return the file in which a log ends, as reports name it."""
        last = (self.messages if log == "messages" else self.events).segments.last
        return f"{log}/{segment_name(1) if last is None else last.name}"

    def read_snapshot(self, event_seq: int) -> Snapshot:
        """Return one snapshot; ValueError says what is wrong with it."""
        return self._snapshots.read(event_seq)

    def snapshot_seqs(self) -> list[int]:
        """Return the event seqs of the snapshots on disk, rising."""
        try:
            return self._snapshots.seqs()
        except OSError as error:
            raise as_ledger_error(self.path, "reading the snapshots", error) from error

    # -- marks -------------------------------------------------------------------------------------

    def marks(self, log: Log) -> Marks:
        return self._json.manifest.messages if log is self.messages else self._json.manifest.events

    def save_marks(self, log: Log, marks: Marks) -> None:
        """Record durably that entries below `marks.low` are removed, before they are."""
        name = "messages" if log is self.messages else "events"
        with self._lock:
            self._save(self._json.manifest.with_marks(name, marks))

    def _save(self, manifest: Manifest) -> None:
        if self._refusal is not None:
            raise again(self._refusal)
        self._json.save_manifest(manifest, self._space)

    # -- stopping ----------------------------------------------------------------------------------

    def _damaged(self, damage: Damage) -> None:
        if self._listener is not None:
            self._listener(damage)
        if self.settings.on_corruption == "stop" and not damage.torn:
            self._stop(
                CorruptLedger(f"{self.path}: {damage}. on_corruption is 'stop': reading only.")
            )

    def _stop(self, reason: PenstockError) -> None:
        with self._lock:
            is_first = self._refusal is None
            self._refusal = self._refusal or reason
            for log in self._opened_logs():
                log.refuse(reason)
        if is_first and self._on_stop is not None:
            self._on_stop(reason)

    def forked(self) -> None:
        """Disable this handle in a forked child, and close its copy of the parent's lock."""
        self._lock, self._closing = RLock(), RLock()
        reason = LedgerForked(
            f"{self.path} was opened before this process was forked: open it again in the child "
            f"after the parent closed it, or fork first."
        )
        for log in (self.messages, self.events):
            log.forked(self._lock, reason)
        self._group = GroupCommit(self._sync_logs)  # the old one may have a leader
        self._refusal = reason
        self._closed = True
        self._unlock()

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync everything and release the directory.

        May be called again: if an interrupt ended the first call, the next one continues.
        """
        with self._closing:
            if self._closed:
                return
            if self._background is not None:
                self._background.end()
            closed = LedgerClosed(f"{self.path} is closed; open it again")
            try:
                try:
                    self.messages.close(closed)
                finally:
                    self.events.close(closed)
                if self._refusal is None:
                    self._save_closed()
                    self._save_metadata()
            except OSError as error:
                raise as_ledger_error(self.path, "closing", error) from error
            finally:
                self._refusal = self._refusal or closed
                self._group.close()
                self._unlock()
                self._closed = True

    def abandon(self) -> None:
        """Close all files without writing anything, as the death of the process does."""
        if self._background is not None:
            self._background.end()
        for log in self._opened_logs():
            log.abandon()
        self._unlock()
        self._closed = True

    def _opened_logs(self) -> list[Log]:
        """Return the logs. While the ledger is being opened, some are missing."""
        logs = (getattr(self, "messages", None), getattr(self, "events", None))
        return [log for log in logs if log is not None]

    def _unlock(self) -> None:
        if self._directory_lock is not None:
            self._directory_lock.release()

    def _save_closed(self) -> None:
        """Record where the logs end. The name is synced together with that of metadata.json."""
        if not (self.messages.closed_cleanly and self.events.closed_cleanly):
            return
        has_transactions = self.root.has(TRANSACTIONS_NAME)
        closed = Closed(self.identity, self.messages.end, self.events.end, has_transactions)
        try:
            self.root.replace(CLOSED_NAME, closed.pack(), sync_name=False)
        except OSError:
            pass  # for example a full disk: the next opening is then as after a crash

    def _save_metadata(self) -> None:
        save_metadata(
            self.root,
            now_ns=self.clock.now_ns(),
            created_at_ns=self.created_at_ns,
            facts={
                "next_message_id": self.messages.next_seq,
                "segment_count": len(self.messages.segments.all),
                **self.summary,
            },
        )

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
