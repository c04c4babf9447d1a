"""The place of an archive as queues note it: it finds the archive again, and has no secrets."""

from pathlib import Path

import pytest

from penstock.archive.places import place_of


def test_a_directory_is_noted_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of("./archive").recorded == str(tmp_path / "archive")
    assert place_of(f"file://{tmp_path}/a%20b").recorded == str(tmp_path / "a b")


def test_a_bucket_is_noted_with_what_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "secret-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    place = place_of("s3a://bucket/p?endpoint=http://127.0.0.1:9000&region=eu-west-1")
    assert "secret" not in place.recorded
    again = place_of(place.recorded)
    assert (again.kind, again.root) == ("s3", "bucket/p")
    assert again.options == place.options
    own = place_of("s3://bucket?access_key=a&secret_key=secret")
    assert own.recorded == "s3://bucket"


def test_a_place_of_hadoop_stays_one() -> None:
    for location in ("hdfs://name:9000/archive", "hadoop+s3a://bucket/archive"):
        place = place_of(location)
        again = place_of(place.recorded)
        assert (again.kind, again.root) == ("hadoop", place.root)
