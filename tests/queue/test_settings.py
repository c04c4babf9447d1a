"""Settings: checked before anything is touched, stored with the queue, given only once."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.queue.settings import SETTING_TYPES, QueueOptions, QueueSettings, StorageSettings
from tests.harness.queue_store import QueueStore


def test_settings_are_stored_and_given_only_once(store: QueueStore) -> None:
    store.open(lease_s=7, max_attempts=3, compression="gzip")
    store.settings = {}
    settings = store.reopen().settings
    assert (settings.lease_s, settings.max_attempts, settings.compression) == (7, 3, "gzip")


def test_a_setting_given_later_takes_the_place_of_the_stored_one(store: QueueStore) -> None:
    store.open(lease_s=7, max_attempts=3)
    store.settings = {}
    store.reopen(lease_s=8)
    store.settings = {}
    settings = store.kill().settings
    assert (settings.lease_s, settings.max_attempts) == (8, 3)


def test_a_reader_sees_the_stored_settings(store: QueueStore) -> None:
    store.open(lease_s=7)
    assert store.look().settings.lease_s == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_s", 0),
        ("lease_s", -1),
        ("lease_s", float("nan")),
        ("lease_s", "30"),
        ("lease_s", True),
        ("max_attempts", 0),
        ("max_attempts", 2.5),
        ("max_attempts", 65_536),
        ("default_priority", 10),
        ("default_priority", 4.5),
        ("dedup_entries", 0),
        ("dedup_entries", 1.5),
        ("result_entries", 0),
        ("max_messages", -1),
        ("max_messages", 0.5),
        ("snapshot_every", 1.5),
        ("backoff_jitter", 2),
        ("compression", "lzma"),
        ("compression_level", 10),
        ("when_full", "panic"),
        ("sync", "sometimes"),
        ("segment_bytes", 10),
        ("on_corruption", "ignore"),
        ("rate_per_s", float("inf")),
        ("auto_compact", "yes"),
    ],
)
def test_a_bad_value_is_refused_by_name_and_nothing_is_made(
    tmp_path: Path, name: str, value: object
) -> None:
    with pytest.raises(InvalidInput, match=name):
        penstock.open(tmp_path / "queue", **{name: value})  # type: ignore[call-overload]
    assert not (tmp_path / "queue").exists()


def test_an_unknown_setting_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no setting 'lease_seconds'.*lease_s"):
        penstock.open(tmp_path / "queue", lease_seconds=5)  # type: ignore[call-overload]


def test_a_misspelt_setting_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no setting 'max_atempts'; did you mean max_attempts"):
        penstock.open(tmp_path / "queue", max_atempts=5)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match=r"no setting 'zzz'; choose from allow_network"):
        penstock.open(tmp_path / "queue", zzz=5)  # type: ignore[call-overload]


def test_a_duration_may_be_a_timedelta(store: QueueStore) -> None:
    queue = store.open(lease_s=timedelta(minutes=2), segment_age_s=timedelta(days=1))
    assert (queue.settings.lease_s, queue.settings.storage.segment_age_s) == (120, 86400)
    assert store.reopen(lease_s=120.0).settings.lease_s == 120
    with pytest.raises(InvalidInput, match="rate_per_s"):
        QueueSettings(rate_per_s=timedelta(seconds=1))  # type: ignore[arg-type]


def test_segments_rotate_by_count_and_by_age(store: QueueStore) -> None:
    queue = store.open(segment_entries=3, segment_age_s=60)
    for _ in range(4):
        queue.enqueue(b"x")
    messages = queue.core.ledger.messages
    assert [segment.base_seq for segment in messages.segments.all] == [1, 4]
    store.clock.advance(61)
    queue.enqueue_batch([b"x"] * 5)
    assert [segment.base_seq for segment in messages.segments.all] == [1, 4, 5]


def test_settings_of_another_version_are_left_out() -> None:
    stored = {**QueueSettings(lease_s=9).as_dict(), "from_the_future": 1}
    assert QueueSettings.of_stored(stored).lease_s == 9


def test_the_defaults_are_as_promised() -> None:
    settings = QueueSettings()
    assert (settings.backoff_base_s, settings.backoff_factor) == (1, 2)
    assert (settings.backoff_max_s, settings.backoff_jitter) == (600, 0.1)
    assert (settings.dedup_entries, settings.starvation_after_s) == (100_000, 60)
    assert (settings.storage.sync, settings.storage.sync_interval_s) == ("interval", 1)


def test_a_changed_setting_does_not_change_old_messages(store: QueueStore) -> None:
    store.open(default_priority=9, default_ttl_s=100)
    old = store.queue.enqueue(b"old")
    new = store.reopen(default_priority=1, default_ttl_s=0).enqueue(b"new")
    assert (store.queue.get(old).priority, store.queue.get(new).priority) == (9, 1)
    assert store.queue.get(old).expires_at_ns > 0
    assert store.queue.get(new).expires_at_ns == 0


def test_the_typed_options_are_the_settings() -> None:
    assert list(QueueOptions.__annotations__) == list(SETTING_TYPES)


@pytest.mark.parametrize("lost", [False, True], ids=["lowered", "lost with queue.json"])
def test_a_message_outlives_the_max_payload_bytes_it_was_published_under(
    tmp_path: Path, lost: bool
) -> None:
    large = bytes(21 << 20)
    with penstock.open(tmp_path, max_payload_bytes=64 << 20, min_free_bytes=0) as queue:
        queue.enqueue_batch([large, b"small"])
    if lost:
        (tmp_path / "queue.json").unlink()
    settings: dict[str, Any] = {} if lost else {"max_payload_bytes": 100}
    with penstock.open(tmp_path, min_free_bytes=0, **settings) as queue:
        assert [job.payload for job in queue.lease(2)] == [large, b"small"]


# As version 0.2.0 wrote it before `QueueSettings.storage` existed.
FLAT_QUEUE_JSON = """{
 "format": 1, "identity": 3296761506, "created_at_ns": 1794895622828761508,
 "settings": {
  "lease_s": 7, "max_attempts": 4, "backoff_base_s": 1.0, "backoff_factor": 2.0,
  "backoff_max_s": 600.0, "backoff_jitter": 0.1, "starvation_after_s": 60.0,
  "default_priority": 5, "default_ttl_s": 0.0, "compression": "none", "compression_level": 6,
  "compression_min_bytes": 1024, "max_payload_bytes": 16777216, "max_unpacked_bytes": 104857600,
  "dedup_window_s": 300.0, "dedup_entries": 100000, "max_batch": 100000, "max_messages": 0,
  "max_bytes": 0, "when_full": "reject", "block_s": 30.0, "rate_per_s": 0.0, "rate_burst": 0.0,
  "retention_s": 0.0, "retention_bytes": 0, "retention_segments": 3, "retention_min_segments": 0,
  "archive_required": false, "dead_retention_s": 0.0, "dead_max_messages": 0, "dead_max_bytes": 0,
  "snapshot_every": 77, "auto_compact": true, "compact_interval_s": 60, "sync": "always",
  "sync_interval_s": 1.0, "sync_batch": 1000, "segment_bytes": 65536, "segment_entries": 0,
  "segment_age_s": 0.0, "min_free_bytes": 104857600, "on_corruption": "stop",
  "allow_network_file_system": false
 },
 "marks": {"messages": {"low": 1, "next": 1}, "events": {"low": 1, "next": 1}},
 "crc": 1824900644
}
"""


def test_settings_stored_before_the_storage_group_are_kept_and_stored_alike(tmp_path: Path) -> None:
    file = tmp_path / "queue.json"
    file.write_text(FLAT_QUEUE_JSON)
    expected = QueueSettings(
        lease_s=7,
        max_attempts=4,
        storage=StorageSettings(
            sync="always",
            segment_bytes=65536,
            on_corruption="stop",
            retention_segments=3,
            snapshot_every=77,
            compact_interval_s=60,
        ),
    )
    with penstock.open(tmp_path, read_only=True) as queue:
        assert queue.settings == expected
    with penstock.open(tmp_path, max_attempts=5) as queue:
        assert queue.settings == replace(expected, max_attempts=5)
        assert queue.core.identity == 3296761506
    before = json.loads(FLAT_QUEUE_JSON)["settings"]
    newer = QueueSettings().as_dict()  # among them settings that were added since
    assert json.loads(file.read_text())["settings"] == {**newer, **before, "max_attempts": 5}


def test_a_flat_name_changes_only_its_own_setting_of_the_group() -> None:
    base = QueueSettings.of({"sync": "always", "segment_bytes": 4096})
    changed = QueueSettings.of({"sync_batch": 5, "lease_s": 9}, base)
    assert changed.storage == StorageSettings(sync="always", segment_bytes=4096, sync_batch=5)
    assert changed == QueueSettings(lease_s=9, storage=changed.storage)


@pytest.mark.parametrize("storage", [{"sync": "always"}, None])
def test_the_group_is_not_a_setting(storage: object) -> None:
    with pytest.raises(InvalidInput, match="there is no setting 'storage'"):
        QueueSettings.of({"storage": storage})
    with pytest.raises(InvalidInput, match="it must be StorageSettings"):
        QueueSettings(storage=storage)  # type: ignore[arg-type]
