"""The place of an archive as queues note it: it finds the archive again, and has no secrets."""

from pathlib import Path

import pytest

from penstock.archive import open_archive
from penstock.archive.places import place_of, place_to_read
from penstock.errors import InvalidInput


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


@pytest.mark.parametrize(
    ("location", "kind", "root"),
    [
        ("hadoop+file:///mnt/a%20b c", "local", "/mnt/a%20b c"),  # Hadoop knows no escapes
        ("hadoop+file:/mnt/archive/", "local", "/mnt/archive"),
        ("hdfs://name:9000/archive", "hdfs", "/archive"),
        ("hdfs:///archive", "hdfs", "/archive"),
        ("viewfs://cluster/archive", "hdfs", "/archive"),
        ("hadoop+s3a://bucket/a%20b c", "s3", "bucket/a%20b c"),
        ("hadoop+gs://bucket/archive", "gs", "bucket/archive"),
        ("hadoop+abfss://c@account.dfs.core.windows.net/archive", "abfs", "c/archive"),
    ],
)
def test_places_of_hadoop_that_python_reads(location: str, kind: str, root: str) -> None:
    found = place_to_read(location)
    assert (found.kind, found.root) == (kind, root)
    again = place_to_read(place_of(location).recorded)
    assert (again.kind, again.root) == (kind, root)


def test_given_variables_replace_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read is planned in a process that has the environment of when Spark began."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "old")
    assert place_of("s3://bucket/a").options["access_key"] == "old"
    given = {"AWS_ACCESS_KEY_ID": "new", "AWS_SECRET_ACCESS_KEY": "hush"}
    found = place_of("s3://bucket/a", given)
    assert found.options == {"access_key": "new", "secret_key": "hush"}
    assert "hush" not in repr(found)
    named = place_of("s3://bucket/a?access_key=url&secret_key=url", given)
    assert named.options["access_key"] == "url"


@pytest.mark.parametrize("location", ["", " ", "\n"])
def test_an_empty_location_is_not_the_current_directory(location: str) -> None:
    """Often it is the value of a variable that is not set."""
    for parse in (place_of, place_to_read, open_archive):
        with pytest.raises(InvalidInput, match="is empty: .* write . for the current directory"):
            parse(location)
    assert place_of(".").root == "."
