"""The settings of a queue's files."""

from dataclasses import dataclass
from typing import Literal, get_args

from penstock.codec.layout import DEFAULT_MAX_ENTRY_BYTES, MAX_ENTRY_BYTES
from penstock.errors import InvalidInput

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
        _one_of("sync", self.sync, get_args(SyncPolicy))
        _one_of("on_corruption", self.on_corruption, get_args(OnCorruption))
        _between("sync_interval_s", self.sync_interval_s, 0.001, 3600)
        _between("segment_age_s", self.segment_age_s, 0, 10 * 365 * 86400)
        _whole("sync_batch", self.sync_batch, 1, 1_000_000)
        _whole("segment_bytes", self.segment_bytes, SMALLEST_SEGMENT_BYTES, LARGEST_SEGMENT_BYTES)
        _whole("segment_entries", self.segment_entries, 0, 1 << 40)
        _whole("max_entry_bytes", self.max_entry_bytes, 64, MAX_ENTRY_BYTES)
        _whole("min_free_bytes", self.min_free_bytes, 0, 1 << 50)
        _whole("reserve_bytes", self.reserve_bytes, 0, 1 << 30)
        _whole("first_step_bytes", self.first_step_bytes, 128, 64 * MIB)
        _whole("largest_step_bytes", self.largest_step_bytes, self.first_step_bytes, 1 << 30)
        _whole("max_open_segments", self.max_open_segments, 2, 10_000)
        _yes_or_no("mapped", self.mapped)
        _yes_or_no("allow_network_file_system", self.allow_network_file_system)


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def _yes_or_no(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is {value!r}; it must be True or False")


def _whole(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int):
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number")
    _between(name, value, low, high)


def _between(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidInput(f"{name} is {value!r}; it must be between {low} and {high}")
