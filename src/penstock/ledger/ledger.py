"""A queue's directory: two logs, snapshots, a lock, and the promise that all of it survives.

The ledger knows files, not queues: what an entry or an event means is decided above.
"""

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Any

from penstock.checking import check_local
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    BadEntry,
    CorruptLedger,
    LedgerClosed,
    LedgerForked,
    NewerVersion,
    PenstockError,
    ReadOnly,
    again,
)
from penstock.ledger.background_sync import BackgroundSync
from penstock.ledger.closed import CLOSED_NAME, MAX_CLOSED_BYTES, Closed, LogEnd
from penstock.ledger.commit import GroupCommit
from penstock.ledger.damage import QUARANTINE, Damage, DamageDesk, DamageListener
from penstock.ledger.files import Files, OsFiles, watch_fork
from penstock.ledger.folder import Folder
from penstock.ledger.lock import DirectoryLock
from penstock.ledger.log import Log
from penstock.ledger.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Marks
from penstock.ledger.metadata import save_metadata
from penstock.ledger.opening import LogOpener, identity_of_segments
from penstock.ledger.place import check_place
from penstock.ledger.segment_header import EVENTS, MESSAGES, base_seq_of, segment_name
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.snapshots import Snapshot, Snapshots
from penstock.ledger.space import Space
from penstock.ledger.system_errors import as_ledger_error
from penstock.ledger.transactions import MAX_TRANSACTIONS_BYTES, TRANSACTIONS_NAME, Memory

if TYPE_CHECKING:
    import asyncio

