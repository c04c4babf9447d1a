"""The settings of a queue's files."""

from dataclasses import dataclass
from typing import Literal

from penstock.checking import check_fields, check_whole
from penstock.codec.layout import DEFAULT_MAX_ENTRY_BYTES, MAX_ENTRY_BYTES

SyncPolicy = Literal["always", "interval", "batch", "never"]
OnCorruption = Literal["quarantine", "stop"]

KIB = 1 << 10
MIB = 1 << 20

SMALLEST_SEGMENT_BYTES = 512
LARGEST_SEGMENT_BYTES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """How the ledger writes, rotates and protects its files. Validated when made."""

    sync: SyncPolicy = "interval"
    sync_interval_s: float = 1.0  # of "interval" and "batch": the longest wait for the disk
    sync_batch: int = 1000  # of "batch": the most entries that wait for the disk
    segment_bytes: int = 64 * MIB
    segment_entries: int = 0  # 0: no limit
    segment_age_s: float = 0.0  # 0: no limit
    max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES
    min_free_bytes: int = 100 * MIB  # below it, messages are refused
    reserve_bytes: int = 1 * MIB  # held back for events, for when the disk is full
    first_step_bytes: int = 16 * KIB  # the first claim of disk; each next one doubles it
    largest_step_bytes: int = 8 * MIB
    max_open_segments: int = 64  # each costs a descriptor and its index, 0.6 % of its size
    mapped: bool = True  # False: write(2) instead of a shared mapping
    on_corruption: OnCorruption = "quarantine"
    allow_network_file_system: bool = False

    def __post_init__(self) -> None:
        check_fields(self, _RANGES)
        check_whole("largest_step_bytes", self.largest_step_bytes, self.first_step_bytes, 1 << 30)


_RANGES: dict[str, tuple[float, float]] = {
    "sync_interval_s": (0.001, 3600),
    "sync_batch": (1, 1_000_000),
    "segment_bytes": (SMALLEST_SEGMENT_BYTES, LARGEST_SEGMENT_BYTES),
    "segment_entries": (0, 1 << 40),
    "segment_age_s": (0, 10 * 365 * 86400),
    "max_entry_bytes": (64, MAX_ENTRY_BYTES),
    "min_free_bytes": (0, 1 << 50),
    "reserve_bytes": (0, 1 << 30),
    "first_step_bytes": (128, 64 * MIB),
    "largest_step_bytes": (128, 1 << 30),
    "max_open_segments": (2, 10_000),
}
