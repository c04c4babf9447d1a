"""Archives of queues: Parquet files and manifests, in a directory or an object store.

Importable without Spark. Object stores need the extra `object-store`.

>>> from penstock.archive import open_archive
>>> archive = open_archive("s3://bucket/archive")  # doctest: +SKIP
>>> for manifest in archive.manifests():  # doctest: +SKIP
...     print(manifest.queue, manifest.first_seq, manifest.next_seq)
"""

from penstock.archive.archives import Archive, archive_at, open_archive
from penstock.archive.faults import ArchiveConflict, ArchiveError
from penstock.archive.manifests import ArchivedFile, ArchiveManifest
from penstock.archive.stores import ArchiveStore, StoredFile

__all__ = [
    "Archive",
    "ArchiveConflict",
    "ArchiveError",
    "ArchiveManifest",
    "ArchiveStore",
    "ArchivedFile",
    "StoredFile",
    "archive_at",
    "open_archive",
]
