"""The broker's data directory: made with its parents, and never by the name of a URL."""

import os
from pathlib import Path

import pytest

from penstock.broker.embedded.layout import Layout
from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.ledger.files import OsFiles
from tests.ledger.watched_files import WatchedFiles


class SyncedDirectories(WatchedFiles):
    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def test_missing_parents_are_made_and_synced(tmp_path: Path) -> None:
    files = SyncedDirectories()
    layout = Layout(files, str(tmp_path / "a" / "b" / "data"))
    layout.open(ManualClock())
    layout.close()
    assert (tmp_path / "a" / "b" / "data" / "_broker").is_dir()
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(files.synced)


def test_a_directory_that_a_dead_process_made_is_synced(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    files = SyncedDirectories()
    layout = Layout(files, str(tmp_path / "data"))
    layout.open(ManualClock())
    layout.close()
    assert str(tmp_path) in files.synced


def test_a_url_is_no_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="is a URL, not a directory: a broker's data"):
        Layout(OsFiles(), "redis://localhost/0").open(ManualClock())
    assert os.listdir(tmp_path) == []
