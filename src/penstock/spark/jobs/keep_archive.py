"""Compact and retain: merge an archive's small files, and remove its oldest ones.

A Delta log or an Iceberg table of the archive follows. Files that a manifest no longer names are
deleted after a grace period, by a later run of either job.
"""

import hashlib
from dataclasses import dataclass

from pyspark.sql import SparkSession

from penstock.archive import (
    Archive,
    ArchivedFile,
    ArchiveError,
    ArchiveManifest,
    ArchiveStore,
    open_archive,
)
from penstock.archive.keeping import (
    Merge,
    excess_of,
    merge,
    merges_of,
    remove_excess,
    replace_merged,
    sweep,
)
from penstock.archive.places import place_of
from penstock.arrow.selection import switch_in
from penstock.checking import check_number
from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.model import NS
from penstock.spark.archive_stores import HandedFiles, archive_of, task_store, tasks_per_core
from penstock.spark.jobs.archive import Progress, archive_schema
from penstock.spark.table_formats import check_followers, follow
from penstock.spark.workers import run_waves, waves

FILE_BYTES = 128 << 20
GRACE_S = 86_400.0
_MIN_FILE_BYTES, _MAX_FILE_BYTES = 1 << 10, 1 << 30
_MAX_S = 100 * 366 * 86_400.0
_MAX_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What one run did to the archive of a queue."""

    queue: str
    merged: int  # files that were replaced
    files: int  # files that replaced them
    rows: int  # messages in those
    swept: int  # files deleted that left the archive earlier, or never were in it


@dataclass(frozen=True, slots=True)
class RetainResult:
    """What one run removed from the archive of a queue, or would remove."""

    queue: str
    files: int
    rows: int
    size_bytes: int
    first_seq: int  # of what is left
    swept: int


@dataclass(frozen=True, slots=True)
class _Task:
    store: ArchiveStore
    wanted: Merge


@dataclass(frozen=True, slots=True)
class _Merged:
    wanted: Merge
    file: ArchivedFile
    content: bytes | None  # that the driver must store


def check_compact(archive: str, queue: str | None, *, file_bytes: int, grace_s: float) -> None:
    """Raise for arguments of `compact` that cannot be used."""
    check_number("file_bytes", file_bytes, _MIN_FILE_BYTES, _MAX_FILE_BYTES)
    _check(archive, queue, grace_s)


def check_retain(
    archive: str,
    queue: str | None,
    *,
    max_age_s: float | None,
    max_bytes: int | None,
    grace_s: float,
) -> None:
    """Raise for arguments of `retain` that cannot be used."""
    if max_age_s is None and max_bytes is None:
        raise InvalidInput("give max_age_s or max_bytes, or both: otherwise nothing is too old")
    if max_age_s is not None:
        check_number("max_age_s", max_age_s, 0, _MAX_S)
    if max_bytes is not None:
        check_number("max_bytes", max_bytes, 0, _MAX_BYTES)
    _check(archive, queue, grace_s)


def _check(archive: str, queue: str | None, grace_s: float) -> None:
    check_number("grace_s", grace_s, 0, _MAX_S)
    if place_of(archive).kind != "hadoop":
        _manifests(open_archive(archive), queue)


def compact(
    spark: SparkSession,
    archive: str,
    *,
    queue: str | None = None,
    file_bytes: int = FILE_BYTES,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> list[CompactResult]:
    """Merge files of one day of a queue into files of up to `file_bytes`.

    Every merged file is read back and compared with what it replaces. With `dry_run`, count what
    would be merged, and change nothing.
    """
    switch_in("dry_run", dry_run)
    check_compact(archive, queue, file_bytes=file_bytes, grace_s=grace_s)
    target = archive_of(spark, archive)
    if dry_run:
        return [_planned(one, file_bytes) for one in _manifests(target, queue)]
    check_followers(target)
    before_ns = SystemClock().now_ns() - int(grace_s * NS)
    with target.locked():
        results = [
            _compact_one(spark, target, one, file_bytes, before_ns, on_progress)
            for one in _manifests(target, queue)
        ]
        follow(target, archive_schema())
    return results


def _planned(manifest: ArchiveManifest, file_bytes: int) -> CompactResult:
    merges = merges_of(manifest, file_bytes)
    files = [file for one in merges for file in one.files]
    return CompactResult(
        manifest.queue, len(files), len(merges), sum(file.rows for file in files), 0
    )


def _compact_one(
    spark: SparkSession,
    target: Archive,
    manifest: ArchiveManifest,
    file_bytes: int,
    before_ns: int,
    on_progress: Progress | None,
) -> CompactResult:
    planned = _planned(manifest, file_bytes)
    merges = merges_of(manifest, file_bytes)
    per_core = tasks_per_core(target.store)
    number = 0
    # A wave at a time: handed files are in the driver's memory.
    for some in waves(merges, per_core * spark.sparkContext.defaultParallelism):
        tasks = [
            _Task(task_store(target.store, *(file.path for file in one.files)), one) for one in some
        ]
        for results in run_waves(spark, _merge, tasks, tasks_per_core=per_core):
            for result in results:
                _store_handed(target.store, result)
                now_ns = SystemClock().now_ns()
                replace_merged(manifest, result.wanted, result.file, now_ns)
            target.commit(manifest)
            number += len(results)
            if on_progress is not None:
                on_progress(number, len(merges))
    swept = sweep(target, manifest, before_ns=before_ns, now_ns=SystemClock().now_ns())
    return CompactResult(manifest.queue, planned.merged, planned.files, planned.rows, swept)


def _merge(task: _Task) -> _Merged:
    file = merge(task.store, task.wanted, archive_schema())
    handed = isinstance(task.store, HandedFiles)
    return _Merged(task.wanted, file, task.store.read(file.path) if handed else None)


def _store_handed(store: ArchiveStore, merged: _Merged) -> None:
    if merged.content is None:
        return
    store.write(merged.file.path, merged.content)
    if hashlib.sha256(store.read(merged.file.path)).hexdigest() != merged.file.sha256:
        raise ArchiveError(
            f"{store.shown}/{merged.file.path} does not read back as it was written: check the "
            f"store of the archive"
        )


def retain(
    spark: SparkSession,
    archive: str,
    *,
    queue: str | None = None,
    max_age_s: float | None = None,
    max_bytes: int | None = None,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
) -> list[RetainResult]:
    """Remove the oldest files of an archive: older than an age, or beyond a size of each queue.

    A file is removed as a whole, when its newest message is too old. With `dry_run`, count what
    would be removed, and change nothing.
    """
    switch_in("dry_run", dry_run)
    check_retain(archive, queue, max_age_s=max_age_s, max_bytes=max_bytes, grace_s=grace_s)
    target = archive_of(spark, archive)
    now_ns = SystemClock().now_ns()
    old_ns = None if max_age_s is None else now_ns - int(max_age_s * NS)
    sweep_ns = now_ns - int(grace_s * NS)
    if dry_run:
        return [
            _retain_one(target, one, old_ns, max_bytes, now_ns, None)
            for one in _manifests(target, queue)
        ]
    check_followers(target)
    with target.locked():
        results = [
            _retain_one(target, one, old_ns, max_bytes, now_ns, sweep_ns)
            for one in _manifests(target, queue)
        ]
        follow(target, archive_schema())
    return results


def _retain_one(
    target: Archive,
    manifest: ArchiveManifest,
    old_ns: int | None,
    max_bytes: int | None,
    now_ns: int,
    sweep_ns: int | None,
) -> RetainResult:
    """Remove what is too much; only count it if `sweep_ns` is None."""
    excess = excess_of(manifest, before_ns=old_ns, max_bytes=max_bytes)
    swept = 0
    if sweep_ns is not None:
        if excess.files:
            remove_excess(manifest, excess, now_ns)
            target.commit(manifest)
        swept = sweep(target, manifest, before_ns=sweep_ns, now_ns=now_ns)
    return RetainResult(
        manifest.queue,
        len(excess.files),
        sum(file.rows for file in excess.files),
        sum(file.size_bytes for file in excess.files),
        excess.first_seq,
        swept,
    )


def _manifests(archive: Archive, queue: str | None) -> list[ArchiveManifest]:
    return archive.manifests() if queue is None else [archive.one_manifest(queue)]
