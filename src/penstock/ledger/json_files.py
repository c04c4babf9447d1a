"""The small JSON files of a queue, each replaced as a whole.

- `queue.json` (`Manifest`): identity, settings, and how far each log was removed.
- `closed.json` (`Closed`): where each log ended when the queue was last closed.
- `transactions.json` (`Transactions`): which transactions were adopted.
- `metadata.json`: a summary for people and tools. It is never read back.

All but the last carry a checksum over their content.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.clock import Clock
from penstock.codec import crc32c
from penstock.codec.layout import MAX_SEQ, MAX_TIMESTAMP_NS
from penstock.errors import BadEntry, LedgerError, NewerVersion, TooLarge
from penstock.ledger.damage import Damage, DamageReporter
from penstock.ledger.files import as_ledger_error
from penstock.ledger.folder import Folder, read_fully
from penstock.ledger.segment_header import (
    FORMAT_VERSION,
    HEADER_BYTES,
    SegmentHeader,
    base_seq_of,
)
from penstock.ledger.space import Space

MANIFEST_NAME = "queue.json"
MAX_MANIFEST_BYTES = 1 << 20
CLOSED_NAME = "closed.json"
MAX_CLOSED_BYTES = 1 << 16
TRANSACTIONS_NAME = "transactions.json"
MAX_TRANSACTIONS_BYTES = 8 << 20
METADATA_NAME = "metadata.json"

TRANSACTION_TAG = 240  # attribute of the first message of a transaction that was appended
MAX_REMEMBERED = 10_000  # applications; the least recently used is forgotten first

_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


# -- JSON with a checksum --------------------------------------------------------------------------


def pack_checked(content: dict[str, Any]) -> bytes:
    """Return the content as indented JSON, with its checksum as member `crc`."""
    checksum = crc32c(_canonical(content))
    return (json.dumps({**content, "crc": checksum}, indent=1) + "\n").encode()


def unpack_checked(name: str, data: bytes) -> dict[str, Any]:
    """Return the content of a file.

    Raise BadEntry if the file is damaged, NewerVersion if a newer version wrote it.
    """
    try:
        content = json.loads(data)
        checksum = content.pop("crc")
        if checksum != crc32c(_canonical(content)):
            raise BadEntry(0, f"the checksum of {name} does not match")
        if content["format"] > FORMAT_VERSION:
            raise NewerVersion(0, f"{name} was written by a newer version")
    except _UNREADABLE as error:
        raise BadEntry(0, f"{name} cannot be read: {error}") from None
    assert isinstance(content, dict)  # only a dict has `pop`
    return content


def _whole(value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} is not between {low} and {high}")
    return value


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


# -- queue.json ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marks:
    """Low and next seq of one log: entries below `low` are removed, seqs below `next` are used."""

    low: int = 1
    next: int = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of queue.json.

    If it is lost, the identity is read from the segment headers and the settings are the defaults.
    """

    identity: int
    created_at_ns: int
    settings: dict[str, Any] = field(default_factory=dict)
    messages: Marks = Marks()
    events: Marks = Marks()

    def with_marks(self, log: str, marks: Marks) -> "Manifest":
        if log == "messages":
            return replace(self, messages=marks)
        return replace(self, events=marks)

    def pack(self) -> bytes:
        content = {
            "format": FORMAT_VERSION,
            "identity": self.identity,
            "created_at_ns": self.created_at_ns,
            "settings": self.settings,
            "marks": {"messages": asdict(self.messages), "events": asdict(self.events)},
        }
        return pack_checked(content)

    @classmethod
    def unpack(cls, data: bytes) -> "Manifest":
        """Raise BadEntry if the data is damaged, NewerVersion if a newer version wrote it."""
        content = unpack_checked(MANIFEST_NAME, data)
        try:
            marks = content["marks"]
            return cls(
                identity=_whole(content["identity"], 0, (1 << 32) - 1),
                created_at_ns=_whole(content["created_at_ns"], 0, MAX_TIMESTAMP_NS),
                settings={**content["settings"]},
                messages=_marks(**marks["messages"]),
                events=_marks(**marks["events"]),
            )
        except _UNREADABLE as error:
            raise BadEntry(0, f"{MANIFEST_NAME} cannot be read: {error}") from None

    def save(self, root: Folder) -> None:
        """Replace queue.json durably; raise TooLarge if it would be too large to read back."""
        data = self.pack()
        if len(data) > MAX_MANIFEST_BYTES:
            raise TooLarge(
                f"the settings make {MANIFEST_NAME} {len(data)} bytes long; the maximum is "
                f"{MAX_MANIFEST_BYTES}"
            )
        root.replace(MANIFEST_NAME, data)


def _marks(*, low: int, next: int) -> Marks:
    return Marks(_whole(low, 1, MAX_SEQ), _whole(next, 1, MAX_SEQ))


# -- closed.json -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where one log ended."""

    last: int = 0  # base seq of its last segment; 0: it had none
    bytes: int = 0  # end of the entries in that segment
    next: int = 1  # the next seq


