"""Read a queue, or a range of it, as a DataFrame."""

from collections.abc import Sequence
from datetime import UTC, datetime
from os import PathLike, fspath

from pyspark.sql import DataFrame, SparkSession

from penstock.checking import check_whole
from penstock.errors import InvalidInput
from penstock.spark.options import Table
from penstock.spark.places import place_options

_MOST = (1 << 63) - 1


def read(
    spark: SparkSession,
    place: str | PathLike[str],
    *,
    queue: str | Sequence[str] | None = None,
    table: Table = "messages",
    columns: str | Sequence[str] | None = None,
    first_seq: int | None = None,
    end_seq: int | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    group: str | None = None,
    key: str | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Return the messages of a range, or all; or the rows of another table.

    Only the segments that a range touches are opened, and of these only the part that the index
    names: this is what a filter in the query cannot do. Ends are not included.

    Args:
        spark: Any session that finds the source `penstock`.
        place: A queue's directory, a broker's data directory, or the URL of a broker or a queue.
        queue: One queue of the place, or several.
        table: `messages`, `events` or `state`.
        columns: Which columns, or `*`. The fewer, the faster.
        first_seq: Start here, in each queue: a message from here on that was removed is data loss.
            Of the table `events`, this is the number of the event.
        end_seq: Stop before it, or at the end of the queue.
        since: Start at the first message of this time or later: a datetime with a time zone, or
            text in ISO 8601 (UTC unless it says otherwise).
        until: Stop before the first message of this time or later.
        group: For `state`: whose state. The default is the main group.
        key: The API key of a broker. The default is PENSTOCK_KEY of the environment.
        fail_on_data_loss: False to read on behind what was removed.

    >>> from penstock.spark import read, session
    >>> hour = read(session(), "./orders", since="2026-01-31T12:00Z", until="2026-01-31T13:00Z",
    ...             columns=["seq", "payload"])  # doctest: +SKIP
    """
    options = place_options(fspath(place), None)
    chosen = {
        "queue": _listed("queue", queue),
        "table": table,
        "columns": _listed("columns", columns),
        "startingOffsets": _seq("first_seq", first_seq),
        "endingOffsets": _seq("end_seq", end_seq),
        "startingTimestamp": _time("since", since),
        "endingTimestamp": _time("until", until),
        "group": group,
        "key": key,
        "failOnDataLoss": "true" if fail_on_data_loss else "false",
    }
    if first_seq is not None and since is not None:
        raise InvalidInput("give first_seq or since, not both")
    if end_seq is not None and until is not None:
        raise InvalidInput("give end_seq or until, not both")
    if group is not None and table != "state":
        raise InvalidInput(f"group is for the table state: {table} are of all groups")
    options |= {name: value for name, value in chosen.items() if value is not None}
    return spark.read.format("penstock").options(**options).load()


def _listed(name: str, value: str | Sequence[str] | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not value:
        raise InvalidInput(f"{name} is an empty list: leave it out, or name some")
    return ",".join(value)


def _seq(name: str, value: int | None) -> str | None:
    return None if value is None else str(check_whole(name, value, 0, _MOST))


def _time(name: str, value: datetime | str | None) -> str | None:
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(
                f"{name} is {value!r}; it must be a time such as 2026-01-31T12:00:00Z"
            ) from None
        value = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if value is not None and not isinstance(value, datetime):
        raise InvalidInput(f"{name} is {value!r}; it must be a datetime, or text in ISO 8601")
    if value is not None and value.tzinfo is None:
        raise InvalidInput(f"{name} is {value}, which says no time zone: give it one")
    return None if value is None else value.isoformat()
