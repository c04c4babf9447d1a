"""The settings of a queue. They are stored with it; changing one never changes old messages.

`QueueSettings` has what every store offers. Its `storage` has what only a store of files offers.
Users, JSON and stored settings have one flat list of names: `QueueSettings.of` and `as_dict`
convert it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Literal, TypedDict, get_type_hints

from penstock.checking import Duration, as_seconds, check_fields, did_you_mean
from penstock.errors import InvalidInput
from penstock.ledger import LedgerSettings
from penstock.ledger.settings import OnCorruption, SyncPolicy

WhenFull = Literal["reject", "block", "drop_oldest"]
Compression = Literal["none", "gzip", "zstd"]

YEARS_S = 100 * 365 * 86400.0
MIN_DEDUP_WINDOW_S = 0.001
MIN_LEASE_S = 0.001
MAX_LEASE_S = 7 * 86400.0
MOST_IN_BATCH = 100_000
MOST_PAYLOAD_BYTES = 512 << 20
# Whatever `max_payload_bytes` says now: a message published under a larger one must be read.
_MAX_ENTRY_BYTES = MOST_PAYLOAD_BYTES + (4 << 20)
MOST_ATTEMPTS = 0xFFFF  # what an event and a receipt have room for


class QueueOptions(TypedDict, total=False):
    """The settings of a queue as keyword arguments: any names of `SETTING_TYPES`."""

    lease_s: Duration
    max_attempts: int
    backoff_base_s: Duration
    backoff_factor: float
    backoff_max_s: Duration
    backoff_jitter: float
    starvation_after_s: Duration
    max_in_flight: int
    delivery_rate_per_s: float
    delivery_burst: float
    fair: bool
    tenant_max_in_flight: int
    tenant_rate_per_s: float
    tenant_burst: float
    default_priority: int
    default_ttl_s: Duration
    compression: Compression
    compression_level: int
    compression_min_bytes: int
    max_payload_bytes: int
    max_unpacked_bytes: int
    dedup_window_s: Duration
    dedup_entries: int
    result_entries: int
    max_batch: int
    max_messages: int
    max_bytes: int
    when_full: WhenFull
    block_s: Duration
    rate_per_s: float
    rate_burst: float
    retention_s: Duration
    retention_bytes: int
    dead_retention_s: Duration
    dead_max_messages: int
    dead_max_bytes: int
    sync: SyncPolicy
    sync_interval_s: Duration
    sync_batch: int
    segment_bytes: int
    segment_entries: int
    segment_age_s: Duration
    min_free_bytes: int
    on_corruption: OnCorruption
    allow_network_file_system: bool
    retention_segments: int
    retention_min_segments: int
    archive_required: bool
    snapshot_every: int
    auto_compact: bool
    compact_interval_s: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """How a queue uses files. A store without files has none of these settings."""

    # durability
    sync: SyncPolicy = "interval"
    sync_interval_s: float = 1.0
    sync_batch: int = 1000
    # segments
    segment_bytes: int = 64 << 20
    segment_entries: int = 0  # 0: no limit
    segment_age_s: float = 0.0  # 0: no limit
    min_free_bytes: int = 100 << 20
    on_corruption: OnCorruption = "quarantine"
    allow_network_file_system: bool = False
    # compaction
    retention_segments: int = 0  # 0: no limit
    retention_min_segments: int = 0
    archive_required: bool = False  # keep messages until they are archived
    snapshot_every: int = 200_000  # events between snapshots; a plain message counts as 1/25
    auto_compact: bool = True  # compact in the background after a snapshot
    compact_interval_s: float = 0.0  # and at this interval; 0: no interval

    def __post_init__(self) -> None:
        _check(self)
        self.ledger_settings()

    def ledger_settings(self) -> LedgerSettings:
        """Return the settings of the ledger. It checks those that are its own."""
        own = {name: getattr(self, name) for name in _OF_LEDGER}
        return LedgerSettings(max_entry_bytes=_MAX_ENTRY_BYTES, **own)


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
    # limits of deliveries, for each group
    max_in_flight: int = 0  # messages leased at a time; 0: no limit
    delivery_rate_per_s: float = 0.0  # 0: no limit
    delivery_burst: float = 0.0  # 0: the messages of one second
    fair: bool = False  # tenants take turns
    tenant_max_in_flight: int = 0  # the same three limits, for each tenant
    tenant_rate_per_s: float = 0.0
    tenant_burst: float = 0.0
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
    result_entries: int = 100_000  # results of jobs, and steps of workflows
    # bounds
    max_batch: int = MOST_IN_BATCH  # messages of one publish
    max_messages: int = 0  # 0: no bound
    max_bytes: int = 0
    when_full: WhenFull = "reject"
    block_s: float = 30.0  # of when_full="block": the longest wait
    rate_per_s: float = 0.0  # 0: no limit
    rate_burst: float = 0.0  # 0: the messages of one second
    # retention
    retention_s: float = 0.0  # how long finished messages stay for replay; 0: no rule
    retention_bytes: int = 0
    dead_retention_s: float = 0.0  # 0: dead letters stay until redriven or discarded
    dead_max_messages: int = 0  # of a group; beyond it the oldest are discarded; 0: no bound
    dead_max_bytes: int = 0
    # files
    storage: StorageSettings = field(default_factory=StorageSettings)

    def __post_init__(self) -> None:
        _check(self)
        if not isinstance(self.storage, StorageSettings):
            raise InvalidInput(f"storage is {self.storage!r}; it must be StorageSettings")

    @classmethod
    def of(cls, values: Mapping[str, Any], base: "QueueSettings | None" = None) -> "QueueSettings":
        """Return settings from a flat mapping of names to values; the others are as in `base`.

        Raise InvalidInput for an unknown name, with the most similar known one.
        """
        for name in values:
            if name not in SETTING_TYPES:
                hint = did_you_mean(name, SETTING_TYPES)
                raise InvalidInput(f"there is no setting {name!r}; {hint}")
        base = base or cls()
        storage = {name: value for name, value in values.items() if name in _of_storage}
        own = {name: value for name, value in values.items() if name not in _of_storage}
        return replace(base, storage=replace(base.storage, **storage), **own)

    @classmethod
    def of_stored(cls, values: Mapping[str, Any]) -> "QueueSettings":
        """Return settings that perhaps another version stored. Ignore unknown names."""
        return cls.of({name: value for name, value in values.items() if name in SETTING_TYPES})

    def as_dict(self) -> dict[str, Any]:
        """Return a flat mapping of names to values: the form in which settings are stored."""
        # Not by `asdict`, which copies each value: that takes ten times as long.
        return dict(zip(SETTING_TYPES, _values_of(self), strict=True))


_own = get_type_hints(QueueSettings)
_of_storage = get_type_hints(_own.pop("storage"))
# The types of all settings by their flat names, in the order of docs/settings.md.
SETTING_TYPES: Mapping[str, Any] = {**_own, **_of_storage}
_values_of = attrgetter(*_own, *(f"storage.{name}" for name in _of_storage))


def refuse_storage_settings(names: Iterable[str]) -> None:
    """Raise InvalidInput if one of the names is a setting of files. For stores without files."""
    found = [name for name in names if name in _of_storage]
    if found:
        raise InvalidInput(
            f"this store keeps no files and has no setting {', '.join(found)}: leave it out"
        )


_RANGES: dict[str, tuple[float, float]] = {
    "lease_s": (MIN_LEASE_S, MAX_LEASE_S),
    "max_attempts": (1, MOST_ATTEMPTS),
    "backoff_base_s": (0, 86400),
    "backoff_factor": (1, 100),
    "backoff_max_s": (0, 30 * 86400),
    "backoff_jitter": (0, 1),
    "starvation_after_s": (0, YEARS_S),
    "max_in_flight": (0, 1 << 40),
    "delivery_rate_per_s": (0, 1e9),
    "delivery_burst": (0, 1e9),
    "tenant_max_in_flight": (0, 1 << 40),
    "tenant_rate_per_s": (0, 1e9),
    "tenant_burst": (0, 1e9),
    "default_priority": (0, 9),
    "default_ttl_s": (0, YEARS_S),
    "compression_level": (1, 9),
    "compression_min_bytes": (0, 1 << 30),
    "max_payload_bytes": (1, MOST_PAYLOAD_BYTES),
    "max_unpacked_bytes": (1, 1 << 40),
    "dedup_window_s": (MIN_DEDUP_WINDOW_S, YEARS_S),
    "dedup_entries": (1, 100_000_000),
    "result_entries": (1, 100_000_000),
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
_OF_LEDGER = _of_storage.keys() & {item.name for item in fields(LedgerSettings)}


def _check(settings: "QueueSettings | StorageSettings") -> None:
    """Convert durations to seconds. Raise InvalidInput for a value of a wrong type or range."""
    for item in fields(settings):
        if item.name.endswith("_s") and not item.name.endswith("_per_s"):
            object.__setattr__(settings, item.name, as_seconds(getattr(settings, item.name)))
    check_fields(settings, _RANGES)
