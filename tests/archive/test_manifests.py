"""A manifest whose content was changed is refused: it decides which files a range has."""

import re

import pytest

from penstock.archive import ArchivedFile, ArchiveError, ArchiveManifest

FILE = ArchivedFile("a.parquet", "2026-01-31", 30, 1, 30, 1_000, 30_000, 5, "0" * 64)
MANIFEST = ArchiveManifest("shop/orders", 7, 1, 31, [FILE], version=3, writer="w")


def test_a_manifest_reads_back_as_it_was_written() -> None:
    assert ArchiveManifest.parse(MANIFEST.encoded(), "m") == MANIFEST


def test_any_changed_digit_is_refused() -> None:
    text = MANIFEST.encoded().decode()
    assert text.count('"checksum"') == 1
    for found in re.finditer(r"\d", text):
        digit = "1" if found[0] == "0" else "0"
        changed = text[: found.start()] + digit + text[found.end() :]
        with pytest.raises(ArchiveError, match="cannot be read"):
            ArchiveManifest.parse(changed.encode(), "m")


def test_a_missing_checksum_is_refused() -> None:
    text = re.sub(r',\n "checksum": "\w+"', "", MANIFEST.encoded().decode())
    with pytest.raises(ArchiveError, match="its checksum is missing"):
        ArchiveManifest.parse(text.encode(), "m")