@dataclass(frozen=True, slots=True)
class Closed:
    """The content of closed.json.

    Closing writes it after everything else is on disk. Afterwards a log never gets shorter: writers
    append to it, and recovery cuts off only what came later. So anything that is recorded here and
    missing was lost, and no write before that end can be unfinished. A longer log is fine: it was
    written to since, and perhaps killed. The same holds for transactions.json.

    Opening removes the file only if a log lacks part of what it records, after the damage was
    reported and the lost seqs were recorded.
    """

    identity: int
    messages: LogEnd
    events: LogEnd
    transactions: bool = False  # there was a transactions.json

    def pack(self) -> bytes:
        content = {"format": FORMAT_VERSION, **asdict(self)}
        if not self.transactions:
            del content["transactions"]
        return pack_checked(content)

    @classmethod
    def unpack(cls, data: bytes) -> "Closed":
        """Raise BadEntry if the data is damaged, NewerVersion if a newer version wrote it."""
        content = unpack_checked(CLOSED_NAME, data)
        try:
            return cls(
                _whole(content["identity"], 0, (1 << 32) - 1),
                _log_end(**content["messages"]),
                _log_end(**content["events"]),
                content.get("transactions") is True,
            )
        except _UNREADABLE as error:
            raise BadEntry(0, f"{CLOSED_NAME} cannot be read: {error}") from None


def _log_end(*, last: int, bytes: int, next: int) -> LogEnd:
    return LogEnd(_whole(last, 0, MAX_SEQ), _whole(bytes, 0, MAX_SEQ), _whole(next, 1, MAX_SEQ))


# -- transactions.json -----------------------------------------------------------------------------


class Transaction(NamedTuple):
    """The name of one adoption. The versions of an application rise."""

    app: str
    version: int

    @property
    def tag_value(self) -> bytes:
        """The value of attribute TRANSACTION_TAG on the first message of an appended batch."""
        return f"{self.version}:{self.app}".encode()


@dataclass(frozen=True, slots=True)
class Transactions:
    """The content of transactions.json: the last adopted version of each application.

    `pending` names the adoption that is about to happen, so that a crash leaves it decidable.
    """

    done: dict[str, tuple[int, int, int]]  # application -> version, first seq, entries
    pending: dict[str, Any] | None = None

    @classmethod
    def unpack(cls, data: bytes) -> "Transactions":
        """Raise BadEntry if the data is damaged, NewerVersion if a newer version wrote it."""
        content = unpack_checked(TRANSACTIONS_NAME, data)
        try:
            done = {app: (v, seq, n) for app, (v, seq, n) in content["done"].items()}
            return cls(done, content["pending"])
        except _UNREADABLE as error:
            raise BadEntry(0, f"{TRANSACTIONS_NAME} cannot be read: {error}") from None

    @classmethod
    def load(cls, root: Folder) -> "Transactions":
        """Return the content of the file in a directory; LedgerError if it cannot be read."""
        try:
            return cls.unpack(root.read(TRANSACTIONS_NAME, max_bytes=MAX_TRANSACTIONS_BYTES))
        except FileNotFoundError:
            return cls({})
        except OSError as error:
            raise as_ledger_error(root.path, f"reading {TRANSACTIONS_NAME}", error) from error
        except (BadEntry, ValueError) as error:
            raise LedgerError(
                f"{root.path}/{TRANSACTIONS_NAME} cannot be read ({error}), so it is unknown which "
                f"transactions are in the queue. Make sure that none will be repeated, then remove "
                f"the file."
            ) from None

    def save(self, root: Folder) -> None:
        done = dict(list(self.done.items())[-MAX_REMEMBERED:])
        data = pack_checked({"format": FORMAT_VERSION, "done": done, "pending": self.pending})
        try:
            root.replace(TRANSACTIONS_NAME, data)
        except OSError as error:
            raise as_ledger_error(root.path, f"saving {TRANSACTIONS_NAME}", error) from error

    def with_done(self, transaction: Transaction, first_seq: int, entries: int) -> "Transactions":
        others = {app: entry for app, entry in self.done.items() if app != transaction.app}
        entry = (transaction.version, first_seq, entries)
        return Transactions({**others, transaction.app: entry}, None)


# -- metadata.json ---------------------------------------------------------------------------------


def save_metadata(
    root: Folder, *, now_ns: int, created_at_ns: int, facts: Mapping[str, object]
) -> None:
    """Replace metadata.json, if the disk has room for it."""
    metadata = {
        "version": 1,
        "created_at": _as_text(created_at_ns),
        "updated_at": _as_text(now_ns),
        **facts,
    }
    try:
        root.replace(METADATA_NAME, (json.dumps(metadata, indent=1) + "\n").encode())
    except OSError:
        pass  # for example a full disk: no reason to fail a close or a snapshot


def _as_text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")


# -- opening ---------------------------------------------------------------------------------------