_WANTED = (
    "a queue is a directory, such as ./orders, or a queue of a broker, such as "
    "http://127.0.0.1:8080/default/orders"
)


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
    ) -> None:
        self.path = root.path
        self.settings = settings
        self._waits = settings.sync == "always"
        self.read_only = read_only
        self._root = root
        self._clock = clock
        self._lock = RLock()
        self._listener = on_damage
        self._desk = DamageDesk(root, self._damaged, keep_bytes=not read_only)
        self._directory_lock = DirectoryLock(root) if own_lock and not read_only else None
        self._space = Space(root, settings)
        self._snapshots = Snapshots(root.child("snapshots"))
        self._group = GroupCommit(self._sync_logs)
        self._background: BackgroundSync | None = None
        self._on_dirty = on_dirty or self._sync_later
        self._closing = RLock()
        self._closed = False
        self._refusal: PenstockError | None = None
        if read_only:
            self._refusal = ReadOnly(f"{self.path} was opened for reading")
        self.summary: dict[str, Any] = {}  # what the layer above wants to see in metadata.json

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
    ) -> "Ledger":
        """Open a directory, or make one; recovers by itself from whatever a crash left.

        `queue_settings` are stored with a new queue, for the layer above. `own_lock=False` is for
        a broker, whose one lock covers all its queues. `on_dirty` takes over the timer of
        `sync="interval"`: it is called when there is something to sync, and must see to `sync()`.
        """
        settings = settings or LedgerSettings()
        clock = clock or SystemClock()
        # Files that are not the system's have paths of their own: a broker's are URLs.
        place = str(path) if files is not None else check_local(str(path), _WANTED)
        root = Folder(files or OsFiles(), place)
        ledger = cls(
            root,
            settings,
            clock,
            read_only=read_only,
            own_lock=own_lock,
            on_damage=on_damage,
            on_dirty=on_dirty,
        )
        try:
            check_place(
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
            ledger._unlock()
            raise as_ledger_error(path, "opening", error) from error
        except BaseException:
            ledger._unlock()
            raise
        return ledger

    @staticmethod
    def stored_queue_settings(path: str, *, files: Files | None = None) -> dict[str, Any]:
        """What the layer above stored with a queue; nothing where that cannot be read."""
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
        """Raise if the ledger was closed or stopped meanwhile."""
        self.messages.check_readable()

    def _open_files(self, queue_settings: dict[str, Any]) -> None:
        if not self.read_only:
            self._root.sweep()
        self._closed_data, last_close = self._load_closed()
        # Known before the logs are read: of later ones, made by a writer beside us, they may lack
        # events.
        self._early_snapshots = frozenset(self._snapshots.seqs())
        self._manifest = self._load_manifest(queue_settings)
        if last_close is not None and last_close.identity != self._manifest.identity:
            data = self._closed_data or b""
            reason = f"belongs to another queue (identity {last_close.identity:08x})"
            self._desk.report(Damage(CLOSED_NAME, 0, len(data), 1, 0, reason), data)
            last_close = None
        self._check_transactions(last_close)
        for name in ("messages", "events", "snapshots"):
            if not self.read_only:
                self._root.child(name).make()
        if not self.read_only:
            self._root.sync()
            self._root.child(QUARANTINE).sweep()
            self._root.child("snapshots").sweep()
            self._root.child("snapshots").sync()  # a name seen here may be in the cache only
        messages = self._opener("messages", self._desk, last_close)
        self.messages = self._open_log(messages)
        events = self._opener("events", self._desk, last_close)
        self.events = self._open_log(events)
        if self._refusal is not None:
            self._stop(self._refusal)
            return
        self._account_for_lost(self.messages, messages)
        self._account_for_lost(self.events, events)
        if self._closed_data is not None and (messages.lacks_its_end or events.lacks_its_end):
            self._sync_logs()
            self._root.remove(CLOSED_NAME)  # it speaks of what is known to be lost
            self._root.sync()

    def _opener(self, name: str, desk: DamageDesk, last_close: Closed | None) -> LogOpener:
        is_messages = name == "messages"
        manifest = self._manifest
        closed = None
        if last_close is not None:
            closed = last_close.messages if is_messages else last_close.events
        return LogOpener(
            self._root.child(name),
            name,
            kind=MESSAGES if is_messages else EVENTS,
            identity=manifest.identity,
            marks=manifest.messages if is_messages else manifest.events,
            closed=closed,
            settings=self.settings,
            clock=self._clock,
            desk=desk,
            read_only=self.read_only,
            is_current=self._is_current,
        )

    def _open_log(self, opener: LogOpener) -> Log:
        return opener.open(
            space=self._space, lock=self._lock, on_dirty=self._on_dirty, on_stop=self._stop
        )

    def _account_for_lost(self, log: Log, opener: LogOpener) -> None:
        """Have it on record which seqs are not there, so that none is used again."""
        marks = self.marks(log)
        log.skip_to(opener.floor_seq)
        if log.first_seq > marks.low:
            self.save_marks(log, Marks(low=log.first_seq, next=marks.next))

    def _load_closed(self) -> tuple[bytes | None, Closed | None]:
        """What closed.json holds, and what that means if it can be read."""
        data = None
        try:
            data = self._root.read(CLOSED_NAME, max_bytes=MAX_CLOSED_BYTES)
            return data, Closed.unpack(data)
        except FileNotFoundError:
            return None, None
        except NewerVersion:
            raise
        except (BadEntry, ValueError) as error:
            damaged = data or b""
            self._desk.report(Damage(CLOSED_NAME, 0, len(damaged), 1, 0, str(error)), damaged)
            return damaged, None

    def _check_transactions(self, last_close: Closed | None) -> None:
        """Report a transactions.json that is damaged, or gone since the queue was closed."""
        data = b""
        try:
            data = self._root.read(TRANSACTIONS_NAME, max_bytes=MAX_TRANSACTIONS_BYTES)
            Memory.unpack(data)
            return
        except FileNotFoundError:
            if last_close is None or not last_close.transactions:
                return
            reason = "it is missing: a job that was taken in before would be taken in again"
        except NewerVersion:
            return  # for those who need it to refuse
        except (BadEntry, ValueError) as error:
            reason = str(error)
        self._desk.report(Damage(TRANSACTIONS_NAME, 0, len(data), 1, 0, reason), data)

    def _is_current(self) -> bool:
        """Do queue.json and closed.json still say what was read? Beside a writer they may not."""
        if not self.read_only:
            return True
        try:
            manifest = Manifest.unpack(self._root.read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES))
        except (OSError, BadEntry, ValueError):
            manifest = self._manifest  # reported
        try:
            data = self._root.read(CLOSED_NAME, max_bytes=MAX_CLOSED_BYTES)
        except (OSError, ValueError):
            data = None
        return manifest == self._manifest and data == self._closed_data

    def _load_manifest(self, queue_settings: dict[str, Any]) -> Manifest:
        data = None
        try:
            data = self._root.read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
            return Manifest.unpack(data)
        except FileNotFoundError:
            pass  # a new queue, or a crash while it was made
        except NewerVersion:
            raise
        except (BadEntry, ValueError) as error:
            damaged = data or b""
            self._desk.report(Damage(MANIFEST_NAME, 0, len(damaged), 1, 0, str(error)), damaged)
        identity = identity_of_segments(self._root)
        if identity is not None and data is None:
            self._desk.report(Damage(MANIFEST_NAME, 0, 0, 1, 0, "the file is missing"))
        manifest = Manifest(
            identity=self._root.files.random_identity() if identity is None else identity,
            created_at_ns=self._clock.now_ns(),
            settings=queue_settings,
            messages=self._guessed_marks("messages"),
            events=self._guessed_marks("events"),
        )
        if not self.read_only:
            manifest.save(self._root)
        return manifest

    def _guessed_marks(self, log: str) -> Marks:
        """The marks of a log where queue.json is lost."""
        names = self._root.child(log).names()
        bases = [base for name in names if (base := base_seq_of(name)) is not None]
        return Marks(low=min(bases, default=1))

    # -- what it is --------------------------------------------------------------------------------

    @property
    def identity(self) -> int:
        """32 random bits, given once; part of every message's id."""
        return self._manifest.identity

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def created_at_ns(self) -> int:
        return self._manifest.created_at_ns

    @property
    def queue_settings(self) -> dict[str, Any]:
        """What the layer above stored with the queue."""
        return dict(self._manifest.settings)

    def save_queue_settings(self, settings: dict[str, Any]) -> None:
        """Store the settings of the layer above, durably."""
        with self._lock:
            self._save(self._manifest.with_settings(settings))

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_stopped(self) -> bool:
        """Does it take no writes: read-only, damaged, or after a failed write?"""
        return self._refusal is not None

    @property
    def refusal(self) -> PenstockError | None:
        """Why it takes no writes; None if it does."""
        return self._refusal

    def report(self, damage: Damage) -> None:
        """Damage that the layer above found in what it reads."""
        self._desk.report(damage)

    def report_missing(self, log: str, damage: Damage) -> None:
        """Report seqs that a log lacks, unless that was found out before by other means."""
        for known in self._desk.found:
            if (
                known.file.startswith(log)
                and known.first_lost_seq <= damage.first_lost_seq
                and known.last_lost_seq >= damage.last_lost_seq
            ):
                return
        self._desk.report(damage)

    def next_seq_now(self, log: Log) -> int:
        """The next seq of a log as its files show it now. A reader's own view is older."""
        if not self.read_only:
            return log.next_seq
        name = "messages" if log is self.messages else "events"
        quiet = DamageDesk(self._root, None, keep_bytes=False)
        try:
            return self._open_log(self._opener(name, quiet, None)).next_seq
        except OSError as error:
            raise as_ledger_error(self.path, "reading", error) from error

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What was found damaged since this ledger was opened."""
        return tuple(self._desk.found)

    # -- durability --------------------------------------------------------------------------------

    def commit(self) -> None:
        """Return when what was appended before is as durable as the sync policy promises."""
        if self._waits:
            self._group.wait()

    def commit_async(self) -> "asyncio.Future[None] | None":
        """The same for asyncio: await the answer, unless it is None (nothing to wait for)."""
        return self._group.wait_async() if self._waits else None

    def sync(self) -> None:
        """Return when everything appended before is on disk, whatever the policy."""
        self._group.wait()

    def syncs(self) -> "list[Callable[[], None]]":
        """The same as calls that may run side by side, each in a thread: done when all are.

        A power cut in between may leave an event that speaks of a message which is not there. That
        is what it can leave with any other policy than "always", and opening knows it.
        """
        needed = [log.sync for log in (self.events, self.messages) if log.needs_sync]
        return needed or [self.sync]  # which tells if the ledger has stopped

    def _sync_logs(self) -> None:
        # Messages first: an event on disk should not speak of a message that is not.
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
        """Sync, and hold no open file until the next append."""
        self.messages.rest()
        self.events.rest()

    def seal_old_segments(self) -> None:
        """Seal what is older than `segment_age_s`, also where nothing is appended."""
        self.messages.seal_if_old()
        self.events.seal_if_old()

    # -- snapshots ---------------------------------------------------------------------------------

    def save_snapshot(self, event_seq: int, blob: bytes) -> None:
        """Keep a fold of everything up to and including an event, durably."""
        self.sync()  # a snapshot must not know more than the logs do after a crash
        try:
            self._snapshots.save(event_seq, blob)
            self._save_metadata()
        except OSError as error:
            raise as_ledger_error(self.path, "saving a snapshot", error) from error

    def load_snapshot(self) -> Snapshot | None:
        """The newest snapshot that is whole.

        One that includes events which the log lacks is damage to the log, as both were on disk
        together. A reader passes over those that a writer beside it made meanwhile.
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
            self._desk.report(Damage(f"snapshots/{name}", 0, 0, 1, 0, reason))
        self._snapshots.damaged.clear()
        return snapshot

    def _end_of(self, log: str) -> str:
        """The file in which a log ends, as reports name it."""
        last = (self.messages if log == "messages" else self.events).segments.last
        return f"{log}/{segment_name(1) if last is None else last.name}"

    def read_snapshot(self, event_seq: int) -> Snapshot:
        """One of them; ValueError says what is wrong with it."""
        return self._snapshots.read(event_seq)

    def snapshot_seqs(self) -> list[int]:
        """The events that the snapshots on disk include, rising."""
        try:
            return self._snapshots.seqs()
        except OSError as error:
            raise as_ledger_error(self.path, "reading the snapshots", error) from error

    # -- marks -------------------------------------------------------------------------------------

    def marks(self, log: Log) -> Marks:
        return self._manifest.messages if log is self.messages else self._manifest.events

    def save_marks(self, log: Log, marks: Marks) -> None:
        """Make durable that entries below `marks.low` are removed, before they are."""
        name = "messages" if log is self.messages else "events"
        with self._lock:
            self._save(self._manifest.with_marks(name, marks))

    def _save(self, manifest: Manifest) -> None:
        if self._refusal is not None:
            raise again(self._refusal)
        try:
            self._space.essential(
                lambda: manifest.save(self._root), lambda: manifest.save(self._root)
            )
        except OSError as error:
            raise as_ledger_error(self.path, f"saving {MANIFEST_NAME}", error) from error
        self._manifest = manifest

    # -- trouble -----------------------------------------------------------------------------------

    def _damaged(self, damage: Damage) -> None:
        if self._listener is not None:
            self._listener(damage)
        if self.settings.on_corruption == "stop" and not damage.torn:
            self._stop(
                CorruptLedger(f"{self.path}: {damage}. on_corruption is 'stop': reading only.")
            )

    def _stop(self, reason: PenstockError) -> None:
        with self._lock:
            self._refusal = self._refusal or reason
            for log in (getattr(self, "messages", None), getattr(self, "events", None)):
                if log is not None:  # None: damage was found while it is being opened
                    log.refuse(reason)

    def forked(self) -> None:
        """In a forked child: poison this handle, and let go of the parent's lock."""
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
        """Sync everything and let go of the directory.

        May be called again: where an interrupt ended the first call, the next one goes on.
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

    def _unlock(self) -> None:
        if self._directory_lock is not None:
            self._directory_lock.release()

    def _save_closed(self) -> None:
        """Note where the logs end. Its name is synced with that of metadata.json."""
        if not (self.messages.ended_well and self.events.ended_well):
            return
        closed = Closed(
            self.identity,
            LogEnd.of(self.messages),
            LogEnd.of(self.events),
            self._root.has(TRANSACTIONS_NAME),
        )
        try:
            self._root.replace(CLOSED_NAME, closed.pack(), sync_name=False)
        except OSError:
            pass  # a full disk, say: without it, the next opening is as after a crash

    def _save_metadata(self) -> None:
        save_metadata(
            self._root,
            now_ns=self._clock.now_ns(),
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
