"""Compaction and retention change which files there are, never what the rest says."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.archive import Archive, ArchivedFile, ArchiveError, ArchiveManifest, archive_at
from penstock.archive.keeping import (
    excess_of,
    merge,
    merges_of,
    remove_excess,
    replace_merged,
    sweep,
)
from penstock.archive.parquet import encode, read_file
from penstock.spark.jobs.archive import archive_schema
from tests.archive.made_archives import DAY_NS, START_NS, add_file, filled, messages
from tests.archive.s3_server import S3Server

NOW_NS = START_NS + 100 * DAY_NS


@pytest.fixture(params=["directory", "S3"])
def archive(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> Archive:
    if request.param == "S3":
        return archive_at(s3.location(tmp_path.name))
    return archive_at(str(tmp_path / "archive"))


def contents(archive: Archive, manifest: ArchiveManifest) -> pa.Table:
    parts = [read_file(archive.store, file, archive_schema()) for file in manifest.files]
    return pa.concat_tables(parts).combine_chunks()


def compact(archive: Archive, manifest: ArchiveManifest, file_bytes: int) -> None:
    for one in merges_of(manifest, file_bytes):
        replace_merged(manifest, one, merge(archive.store, one, archive_schema()), NOW_NS)
    archive.commit(manifest)


def test_many_small_files_become_one_for_each_day(archive: Archive) -> None:
    manifest = filled(archive)
    before = contents(archive, manifest)
    old = [file.path for file in manifest.files]
    compact(archive, manifest, 1 << 30)
    found = archive.one_manifest("shop/orders")
    assert [(file.date, file.rows, file.first_seq) for file in found.files] == [
        ("2023-11-14", 40, 1),
        ("2023-11-15", 40, 41),
        ("2023-11-16", 40, 81),
    ]
    assert contents(archive, found).equals(before)
    # Readers that began before still find the old files, until the grace period is over.
    assert sweep(archive, found, before_ns=NOW_NS - 1, now_ns=NOW_NS) == 0
    assert all(archive.store.read(path) for path in old)
    assert sweep(archive, found, before_ns=NOW_NS, now_ns=NOW_NS) == 12
    assert {file.path for file in archive.store.files("namespace=shop")} == {
        file.path for file in found.files
    }
    assert archive.one_manifest("shop/orders").removed == []
    assert contents(archive, found).equals(before)
    assert merges_of(found, 1 << 30) == []


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 100)), max_size=30),
    st.integers(1, 250),
)
def test_a_plan_merges_neighbours_of_one_day_within_the_size(
    sizes: list[tuple[int, int]], file_bytes: int
) -> None:
    files = [
        ArchivedFile(f"queue=a/date={day}/{number}", str(day), 1, number, number, 0, 0, size, "")
        for number, (day, size) in enumerate(sorted(sizes, key=lambda one: one[0]))
    ]
    merges = merges_of(ArchiveManifest("a", 1, files=list(reversed(files))), file_bytes)
    merged = [file for one in merges for file in one.files]
    assert len({file.path for file in merged}) == len(merged)
    for one in merges:
        assert len(one.files) > 1
        assert one.size_bytes <= file_bytes
        assert len({file.date for file in one.files}) == 1
        first = files.index(one.files[0])
        assert list(one.files) == files[first : first + len(one.files)]
    # As few as possible: two results that are neighbours would not fit into one.
    for left, right in pairwise(merges):
        if left.files[-1].first_seq + 1 == right.files[0].first_seq:
            same_day = left.files[0].date == right.files[0].date
            assert not same_day or left.size_bytes + right.files[0].size_bytes > file_bytes


def test_a_compaction_that_is_killed_changes_nothing(archive: Archive) -> None:
    manifest = filled(archive, days=1)
    before = contents(archive, manifest)
    (one,) = merges_of(manifest, 1 << 30)
    merge(archive.store, one, archive_schema())  # and the job dies before it commits
    found = archive.one_manifest("shop/orders")
    assert len(found.files) == 4
    assert contents(archive, found).equals(before)
    newest = max(file.modified_ns for file in archive.store.files("namespace=shop"))
    assert sweep(archive, found, before_ns=newest - 3_600 * 10**9, now_ns=newest) == 0
    if not archive.store.has_lock:
        # It may be of a job that is about to commit, whatever the grace period is.
        assert sweep(archive, found, before_ns=newest, now_ns=newest + DAY_NS - 1) == 0
    # The file that nothing names.
    assert sweep(archive, found, before_ns=newest, now_ns=newest + DAY_NS) == 1
    assert contents(archive, found).equals(before)


def test_a_damaged_file_is_not_merged(archive: Archive) -> None:
    manifest = filled(archive, days=1)
    broken = manifest.files[2].path
    archive.store.write(broken, archive.store.read(manifest.files[1].path))
    (one,) = merges_of(manifest, 1 << 30)
    with pytest.raises(ArchiveError, match="is damaged: its SHA-256"):
        merge(archive.store, one, archive_schema())
    archive.store.delete(broken)
    with pytest.raises(ArchiveError, match="is missing"):
        merge(archive.store, one, archive_schema())


def test_files_from_before_a_column_was_added_are_merged_with_newer_ones(
    archive: Archive,
) -> None:
    manifest = ArchiveManifest("orders", 7, first_seq=1, next_seq=1)
    add_file(archive, manifest, messages(1, 5, without=("content_type",)))
    add_file(archive, manifest, messages(6, 5))
    compact(archive, manifest, 1 << 30)
    (file,) = manifest.files
    found = read_file(archive.store, file, archive_schema())
    assert found.column("content_type").to_pylist()[:5] == [None] * 5
    assert found.column("content_type").to_pylist()[5:] == [
        None,
        "text/plain",
        None,
        "text/plain",
        None,
    ]


def test_a_file_with_columns_of_a_newer_version_is_left_alone(archive: Archive) -> None:
    manifest = filled(archive, days=1)
    first = manifest.files[0]
    table = pq.read_table(pa.BufferReader(archive.store.read(first.path)))
    newer = ArchiveManifest("newer", 7, first_seq=1, next_seq=1)
    for start in (0, 5):
        part = table.slice(start, 5)
        add_file(archive, newer, part.append_column("tomorrow", pa.array([1] * 5)))
    (one,) = merges_of(newer, 1 << 30)
    with pytest.raises(ArchiveError, match="'tomorrow', which this version does not know"):
        merge(archive.store, one, archive_schema())


def test_retention_by_age_removes_whole_files_from_the_beginning(archive: Archive) -> None:
    manifest = filled(archive)
    in_the_second_day = manifest.files[5].last_ns
    excess = excess_of(manifest, before_ns=in_the_second_day)
    assert ([file.rows for file in excess.files], excess.first_seq) == ([10] * 5, 51)
    remove_excess(manifest, excess, NOW_NS)
    archive.commit(manifest)
    found = archive.one_manifest("shop/orders")
    assert (found.first_seq, found.next_seq, found.rows) == (51, 121, 70)
    assert contents(archive, found).column("seq").to_pylist() == list(range(51, 121))
    assert sweep(archive, found, before_ns=NOW_NS, now_ns=NOW_NS) == 5


def test_retention_by_size_keeps_the_newest(archive: Archive) -> None:
    manifest = filled(archive, days=1)
    newest = manifest.files[-1].size_bytes
    excess = excess_of(manifest, max_bytes=newest + 1)
    assert len(excess.files) == 3
    everything = excess_of(manifest, max_bytes=0)
    assert (len(everything.files), everything.first_seq) == (4, manifest.next_seq)
    nothing = excess_of(manifest, max_bytes=manifest.size_bytes, before_ns=0)
    assert (nothing.files, nothing.first_seq) == ((), 1)


def test_the_files_of_another_queue_in_the_same_folder_stay(tmp_path: Path) -> None:
    """As on a file system that ignores case: `Orders` and `orders` share a folder."""
    archive = archive_at(str(tmp_path))
    manifest = filled(archive, "orders", days=1)
    other = filled(archive, "Orders", days=1)
    for file in other.files:
        shared = tmp_path / file.path.replace("queue=Orders", "queue=orders")
        shared.write_bytes((tmp_path / file.path).read_bytes())
    other.files = [
        replace(file, path=file.path.replace("=Orders", "=orders")) for file in other.files
    ]
    swept = sweep(archive, other, before_ns=2**62, now_ns=2**62)
    assert swept == 4  # the ones in its own folder, which nothing names now
    assert all((tmp_path / file.path).exists() for file in [*manifest.files, *other.files])
    assert encode(contents(archive, manifest)) == encode(messages(1, 40))