class JsonFiles:
    """Reads the files when a ledger is opened, and reports those that are damaged or missing.

    Holds the content of queue.json, and replaces it.
    """

    manifest: Manifest  # after `load_manifest`

    def __init__(self, root: Folder, reporter: DamageReporter, *, read_only: bool) -> None:
        self._root = root
        self._reporter = reporter
        self._read_only = read_only
        self._closed_data: bytes | None = None

    def load_closed(self) -> Closed | None:
        """Return the content of closed.json; None if it is missing or damaged."""
        try:
            self._closed_data = self._root.read(CLOSED_NAME, max_bytes=MAX_CLOSED_BYTES)
            return Closed.unpack(self._closed_data)
        except FileNotFoundError:
            return None
        except NewerVersion:
            raise
        except (BadEntry, ValueError) as error:
            self._closed_data = self._closed_data or b""
            self._report(CLOSED_NAME, str(error), self._closed_data)
            return None

    def load_manifest(self, settings: dict[str, Any], clock: Clock) -> None:
        """Read queue.json; make a new one, with `settings`, if it is lost."""
        self.manifest = self._load_manifest(settings, clock)

    def _load_manifest(self, settings: dict[str, Any], clock: Clock) -> Manifest:
        data = None
        try:
            data = self._root.read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
            return Manifest.unpack(data)
        except FileNotFoundError:
            pass  # a new queue, or a crash while it was created
        except NewerVersion:
            raise
        except (BadEntry, ValueError) as error:
            data = data or b""
            self._report(MANIFEST_NAME, str(error), data)
        identity = _identity_of_segments(self._root)
        if identity is not None and data is None:
            self._report(MANIFEST_NAME, "the file is missing")
        manifest = Manifest(
            identity=self._root.files.random_identity() if identity is None else identity,
            created_at_ns=clock.now_ns(),
            settings=settings,
            messages=self._guess_marks("messages"),
            events=self._guess_marks("events"),
        )
        if not self._read_only:
            manifest.save(self._root)
        return manifest

    def save_manifest(self, manifest: Manifest, space: Space) -> None:
        """Replace queue.json durably."""
        try:
            space.essential(lambda: manifest.save(self._root), lambda: manifest.save(self._root))
            self.manifest = manifest
        except BaseException as error:
            if self._may_hold(manifest):  # interrupted, or the name was not synced
                self.manifest = manifest
            if isinstance(error, OSError):
                raise as_ledger_error(self._root.path, f"saving {MANIFEST_NAME}", error) from error
            raise

    def _may_hold(self, manifest: Manifest) -> bool:
        """Return whether queue.json has this content, or cannot be read."""
        try:
            data = self._root.read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
        except (OSError, ValueError):
            return True
        return data == manifest.pack()

    def check_closed(self, closed: Closed | None) -> Closed | None:
        """Return `closed` if it belongs to this queue; report it and return None if not."""
        if closed is None or closed.identity == self.manifest.identity:
            return closed
        reason = f"belongs to another queue (identity {closed.identity:08x})"
        self._report(CLOSED_NAME, reason, self._closed_data or b"")
        return None

    def check_transactions(self, closed: Closed | None) -> None:
        """Report a transactions.json that is damaged, or missing since the queue was closed."""
        data = b""
        try:
            data = self._root.read(TRANSACTIONS_NAME, max_bytes=MAX_TRANSACTIONS_BYTES)
            Transactions.unpack(data)
            return
        except FileNotFoundError:
            if closed is None or not closed.transactions:
                return
            reason = "it is missing: a job that was adopted before would be adopted again"
        except NewerVersion:
            return  # those who need it will refuse
        except (BadEntry, ValueError) as error:
            reason = str(error)
        self._report(TRANSACTIONS_NAME, reason, data)

    def has_closed(self) -> bool:
        """Return whether there was a closed.json, readable or not."""
        return self._closed_data is not None

    def are_current(self) -> bool:
        """Return whether queue.json and closed.json still hold what was read.

        A writer in another process may have replaced them.
        """
        if not self._read_only:
            return True
        try:
            packed = self._root.read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
            if Manifest.unpack(packed) != self.manifest:
                return False
        except (OSError, BadEntry, ValueError):
            pass  # reported
        try:
            return self._root.read(CLOSED_NAME, max_bytes=MAX_CLOSED_BYTES) == self._closed_data
        except (OSError, ValueError):
            return self._closed_data is None

    def _guess_marks(self, log: str) -> Marks:
        """Return the marks of a log whose queue.json is lost."""
        names = self._root.child(log).names()
        bases = [base for name in names if (base := base_seq_of(name)) is not None]
        return Marks(low=min(bases, default=1))

    def _report(self, name: str, reason: str, data: bytes = b"") -> None:
        self._reporter.report(Damage(name, 0, len(data), 1, 0, reason), data)


def _identity_of_segments(root: Folder) -> int | None:
    """Return the identity in the segment headers, for when queue.json is lost."""
    for log in ("messages", "events"):
        folder = root.child(log)
        for name in folder.names():
            if base_seq_of(name) is None:
                continue
            fd = folder.files.open(folder.file(name), "read")
            try:
                data = read_fully(folder.files, fd, HEADER_BYTES, 0)
                return SegmentHeader.unpack(data).identity
            except BadEntry:
                continue
            finally:
                folder.files.close(fd)
    return None
