"""Archives without a queue or Spark: as many files and messages as a test wants."""

import pyarrow as pa

from penstock.archive import Archive, ArchiveManifest
from penstock.archive.names import file_name, folder_of
from penstock.archive.parquet import write_verified
from penstock.spark.jobs.archive import archive_schema

DAY_NS = 86_400 * 10**9
START_NS = 1_700_000_000 * 10**9  # 2023-11-14
DATES = ("2023-11-14", "2023-11-15", "2023-11-16", "2023-11-17")


def messages(first: int, count: int, day: int = 0, *, without: tuple[str, ...] = ()) -> pa.Table:
    """Return messages as the archive job has them."""
    seqs = list(range(first, first + count))
    times = [START_NS + day * DAY_NS + seq * 1000 for seq in seqs]
    values = {
        "seq": seqs,
        "timestamp": [time // 1000 for time in times],
        "timestamp_ns": times,
        "priority": [seq % 10 for seq in seqs],
        "key": [None if seq % 3 else f"k{seq}" for seq in seqs],
        "headers": [[("a", str(seq))] if seq % 2 else [] for seq in seqs],
        "payload": [b"payload %d" % seq for seq in seqs],
        "expires_at_ns": [None] * count,
        "deliver_at_ns": [None] * count,
        "content_type": ["text/plain" if seq % 2 else None for seq in seqs],
        "attributes": [[]] * count,
    }
    schema = pa.schema([field for field in archive_schema() if field.name not in without])
    columns = [pa.array(values[field.name], field.type) for field in schema]
    return pa.table(columns, schema=schema)


def add_file(
    archive: Archive, manifest: ArchiveManifest, table: pa.Table, day: int = 0, token: str = ""
) -> None:
    """Archive one file more of a queue, and commit its manifest."""
    namespace, _, name = manifest.queue.rpartition("/")
    first = table.column("seq")[0].as_py()
    folder = folder_of(namespace or None, name, DATES[day])
    path = f"{folder}/{file_name(manifest.queue, first, token)}"
    manifest.files.append(write_verified(archive.store, path, DATES[day], table))
    manifest.next_seq = table.column("seq")[-1].as_py() + 1
    archive.commit(manifest)


def filled(archive: Archive, queue: str = "shop/orders", days: int = 3) -> ArchiveManifest:
    """Archive four files of ten messages for each day."""
    manifest = ArchiveManifest(queue, 7, first_seq=1, next_seq=1)
    for day in range(days):
        for _ in range(4):
            add_file(archive, manifest, messages(manifest.next_seq, 10, day), day)
    return manifest
