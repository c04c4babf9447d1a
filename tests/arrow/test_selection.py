"""Arguments of a read: times to the nanosecond, and the same checks with Spark and without."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from penstock.arrow.selection import moment_in, nanoseconds, seq_in
from penstock.errors import InvalidInput
from penstock.spark.options import ReadOptions
from penstock.spark.sessions import read, time_option

SECOND_NS = 1_700_000_000_000_000_000  # 2023-11-14T22:13:20Z


@pytest.mark.parametrize(
    ("text", "more_ns"),
    [
        ("2023-11-14T22:13:20Z", 0),
        ("2023-11-14 22:13:20.5", 500_000_000),
        ("2023-11-14T22:13:20.123456Z", 123_456_000),
        ("2023-11-14T22:13:20.1234567Z", 123_456_700),
        ("2023-11-14T22:13:20.123456789", 123_456_789),
        ("2023-11-14T22:13:20,000000001Z", 1),
        ("2023-11-15T00:13:20.999999999+02:00", 999_999_999),
        ("2023-11-14T17:13:20.000000001-05:00", 1),
        ("20231114T221320.123456789Z", 123_456_789),
        ("2023-W46-2T22:13:20.123456789Z", 123_456_789),
    ],
)
def test_text_is_exact_to_the_nanosecond(text: str, more_ns: int) -> None:
    assert moment_in("since", text) == SECOND_NS + more_ns
    options = ReadOptions.parse({"path": "x", "startingtimestamp": text, "endingtimestamp": text})
    assert options.starting_timestamp_ns == options.ending_timestamp_ns == SECOND_NS + more_ns


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-14T22:13:20.1234567890Z",
        "2023-11-14T22:13:20+00:00:00.1234567",
        "2023-11-14T22:13:20.1234567+00:00:00.1234567",
    ],
)
def test_text_that_is_finer_than_nanoseconds_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="since is .*; a time has at most 9 digits") as caught:
        moment_in("since", text)
    assert text in str(caught.value)


@pytest.mark.parametrize("wrong", ["yesterday", "", "2023-11-14T22:13:20.x", "2023-02-30"])
def test_other_text_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="must be a time such as"):
        moment_in("since", wrong)


@pytest.mark.parametrize("given", [np.int64(5), np.uint8(5), np.array(5), pd.Series([3, 5]).max()])
def test_a_seq_may_be_any_integer_and_becomes_a_plain_one(given: Any) -> None:
    assert type(seq_in("first_seq", given)) is int
    assert seq_in("first_seq", given) == 5


@pytest.mark.parametrize(
    "given", [True, np.True_, 5.0, np.float64(5), "5", np.array([5, 6]), np.int64(-1)], ids=repr
)
def test_a_seq_that_is_no_integer_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="first_seq is .*; it must be a whole number from 0"):
        seq_in("first_seq", given)


def test_datetimes_are_exact() -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_457, UTC)
    assert nanoseconds(moment) == moment_in("since", moment) == SECOND_NS + 123_457_000
    late = datetime(2262, 1, 1, 0, 0, 0, 1, timezone(timedelta(hours=-3)))
    assert nanoseconds(late) == 9_214_657_200_000_001_000  # a float has no such microseconds
    stamp = pd.Timestamp("2023-11-14T22:13:20.123456789Z")
    assert moment_in("since", stamp) == SECOND_NS + 123_456_789


def test_times_before_1970_are_before_all_messages() -> None:
    for early in ("1960-01-01", "0001-01-01T00:00:00+05:00", datetime.min.replace(tzinfo=UTC)):
        assert moment_in("since", early) == 0


@pytest.mark.parametrize("ns", [0, 1, 999_999_999_999_999_999, SECOND_NS + 1, (1 << 63) - 1])
def test_times_pass_exactly_through_the_options_of_spark(ns: int) -> None:
    text = time_option(ns)
    assert text is not None
    assert moment_in("since", text) == ns
    assert ReadOptions.parse({"path": "x", "endingtimestamp": text}).ending_timestamp_ns == ns


@pytest.mark.parametrize("option", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize(
    "number",
    [
        *("9223372036855", "10000000000000", "1800000000000000", "999999999999999999"),
        *("9223372036854775808", "9999999999999999999"),
    ],
)
def test_a_number_that_is_no_time_is_refused_with_its_unit(option: str, number: str) -> None:
    with pytest.raises(InvalidInput, match=f"{option} is {number}; .*milliseconds since 1970"):
        ReadOptions.parse({"path": "x", option.lower(): number})


@pytest.mark.parametrize(
    ("number", "ns"),
    [
        ("0", 0),
        ("1700000000001", SECOND_NS + 1_000_000),
        ("9223372036854", 9_223_372_036_854_000_000),
        ("1700000000000000001", SECOND_NS + 1),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)
def test_a_number_is_milliseconds_or_nanoseconds(number: str, ns: int) -> None:
    assert ReadOptions.parse({"path": "x", "endingtimestamp": number}).ending_timestamp_ns == ns


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"queue": b"orders"}, "queue is b'orders'; it must be text"),
        ({"columns": [5]}, r"columns is \[5\]; it must be text"),
        ({"fail_on_data_loss": "no"}, "fail_on_data_loss is 'no'; it must be true or false"),
        ({"archive": 5}, "archive is 5; it must be text or a path object"),
        ({"archive": ""}, "archive is ''"),
        ({"payload_schemas": 5}, "payload_schemas is 5; it must be text or a path object"),
        ({"since": pd.NaT}, "since is NaT; it must be a datetime"),
        ({"table": "state", "group": ""}, "group is ''"),
        ({"first_seq": 20, "end_seq": 10}, "first_seq is 20, which is after end_seq, 10"),
        ({"since": "2026-01-02", "until": "2026-01-01"}, "which is later than until"),
        ({"since": "2026-01-01T00:00:00.1234567891Z"}, "at most 9 digits"),
    ],
)
def test_a_read_on_spark_has_the_same_checks(
    tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    """Arguments are checked before Spark is asked."""
    with pytest.raises(InvalidInput, match=said):
        read(cast(Any, None), tmp_path, **arguments)
