"""Names of an archive's files.

    <archive>/
      namespace=shop/queue=orders/date=2026-01-31/00000000000000000001.parquet
      _manifests/shop.orders/00000000000000000001.json    archived seqs, with files and checksums
      _delta_log/                     the same files as a Delta table, if requested
      _lock                           held by a running job, in a directory

There is no `namespace=…` for a queue directory outside a data directory. If a queue's name has
characters other than lower-case letters, digits and `._-`, its files have a digest of it in their
names. Files that no manifest names are not archived: a killed job leaves them.
"""

import hashlib
import os
import re

_PLAIN = re.compile(r"[a-z0-9._/-]*", re.ASCII)


def queue_folder(namespace: str | None, name: str) -> str:
    """Return the folder of a queue's files, relative to the archive."""
    return f"queue={name}" if namespace is None else f"namespace={namespace}/queue={name}"


def folder_of(namespace: str | None, name: str, date: str) -> str:
    """Return the folder of a queue's files of one day, relative to the archive."""
    return f"{queue_folder(namespace, name)}/date={date}"


def folder_of_key(key: str) -> str:
    """Return the folder of a queue's files, from the queue's name in its manifest."""
    namespace, _, name = key.rpartition("/")
    return queue_folder(namespace or None, name)


def file_name(key: str, first_seq: int, token: str = "") -> str:
    """Return the name of a file that begins with this seq.

    On file systems that ignore case, `queue=Emails` and `queue=emails` share a folder. A digest of
    a name that is not plain lower case keeps their files apart. `token` keeps files of two jobs
    apart, and those of a compaction from the ones that they replace.
    """
    parts = [f"{first_seq:020d}"]
    if not _PLAIN.fullmatch(key):
        parts.append(hashlib.sha256(os.fsencode(key)).hexdigest()[:16])
    if token:
        parts.append(token)
    return f"{'-'.join(parts)}.parquet"
