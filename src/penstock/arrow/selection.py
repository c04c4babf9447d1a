"""What a read selects: queues, a table, columns, and a range of seqs or times."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import index
from os import PathLike, fspath
from typing import Any, Literal, SupportsIndex

from penstock.checking import check_fields, check_not_empty, check_text, check_whole, is_no_time
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME

Table = Literal["messages", "events", "state"]
TABLES: tuple[Table, ...] = ("messages", "events", "state")

AUTO, NO_ARCHIVE = "auto", "none"  # the archive that is on record; only the live log
EARLIEST, LATEST = "earliest", "latest"
Offsets = str | int | dict[str, int]  # "earliest", "latest", a seq, or a seq for each queue

DEFAULT_PARTITION_BYTES = 128 << 20  # the default of Spark for files
_MAX_SEQ = (1 << 63) - 1
MAX_TIME_NS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FINE_FRACTION = re.compile(r"(?<=[.,][0-9]{6})[0-9]+")  # which `fromisoformat` leaves out


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

    def __post_init__(self) -> None:
        check_fields(self, {})

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
    since: datetime | str | None,
    until: datetime | str | None,
    group: str | None,
) -> None:
    """Raise InvalidInput for arguments of a read that exclude each other, or a start after its end.

    An empty range, from a seq or time to the same one, is allowed.
    """
    if first_seq is not None and since is not None:
        raise InvalidInput("give first_seq or since, not both")
    if end_seq is not None and until is not None:
        raise InvalidInput("give end_seq or until, not both")
    if group is not None and table != "state":
        raise InvalidInput(f"group applies to the table state only: {table} has all groups")
    if group is not None and not check_text("group", group).strip():
        raise InvalidInput(f"group is {group!r}: name a group, or leave it out for the main group")
    first, end = seq_in("first_seq", first_seq), seq_in("end_seq", end_seq)
    if first is not None and end is not None and first > end:
        raise InvalidInput(f"first_seq is {first}, which is after end_seq, {end}: exchange them")
    from_ns, to_ns = moment_in("since", since), moment_in("until", until)
    if from_ns is not None and to_ns is not None and from_ns > to_ns:
        raise InvalidInput(
            f"since is {_time_shown(since)}, which is later than until, {_time_shown(until)}: "
            f"exchange them"
        )


def names_in(name: str, value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names that are given as a list, or as text with commas."""
    if value is None:
        return None
    listed = value.split(",") if isinstance(value, str) else value
    parts = tuple(listed) if isinstance(listed, Iterable) else (listed,)
    if not all(isinstance(part, str) for part in parts):
        raise InvalidInput(f"{name} is {value!r}; it must be text, or a list of texts")
    names = tuple(part.strip() for part in parts if part.strip())
    if not names:
        raise InvalidInput(f"{name} is {value!r}: leave it out, or name at least one")
    return names


def location_in(name: str, value: str | PathLike[str]) -> str:
    """Return a location, which is given as text or a path object, as text."""
    text = fspath(value) if isinstance(value, str | PathLike) else None
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is {value!r}; it must be text or a path object")
    return check_not_empty(name, text)


def switch_in(name: str, value: bool) -> bool:
    """Return a checked switch."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is {value!r}; it must be true or false")
    return value


def seq_in(name: str, value: SupportsIndex | None) -> int | None:
    """Return a checked seq. It may be given as an integer of NumPy or pandas."""
    if value is None:
        return None
    with suppress(TypeError):
        value = value if isinstance(value, bool) else index(value)
    return check_whole(name, value, 0, _MAX_SEQ)


# -- times -----------------------------------------------------------------------------------------


def moment_in(name: str, value: datetime | str | None) -> int | None:
    """Return a time in nanoseconds since 1970, exactly.

    Text in ISO 8601 is in UTC unless it says otherwise. A time before 1970 is 0, which is before
    all messages too.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return time_of_text(name, value)
    if not isinstance(value, datetime) or is_no_time(value):
        raise InvalidInput(f"{name} is {value!r}; it must be a datetime, or text in ISO 8601")
    if value.utcoffset() is None:
        raise InvalidInput(f"{name} is {value}, which has no time zone: add one")
    return _within_range(name, value, nanoseconds(value))


def time_of_text(name: str, text: str, otherwise: str = "") -> int:
    """Return the time of text in ISO 8601, in nanoseconds since 1970.

    An error for other text says that it may also be `otherwise`.
    """
    fine = _FINE_FRACTION.search(text)
    if fine is not None and (len(fine[0]) > 3 or _is_in_offset(text, fine.start())):
        raise InvalidInput(
            f"{name} is {text!r}; a time has at most 9 digits after the seconds, nanoseconds, and "
            f"an offset at most 6"
        )
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name} is {text!r}; it must be a time such as 2026-01-31T12:00:00Z{otherwise}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    more_ns = 0 if fine is None else int(fine[0].ljust(3, "0"))
    return _within_range(name, text, nanoseconds(moment) + more_ns)


def _is_in_offset(text: str, position: int) -> bool:
    """Return whether digits are of the offset to UTC, or whether that has such digits as well."""
    has_sign = any(sign in text[11:position] for sign in "+-")
    return has_sign or len(_FINE_FRACTION.findall(text)) > 1


def nanoseconds(moment: datetime) -> int:
    """Return a time in nanoseconds since 1970, exactly."""
    # Timestamps of pandas are datetimes with nanoseconds.
    fine_ns: int = getattr(moment, "nanosecond", 0)
    return (moment - _EPOCH) // _MICROSECOND * 1000 + fine_ns


def _within_range(name: str, value: datetime | str, time_ns: int) -> int:
    if time_ns > MAX_TIME_NS:
        raise InvalidInput(
            f"{name} is {_time_shown(value)}, which is after 2262-04-11, the last day that "
            f"nanoseconds since 1970 reach: give an earlier time, or leave it out"
        )
    return max(time_ns, 0)


def _time_shown(value: datetime | str | None) -> str:
    return repr(value) if isinstance(value, str) else str(value)
