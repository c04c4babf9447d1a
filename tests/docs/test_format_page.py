"""The format pages match the code: the example is a real file, the numbers are the code's."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from penstock.clock import ManualClock
from penstock.codec import Draft, layout
from penstock.ledger import Ledger, LedgerSettings, segment_header
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.index import SparseIndex
from penstock.ledger.json_files import (
    CLOSED_NAME,
    MANIFEST_NAME,
    MAX_CLOSED_BYTES,
    MAX_MANIFEST_BYTES,
    Closed,
    Manifest,
)
from penstock.ledger.snapshots import SNAPSHOTS_KEPT, Snapshots
from penstock.queue import attributes, events
from tests.docs.pages import DOCS, quantity, rows_with, tables, unquoted

PAGE = "format.md"
EXAMPLE = "format-example.md"
TEXT = (DOCS / PAGE).read_text()
IDENTITY = 0x0A0B0C0D
CREATED_AT_S = 1_700_000_000
SECOND_NS = 1_000_000_000


def write_example(path: Path) -> bytes:
    """Write the segment of the worked example and return its bytes."""
    clock = ManualClock(now_s=CREATED_AT_S)
    Manifest(IDENTITY, clock.now_ns()).save(Folder(OsFiles(), str(path)))
    with Ledger.open(str(path), LedgerSettings(sync="never", min_free_bytes=0), clock=clock) as it:
        it.messages.append_draft(
            Draft(
                b"hello",
                expires_at_ns=clock.now_ns() + 60 * SECOND_NS,
                headers={"kind": "order"},
                priority=9,
                key=b"k7",
                attributes={255: b"ab"},
            )
        )
        it.sync()
        clock.advance(1)
        it.messages.append_batch([b"one", b"two"])
        clock.advance(1)
    return (path / "messages" / segment_header.segment_name(1)).read_bytes()


def test_worked_example_is_the_file_that_the_ledger_writes(tmp_path: Path) -> None:
    example = rows_with(EXAMPLE, "offset", "bytes")
    in_page = b""
    for row in example:
        assert int(row["offset"]) == len(in_page), row
        in_page += bytes.fromhex(unquoted(row["bytes"]))
    assert in_page.hex(" ") == write_example(tmp_path).hex(" ")
    assert f"has these {len(in_page)} bytes" in (DOCS / EXAMPLE).read_text()


def test_queue_json_on_the_page_is_valid() -> None:
    text = (DOCS / PAGE).read_text().partition("```json\n")[2].partition("```")[0]
    assert Manifest.unpack(text.encode()) == Manifest(IDENTITY, CREATED_AT_S * SECOND_NS)
    assert (
        f"**`{MANIFEST_NAME}`**, at most {MAX_MANIFEST_BYTES >> 20} MiB"
        in (DOCS / PAGE).read_text()
    )


def test_closed_json_on_the_page_matches_the_example(tmp_path: Path) -> None:
    write_example(tmp_path)
    text = TEXT.partition(f"**`{CLOSED_NAME}`**")[2]
    assert text.startswith(f", at most {MAX_CLOSED_BYTES >> 10} KiB")
    shown = Closed.unpack(text.partition("```json\n")[2].partition("```")[0].encode())
    assert shown == Closed.unpack((tmp_path / CLOSED_NAME).read_bytes())


def constants(module: ModuleType) -> dict[str, int | str]:
    return {
        name: value for name, value in vars(module).items() if name.isupper() and name[0] != "_"
    }


@pytest.mark.parametrize("module", [layout, segment_header])
def test_every_constant_is_in_the_page_with_its_value(module: ModuleType) -> None:
    named = {
        unquoted(row["constant"]): row["value"] for row in rows_with(PAGE, "constant", "value")
    }
    for name, value in constants(module).items():
        assert name in named, f"{name} is not in {PAGE}"
        stated = named[name] if isinstance(value, str) else quantity(named[name])
        assert stated == value, name


def test_every_constant_on_the_page_exists() -> None:
    known = {**constants(layout), **constants(segment_header)}
    named = {unquoted(row["constant"]) for row in rows_with(PAGE, "constant", "value")}
    assert named - set(known) == set()


def test_every_attribute_tag_is_in_the_page() -> None:
    listed = {unquoted(row["name"]): int(row["tag"]) for row in rows_with(PAGE, "tag", "name")}
    assert listed == {name: tag for name, tag in vars(attributes).items() if name in listed}
    assert set(listed) == {name for name in constants(attributes) if not name.endswith("_TAG")}


def test_offsets_and_sizes_of_each_table_add_up() -> None:
    for table in tables(PAGE):
        offset = 0
        for row in table:
            if not (row.get("offset", "").isdigit() and row.get("size", "").isdigit()):
                break
            assert int(row["offset"]) == offset, row
            offset += int(row["size"])


def test_layout_tables_have_the_sizes_of_the_code(tmp_path: Path) -> None:
    def size_of(first_field: str) -> int:
        table = next(t for t in tables(PAGE) if t[0].get("field") == first_field)
        return sum(int(row["size"]) for row in table if row["size"].isdigit())

    folder = Folder(OsFiles(), str(tmp_path))
    for event_seq in range(SNAPSHOTS_KEPT + 1):
        Snapshots(folder).save(event_seq, b"")
    sizes = [len(folder.read(name, max_bytes=100)) for name in folder.names()]
    snapshot_overhead = 28
    assert sizes == [snapshot_overhead] * 2, "the page says that two are kept"
    assert size_of("length") == layout.ENTRY_OVERHEAD_BYTES
    assert size_of("synced_upto") == layout.CHECKPOINT_BYTES - layout.ENTRY_OVERHEAD_BYTES
    assert size_of("seq") == layout.INDEX_POINT_BYTES
    headers = [t for t in tables(PAGE) if t[0].get("field") == "magic" and "size" in t[0]]
    found = [sum(int(row["size"]) for row in t if row["size"].isdigit()) for t in headers]
    index_header = len(SparseIndex(covered=0).pack())
    assert found == [segment_header.HEADER_BYTES, index_header, snapshot_overhead]


def test_magic_numbers_are_those_of_the_page(tmp_path: Path) -> None:
    folder = Folder(OsFiles(), str(tmp_path))
    Snapshots(folder).save(4711, b"")
    (name,) = folder.names()
    assert f"snapshots/{name}" in (DOCS / PAGE).read_text()
    header = segment_header.SegmentHeader(segment_header.MESSAGES, IDENTITY, 1, 0)
    files = [header.pack(), SparseIndex(covered=0).pack(), folder.read(name, max_bytes=100)]
    stated = [
        row["content"] for row in rows_with(PAGE, "field", "content") if row["field"] == "magic"
    ]
    assert [unquoted(magic).encode() for magic in stated] == [file[:4] for file in files]


def test_further_fields_of_events_are_in_the_page() -> None:
    told: dict[str, tuple[str, ...]] = {}
    for names, fields in re.findall(r"^\| ((?:`[A-Z_]+`,? ?)+)\| (`[a-z_]+`.*) \|$", TEXT, re.M):
        for name in re.findall(r"`([A-Z_]+)`", names):
            told[name] = tuple(re.findall(r"`([a-z_]+)`", fields))
    assert told == {kind.name: fields for kind, fields in events.EXTRA_FIELDS.items()}
