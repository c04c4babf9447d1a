"""What can be set about a queue. Stored with it; changing a setting never changes old messages."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypedDict, get_args

from penstock.checking import Duration, as_seconds, check_choice, check_number, did_you_mean
from penstock.errors import InvalidInput
from penstock.ledger import LedgerSettings, Retention
from penstock.ledger.settings import OnCorruption, SyncPolicy

WhenFull = Literal["reject", "block", "drop_oldest"]
Compression = Literal["none", "gzip", "zstd"]

YEARS_S = 100 * 365 * 86400.0
MIN_LEASE_S = 0.001
MAX_LEASE_S = 7 * 86400.0
MOST_IN_BATCH = 100_000
MOST_PAYLOAD_BYTES = 512 << 20
# Whatever `max_payload_bytes` says now: a message published under a larger one must be read.
_MAX_ENTRY_BYTES = MOST_PAYLOAD_BYTES + (4 << 20)
MOST_ATTEMPTS = 0xFFFF  # what an event and a receipt have room for


class QueueOptions(TypedDict, total=False):
    """The settings of a queue as keyword arguments: any fields of `QueueSettings`."""

    lease_s: Duration
    max_attempts: int
    backoff_base_s: Duration
    backoff_factor: float
    backoff_max_s: Duration
    backoff_jitter: float
    starvation_after_s: Duration
    default_priority: int
    default_ttl_s: Duration
    compression: Compression
    compression_level: int
    compression_min_bytes: int
    max_payload_bytes: int
    max_unpacked_bytes: int
    dedup_window_s: Duration
    dedup_entries: int
    max_batch: int
    max_messages: int
    max_bytes: int
    when_full: WhenFull
    block_s: Duration
    rate_per_s: float
    rate_burst: float
    retention_s: Duration
    retention_bytes: int
    retention_segments: int
    retention_min_segments: int
    archive_required: bool
    dead_retention_s: Duration
    dead_max_messages: int
    dead_max_bytes: int
    snapshot_every: int
    auto_compact: bool
    compact_interval_s: Duration
    sync: SyncPolicy
    sync_interval_s: Duration
    sync_batch: int
    segment_bytes: int
    segment_entries: int
    segment_age_s: Duration
    min_free_bytes: int
    on_corruption: OnCorruption
    allow_network_file_system: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings of one queue. `docs/settings.md` lists them; a test compares the two."""

    # delivery
    lease_s: float = 30.0
    # 20 attempts over 1 h 47 min: what fails while a service is away outlives most outages.
    max_attempts: int = 20
    backoff_base_s: float = 1.0
    backoff_factor: float = 2.0
    backoff_max_s: float = 600.0
    backoff_jitter: float = 0.1  # part of the backoff, up and down
    starvation_after_s: float = 60.0  # 0: strict priorities
    # messages
    default_priority: int = 5
    default_ttl_s: float = 0.0  # 0: none
    compression: Compression = "none"
    compression_level: int = 6
    compression_min_bytes: int = 1024
    max_payload_bytes: int = 16 << 20
    max_unpacked_bytes: int = 100 << 20  # what a compressed payload may unpack to
    dedup_window_s: float = 300.0
    dedup_entries: int = 100_000
    # bounds
    max_batch: int = MOST_IN_BATCH  # messages of one publish
    max_messages: int = 0  # 0: no bound
    max_bytes: int = 0
    when_full: WhenFull = "reject"
    block_s: float = 30.0  # of when_full="block": the longest wait
    rate_per_s: float = 0.0  # 0: no limit
    rate_burst: float = 0.0  # 0: as much as a second's worth
    # keeping
    retention_s: float = 0.0  # how long what is done with stays for replay; 0: no such limit
    retention_bytes: int = 0
    retention_segments: int = 0
    retention_min_segments: int = 0
    archive_required: bool = False  # nothing goes before it is archived
    dead_retention_s: float = 0.0  # 0: dead letters stay until redriven or discarded
    dead_max_messages: int = 0  # of a group; beyond it the oldest are discarded; 0: no bound
    dead_max_bytes: int = 0
    snapshot_every: int = 200_000  # events between snapshots; a plain message counts as 1/25
    auto_compact: bool = True  # compact in the background after a snapshot
    compact_interval_s: float = 0.0  # and at this interval; 0: no interval
    # files
    sync: SyncPolicy = "interval"
    sync_interval_s: float = 1.0
    sync_batch: int = 1000
    segment_bytes: int = 64 << 20
    segment_entries: int = 0  # 0: no limit
    segment_age_s: float = 0.0  # 0: no limit
    min_free_bytes: int = 100 << 20
    on_corruption: OnCorruption = "quarantine"
    allow_network_file_system: bool = False

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _DURATIONS:
                value = as_seconds(value)
                object.__setattr__(self, item.name, value)
            _check(item.name, value)
        self.ledger_settings()

    @classmethod
    def of(cls, values: Mapping[str, Any], base: "QueueSettings | None" = None) -> "QueueSettings":
        """Settings from names and values; an unknown name is refused with its nearest kin."""
        known = {item.name for item in fields(cls)}
        for name in values:
            if name not in known:
                raise InvalidInput(f"there is no setting {name!r}; {did_you_mean(name, known)}")
        return replace(base or cls(), **values)

    @classmethod
    def of_stored(cls, values: Mapping[str, Any]) -> "QueueSettings":
        """Settings as they were stored, perhaps by another version: what is unknown is left out."""
        known = {item.name for item in fields(cls)}
        return cls.of({name: value for name, value in values.items() if name in known})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def ledger_settings(self) -> LedgerSettings:
        """The part that is about files."""
        return LedgerSettings(
            sync=self.sync,
            sync_interval_s=self.sync_interval_s,
            sync_batch=self.sync_batch,
            segment_bytes=self.segment_bytes,
            segment_entries=self.segment_entries,
            segment_age_s=self.segment_age_s,
            max_entry_bytes=_MAX_ENTRY_BYTES,
            min_free_bytes=self.min_free_bytes,
            on_corruption=self.on_corruption,
            allow_network_file_system=self.allow_network_file_system,
        )

    def retention(self) -> Retention:
        return Retention(
            max_age_s=self.retention_s or None,
            max_bytes=self.retention_bytes or None,
            max_segments=self.retention_segments or None,
            min_segments=self.retention_min_segments,
        )


