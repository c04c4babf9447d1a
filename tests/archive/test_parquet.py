"""What is stored is compared with what was to be stored, value by value."""

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.archive import ArchiveError, archive_at
from penstock.archive.parquet import (
    BATCH_BYTES,
    decode,
    encode,
    read_file,
    read_range,
    write_verified,
)
from tests.archive.s3_server import S3Server

SCHEMA = pa.schema([("seq", pa.int64()), ("timestamp_ns", pa.int64()), ("payload", pa.binary())])


def messages(first: int, count: int) -> pa.Table:
    seqs = range(first, first + count)
    return pa.table(
        [list(seqs), [seq * 10 for seq in seqs], [b"x%d" % seq for seq in seqs]], schema=SCHEMA
    )


def test_a_file_reads_back(s3: S3Server) -> None:
    store = archive_at(s3.location("parquet")).store
    file = write_verified(store, "queue=a/date=2026-01-31/1.parquet", "2026-01-31", messages(5, 3))
    assert (file.rows, file.first_seq, file.last_seq, file.last_ns) == (3, 5, 7, 70)
    assert read_file(store, file, SCHEMA).equals(messages(5, 3))


def test_a_torn_upload_is_an_error_and_not_archived(s3: S3Server) -> None:
    store = archive_at(s3.location("torn")).store
    s3.faults.torn_puts = ".parquet"
    with pytest.raises(ArchiveError):
        write_verified(store, "queue=a/1.parquet", "2026-01-31", messages(1, 1000))
    s3.faults.torn_puts = ""
    write_verified(store, "queue=a/1.parquet", "2026-01-31", messages(1, 1000))


def test_a_store_that_keeps_other_bytes_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = archive_at(str(tmp_path)).store
    whole = type(store).write

    def torn(self: object, path: str, data: bytes) -> None:
        whole(store, path, data[:-1] + b"?")

    monkeypatch.setattr(type(store), "write", torn)
    with pytest.raises(ArchiveError, match="does not read back as it was written"):
        write_verified(store, "queue=a/1.parquet", "2026-01-31", messages(1, 10))
    monkeypatch.setattr(type(store), "write", lambda *_: None)
    with pytest.raises(ArchiveError, match="does not read back as it was written"):
        write_verified(store, "queue=b/1.parquet", "2026-01-31", messages(1, 10))


def test_damage_and_loss_of_a_file_are_named(tmp_path: Path) -> None:
    store = archive_at(str(tmp_path)).store
    file = write_verified(store, "queue=a/1.parquet", "2026-01-31", messages(1, 10))
    place = tmp_path / file.path
    data = bytearray(place.read_bytes())
    data[40] ^= 1
    place.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"queue=a/1\.parquet is damaged"):
        read_file(store, file, SCHEMA)
    with pytest.raises(ArchiveError, match=r"queue=a/1\.parquet is damaged"):
        next(read_range(store, file, SCHEMA, (1, 11)))
    place.unlink()
    with pytest.raises(ArchiveError, match="is missing, though the manifest names it"):
        read_file(store, file, SCHEMA)


def test_a_column_added_since_is_null() -> None:
    wider = SCHEMA.append(pa.field("content_type", pa.string()))
    found = decode(encode(messages(1, 2)), wider)
    assert found.schema == wider
    assert found.column("content_type").to_pylist() == [None, None]
    assert found.select(SCHEMA.names).equals(messages(1, 2))


@pytest.mark.parametrize("payload_bytes", [10, 3000, 300_000])
@pytest.mark.parametrize("part", [(1, 1201), (100, 1101)])
def test_a_range_is_read_in_batches_of_limited_size(
    tmp_path: Path, payload_bytes: int, part: tuple[int, int]
) -> None:
    count = 1200 if payload_bytes < 10_000 else 40
    seqs = range(1, count + 1)
    payloads = [seq.to_bytes(payload_bytes, "big") for seq in seqs]
    table = pa.table([list(seqs), [seq * 10 for seq in seqs], payloads], schema=SCHEMA)
    store = archive_at(str(tmp_path)).store
    file = write_verified(store, "queue=a/1.parquet", "2026-01-31", table)
    wider = SCHEMA.append(pa.field("content_type", pa.string()))
    batches = list(read_range(store, file, wider, part))
    wanted = table.slice(part[0] - 1, part[1] - part[0])
    found = pa.Table.from_batches(batches, wider)
    assert found.select(SCHEMA.names).equals(wanted)
    assert found.column("content_type").null_count == wanted.num_rows
    assert all(batch.nbytes <= BATCH_BYTES + payload_bytes for batch in batches)
    # A column that the file does not have at all has as many rows.
    absent = read_range(store, file, wider.remove(0).remove(0).remove(0), part)
    assert sum(batch.num_rows for batch in absent) == wanted.num_rows
