"""The arguments of `restore` and `archived` are checked first: none of this needs Spark."""

import importlib
import inspect
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.archive import ArchivedFile, ArchiveManifest, archive_at
from penstock.arrow.selection import nanoseconds
from penstock.errors import InvalidInput
from penstock.spark.archive_source import FileRange
from penstock.spark.jobs import archived, check_restore, live_and_archived, restore

NO_SPARK: Any = None  # whatever uses it fails
START = datetime(2026, 1, 31, tzinfo=UTC)
Job = Callable[..., object]


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """An archive of the seqs 1 to 8. Its file is never read."""
    first_ns = nanoseconds(START)
    file = ArchivedFile(
        path="orders/1.parquet",
        date="2026-01-31",
        rows=8,
        size_bytes=1,
        sha256="",
        first_seq=1,
        last_seq=8,
        first_ns=first_ns,
        last_ns=first_ns + 7,
    )
    place = tmp_path / "archive"
    archive_at(str(place)).commit(
        ArchiveManifest("orders", 1, first_seq=1, next_seq=9, files=[file])
    )
    return str(place)


@pytest.fixture
def jobs(archive: str, tmp_path: Path) -> dict[str, Job]:
    """The three calls that take a range."""
    target = str(tmp_path / "back")
    return {
        "restore": lambda **options: restore(NO_SPARK, archive, target, **options),
        "archived": lambda **options: archived(NO_SPARK, archive, **options),
        "check_restore": lambda **options: check_restore(archive, target, **options),
    }


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FileRange, pa.Schema]]:
    """What was to be read by Spark."""
    found: list[tuple[FileRange, pa.Schema]] = []

    def read_archive(_: SparkSession, wanted: FileRange, schema: pa.Schema) -> None:
        found.append((wanted, schema))

    module = importlib.import_module("penstock.spark.jobs.restore")
    monkeypatch.setattr(module, "read_archive", read_archive)
    return found


@pytest.mark.parametrize("job", ["restore", "archived", "check_restore"])
@pytest.mark.parametrize("name", ["first_sqe", "last_seq", "untill"])
def test_a_misspelt_argument_of_a_range_is_refused(
    job: str, name: str, jobs: dict[str, Job], tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=name):
        jobs[job](**{name: 3})
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("job", [restore, archived, check_restore, live_and_archived])
def test_every_argument_of_a_range_has_a_name_and_a_type(job: Job) -> None:
    parameters = inspect.signature(job).parameters.values()
    assert not [one.name for one in parameters if one.kind is one.VAR_KEYWORD]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"first_seq": 2.5}, "first_seq is 2.5; it must be a whole number"),
    ({"first_seq": -1}, "first_seq is -1; it must be a whole number"),
    ({"first_seq": True}, "first_seq is True; it must be a whole number"),
    ({"first_seq": "5"}, "first_seq is '5'; it must be a whole number"),
    ({"first_seq": 10**23}, "first_seq is 1000"),
    ({"end_seq": 4.5}, "end_seq is 4.5; it must be a whole number"),
    ({"end_seq": -1}, "end_seq is -1; it must be a whole number"),
    ({"first_seq": 5, "end_seq": 4}, "first_seq is 5, which is after end_seq, 4"),
    ({"first_id": 5}, "5 is not a message id"),
    ({"since": date(2026, 1, 31)}, "since is datetime.date"),
    ({"until": date(2026, 1, 31)}, "until is datetime.date"),
    ({"since": 5}, "since is 5; it must be a datetime, or text in ISO 8601"),
    ({"since": "yesterday"}, "since is 'yesterday'; it must be a time such as 2026"),
    ({"since": datetime(2026, 1, 31)}, "which has no time zone"),
    ({"since": "2026-02-01", "until": "2026-01-31"}, "which is after until"),
    ({"queue": "other"}, "name one queue of the archive"),
]


@pytest.mark.parametrize("job", ["restore", "archived", "check_restore"])
@pytest.mark.parametrize(("options", "said"), BAD, ids=lambda part: str(part)[:40])
def test_a_wrong_value_of_a_range_is_refused(
    job: str, options: dict[str, Any], said: str, jobs: dict[str, Job], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        jobs[job](**options)
    assert said in str(refused.value)
    assert not (tmp_path / "back").exists()


def test_values_are_checked_before_spark_looks_for_an_archive_on_hadoop() -> None:
    with pytest.raises(InvalidInput, match="first_seq is -1"):
        check_restore("hdfs://host/archive", first_seq=-1)
    with pytest.raises(InvalidInput, match="first_seq is -1"):
        archived(NO_SPARK, "hdfs://host/archive", first_seq=-1)


@pytest.mark.parametrize("moment", [START, "2026-01-31", "2026-01-31T00:00Z"], ids=str)
def test_a_time_of_a_range_may_be_text_as_for_read(
    moment: datetime | str, archive: str, planned: list[tuple[FileRange, pa.Schema]]
) -> None:
    archived(NO_SPARK, archive, since=moment, until="2026-02-01")
    ((wanted, _),) = planned
    assert wanted.times_ns == (
        nanoseconds(START),
        nanoseconds(datetime(2026, 2, 1, tzinfo=UTC)),
    )
    check_restore(archive, since=moment)


@pytest.mark.parametrize("columns", ["seq,payload", "seq, payload", ["seq", "payload"]], ids=str)
def test_columns_may_be_text_as_for_read(
    columns: str | list[str], archive: str, planned: list[tuple[FileRange, pa.Schema]]
) -> None:
    archived(NO_SPARK, archive, columns=columns)
    ((_, schema),) = planned
    assert schema.names == ["seq", "payload"]


@pytest.mark.parametrize("columns", [None, "*", ["*"]], ids=str)
def test_all_columns_of_the_archive_stand_on_its_page(
    columns: str | None, archive: str, planned: list[tuple[FileRange, pa.Schema]]
) -> None:
    archived(NO_SPARK, archive, columns=columns)
    ((_, schema),) = planned
    page = " ".join(Path(__file__).parents[2].joinpath("docs", "archive.md").read_text().split())
    (listed,) = re.findall(r"Its columns are ([^.]+)\.", page)
    assert re.findall(r"`(\w+)`", listed) == schema.names


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([], "name at least one"),
        ("", "name at least one"),
        (["seq", "seq"], "names 'seq' twice"),
        ("seq,seq", "names 'seq' twice"),
        (["nothing"], "a column is 'nothing'; it must be one of seq, timestamp"),
        (["seq", 5], "columns is ['seq', 5]; it must be"),
        (5, "columns is 5; it must be"),
    ],
    ids=str,
)
def test_columns_that_cannot_be_meant_are_refused(columns: Any, said: str, archive: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        archived(NO_SPARK, archive, columns=columns)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\rb", "a\0b", 5], ids=repr)
def test_a_header_that_cannot_be_written_is_refused_before_anything_is_created(
    name: Any, jobs: dict[str, Job], tmp_path: Path
) -> None:
    for job in ("restore", "check_restore"):
        with pytest.raises(InvalidInput, match="time_header is "):
            jobs[job](time_header=name)
    assert not (tmp_path / "back").exists()
