"""What a read selects: queues, a table, columns, and a range of seqs or times."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from penstock.checking import check_whole
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME, NS

Table = Literal["messages", "events", "state"]
TABLES: tuple[Table, ...] = ("messages", "events", "state")

AUTO, NO_ARCHIVE = "auto", "none"  # the archive that is on record; only the live log
EARLIEST, LATEST = "earliest", "latest"
Offsets = str | int | dict[str, int]  # "earliest", "latest", a seq, or a seq for each queue

DEFAULT_PARTITION_BYTES = 128 << 20  # the default of Spark for files
_MAX_SEQ = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to read, and what to do about loss and damage."""

    location: str  # a directory, or the URL of a broker
    key: str | None = field(default=None, repr=False)  # for the broker
    subscribe: tuple[str, ...] = ()  # names; empty: all, or those that match the pattern
    subscribe_pattern: str | None = None
    table: Table = "messages"
    columns: tuple[str, ...] | None = None  # None: the default columns of the table
    include_headers: bool = False
    starting_offsets: Offsets | None = None
    ending_offsets: Offsets | None = None
    starting_timestamp_ns: int | None = None
    ending_timestamp_ns: int | None = None
    min_partitions: int = 1
    max_partition_bytes: int = DEFAULT_PARTITION_BYTES
    fail_on_data_loss: bool = True
    verify: bool = True
    decompress: bool = True
    group: str | None = None
    archive: str = AUTO  # location of the archive to read on into; or AUTO, or NO_ARCHIVE
    # Credentials and other options of its store; None: those of this process's environment.
    archive_variables: dict[str, str] | None = field(default=None, repr=False)

    @property
    def state_group(self) -> str:
        """The consumer group of the table `state`."""
        return self.group or MAIN_GROUP_NAME


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of wanted rows, as filters of a query set them. Ends are exclusive."""

    first_seq: int = 0
    end_seq: int = _MAX_SEQ
    from_ns: int = 0
    to_ns: int = _MAX_SEQ
    namespaces: frozenset[str] | None = None
    queues: frozenset[str] | None = None

    def narrowed(self, **to: Any) -> "Bounds":
        """Return the intersection with other bounds."""
        return replace(
            self,
            first_seq=max(self.first_seq, to.get("first_seq", 0)),
            end_seq=min(self.end_seq, to.get("end_seq", _MAX_SEQ)),
            from_ns=max(self.from_ns, to.get("from_ns", 0)),
            to_ns=min(self.to_ns, to.get("to_ns", _MAX_SEQ)),
            namespaces=_both(self.namespaces, to.get("namespaces")),
            queues=_both(self.queues, to.get("queues")),
        )

    @property
    def is_empty(self) -> bool:
        return self.first_seq >= self.end_seq or self.from_ns >= self.to_ns


def _both(some: frozenset[str] | None, others: frozenset[str] | None) -> frozenset[str] | None:
    if some is None or others is None:
        return others if some is None else some
    return some & others


# -- arguments of a read ---------------------------------------------------------------------------


def check_ranges(
    table: str,
    *,
    first_seq: int | None,
    end_seq: int | None,
    since: object,
    until: object,
    group: str | None,
) -> None:
    """Raise InvalidInput for arguments of a read that exclude each other."""
    if first_seq is not None and since is not None:
        raise InvalidInput("give first_seq or since, not both")
    if end_seq is not None and until is not None:
        raise InvalidInput("give end_seq or until, not both")
    if group is not None and table != "state":
        raise InvalidInput(f"group applies to the table state only: {table} has all groups")


def names_in(name: str, value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names that are given as a list, or as text with commas."""
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else value
    names = tuple(part.strip() for part in parts if part.strip())
    if not names:
        raise InvalidInput(f"{name} is {value!r}: leave it out, or name at least one")
    return names


def seq_in(name: str, value: int | None) -> int | None:
    """Return a checked seq."""
    return None if value is None else check_whole(name, value, 0, _MAX_SEQ)


def moment_in(name: str, value: datetime | str | None) -> datetime | None:
    """Return a time with a time zone. Text in ISO 8601 is in UTC unless it says otherwise."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(
                f"{name} is {value!r}; it must be a time such as 2026-01-31T12:00:00Z"
            ) from None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not isinstance(value, datetime):
        raise InvalidInput(f"{name} is {value!r}; it must be a datetime, or text in ISO 8601")
    if value.tzinfo is None:
        raise InvalidInput(f"{name} is {value}, which has no time zone: add one")
    return value


def nanoseconds(moment: datetime) -> int:
    """Return a time in nanoseconds since 1970, to the microsecond."""
    return round(moment.timestamp() * 1_000_000) * (NS // 1_000_000)