_RANGES: dict[str, tuple[float, float]] = {
    "lease_s": (MIN_LEASE_S, MAX_LEASE_S),
    "max_attempts": (1, MOST_ATTEMPTS),
    "backoff_base_s": (0, 86400),
    "backoff_factor": (1, 100),
    "backoff_max_s": (0, 30 * 86400),
    "backoff_jitter": (0, 1),
    "starvation_after_s": (0, YEARS_S),
    "default_priority": (0, 9),
    "default_ttl_s": (0, YEARS_S),
    "compression_level": (1, 9),
    "compression_min_bytes": (0, 1 << 30),
    "max_payload_bytes": (1, MOST_PAYLOAD_BYTES),
    "max_unpacked_bytes": (1, 1 << 40),
    "dedup_window_s": (0.001, YEARS_S),
    "dedup_entries": (1, 100_000_000),
    "max_batch": (1, MOST_IN_BATCH),
    "max_messages": (0, 1 << 60),
    "max_bytes": (0, 1 << 60),
    "block_s": (0, 86400),
    "rate_per_s": (0, 1e9),
    "rate_burst": (0, 1e9),
    "retention_s": (0, YEARS_S),
    "retention_bytes": (0, 1 << 60),
    "retention_segments": (0, 1 << 40),
    "retention_min_segments": (0, 1 << 40),
    "dead_retention_s": (0, YEARS_S),
    "dead_max_messages": (0, 1 << 60),
    "dead_max_bytes": (0, 1 << 60),
    "compact_interval_s": (0, YEARS_S),
    "snapshot_every": (1, 1 << 40),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "when_full": get_args(WhenFull),
    "compression": get_args(Compression),
}


_WHOLE = {item.name for item in fields(QueueSettings) if item.type is int}
_DURATIONS = {
    item.name
    for item in fields(QueueSettings)
    if item.name.endswith("_s") and not item.name.endswith("_per_s")
}
_SWITCHES = {item.name for item in fields(QueueSettings) if item.type is bool}


def _check(name: str, value: Any) -> None:
    if name in _CHOICES:
        check_choice(name, value, _CHOICES[name])
    if name in _RANGES:
        check_number(name, value, *_RANGES[name])
        if name in _WHOLE and not isinstance(value, int):
            raise InvalidInput(f"{name} is {value!r}; it must be a whole number")
    if name in _SWITCHES and not isinstance(value, bool):
        raise InvalidInput(f"{name} is {value!r}; it must be True or False")
