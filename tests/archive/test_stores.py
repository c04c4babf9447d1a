"""Every store gives an archive the same guarantees."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.archive import Archive, ArchiveConflict, ArchiveError, ArchiveManifest, archive_at
from penstock.archive.manifests import version_path
from penstock.errors import InvalidInput
from tests.archive.s3_server import BUCKET, S3Server


@pytest.fixture(params=["directory", "file URL", "S3"])
def location(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> Iterator[str]:
    if request.param == "S3":
        yield s3.location(f"{tmp_path.name}/an archive")
    elif request.param == "file URL":
        yield f"file://{tmp_path}/an%20archive"
    else:
        yield str(tmp_path / "an archive")


@pytest.fixture
def archive(location: str) -> Archive:
    return archive_at(location)


def test_a_file_reads_as_it_was_written(archive: Archive) -> None:
    store = pickle.loads(pickle.dumps(archive.store))  # as a task has it
    store.check()
    with pytest.raises(FileNotFoundError):
        store.read("queue=a/date=2026-01-31/1.parquet")
    for data in (b"", b"one", b"x" * 6_000_000):
        store.write("queue=a/date=2026-01-31/1.parquet", data)
        assert archive.store.read("queue=a/date=2026-01-31/1.parquet") == data
    (file,) = archive.store.files("queue=a")
    assert (file.path, file.size_bytes) == ("queue=a/date=2026-01-31/1.parquet", 6_000_000)
    assert file.modified_ns > 0
    assert store.files("queue=b") == []
    for _ in range(2):
        store.delete("queue=a/date=2026-01-31/1.parquet")
    assert store.files("") == []


@pytest.mark.parametrize("url", ["http://x", "https://h/archive", "localhost:8080/archive"])
def test_the_url_of_a_broker_is_refused_with_what_an_archive_may_be(url: str) -> None:
    with pytest.raises(InvalidInput, match="is in a directory or an object store") as caught:
        archive_at(url)
    assert "such as s3://bucket/prefix" in str(caught.value)
    assert "not supported" not in str(caught.value)


def test_a_file_is_created_once(archive: Archive) -> None:
    with archive.locked():
        assert archive.store.create("a/1.json", b"first")
        assert not archive.store.create("a/1.json", b"second")
    assert archive.store.read("a/1.json") == b"first"


def test_a_file_is_created_once_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    store = archive_at(str(tmp_path)).store
    assert store.create("a/1.json", b"first")
    assert not store.create("a/1.json", b"second")
    assert store.read("a/1.json") == b"first"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["1.json"]


def test_the_newest_manifest_is_read(archive: Archive) -> None:
    assert not archive.exists()
    assert archive.manifest("shop/orders") is None
    for queue in ("shop/orders", "shop.or/ders", "shop/orders.eu"):
        manifest = ArchiveManifest(queue, 7, first_seq=1, next_seq=1)
        for next_seq in (10, 20):
            manifest.next_seq = next_seq
            archive.commit(manifest)
    assert archive.queues() == ["shop.or/ders", "shop/orders", "shop/orders.eu"]
    found = archive.manifest("shop/orders")
    assert found is not None
    assert (found.queue, found.next_seq, found.version) == ("shop/orders", 20, 2)


def test_old_versions_of_a_manifest_are_removed(archive: Archive) -> None:
    manifest = ArchiveManifest("orders", 7)
    for next_seq in range(15):
        manifest.next_seq = next_seq
        archive.commit(manifest)
    assert len(archive.store.files("_manifests")) == 10
    assert archive.one_manifest(None).next_seq == 14


def test_the_second_of_two_jobs_is_refused(archive: Archive) -> None:
    archive.commit(ArchiveManifest("orders", 7, next_seq=5))
    mine, others = archive.manifest("orders"), archive.manifest("orders")
    assert mine is not None and others is not None
    others.next_seq = 9
    archive.commit(others)
    mine.next_seq = 8
    with pytest.raises(ArchiveConflict, match="another job changed the archive of 'orders'"):
        archive.commit(mine)
    assert archive.one_manifest("orders").next_seq == 9


def test_a_job_that_slept_for_many_versions_is_refused(archive: Archive) -> None:
    archive.commit(ArchiveManifest("orders", 7))
    asleep = archive.one_manifest("orders")
    awake = archive.one_manifest("orders")
    for next_seq in range(20):  # the next version of the sleeper was removed by now
        awake.next_seq = next_seq
        archive.commit(awake)
    asleep.next_seq = 1_000
    with pytest.raises(ArchiveConflict):
        archive.commit(asleep)
    assert archive.one_manifest("orders").next_seq == 19
    assert len(archive.store.files("_manifests")) == 10


def test_a_manifest_of_version_0_2_is_read_and_followed(archive: Archive) -> None:
    archive.store.write(
        version_path("shop.orders", 0),
        b'{"queue": "shop/orders", "identity": 7, "first_seq": 1, "next_seq": 5, "files": []}',
    )
    manifest = archive.manifest("shop/orders")
    assert manifest is not None and manifest.next_seq == 5
    manifest.next_seq = 6
    archive.commit(manifest)
    assert [one.next_seq for one in archive.manifests()] == [6]


def test_a_lost_answer_is_not_taken_for_another_job(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = type(archive.store).create

    def answer_is_lost(self: object, path: str, data: bytes) -> bool:
        whole(archive.store, path, data)
        return whole(archive.store, path, data)  # the library's retry of a request

    monkeypatch.setattr(type(archive.store), "create", answer_is_lost)
    archive.commit(ArchiveManifest("orders", 7, next_seq=3))
    assert archive.one_manifest("orders").next_seq == 3


# -- S3 alone --------------------------------------------------------------------------------------


def test_a_missing_bucket_is_named(s3: S3Server) -> None:
    archive = archive_at(s3.location("a", bucket="no-such-bucket"))
    for call in (
        archive.store.check,
        lambda: archive.store.write("x", b"data"),
        lambda: archive.store.create("x", b"data"),
    ):
        with pytest.raises(ArchiveError, match=r"s3://no-such-bucket/a: there is no .*bucket"):
            call()


def test_wrong_credentials_are_named_and_not_shown(s3: S3Server) -> None:
    archive = archive_at(s3.location("a", key="wrong-key"))
    for call in (
        archive.store.check,
        archive.exists,
        lambda: archive.store.read("x"),
        lambda: archive.store.write("x", b"data"),
        lambda: archive.store.create("x", b"data"),
    ):
        with pytest.raises(ArchiveError, match="credentials") as caught:
            call()
        assert "very-secret" not in str(caught.value)
    assert "very-secret" not in repr(archive.store) + archive.shown
    assert s3.faults.puts == []


def test_an_endpoint_without_a_server_is_named() -> None:
    location = f"s3://{BUCKET}/a?endpoint=http://127.0.0.1:9&access_key=a&secret_key=b"
    with pytest.raises(ArchiveError, match=r"s3://archive-bucket/a: .*cannot be reached"):
        archive_at(location).store.check()


def test_two_creations_at_once_are_decided_by_the_store(s3: S3Server) -> None:
    """The other job's manifest arrives after this job looked, and before it writes."""
    archive = archive_at(s3.location("race"))
    others = archive_at(s3.location("race"))

    def other_job(path: str) -> None:
        s3.faults.before_put = None
        others.commit(ArchiveManifest("orders", 7, next_seq=99))

    s3.faults.before_put = other_job
    with pytest.raises(ArchiveConflict):
        archive.commit(ArchiveManifest("orders", 7, next_seq=1))
    assert archive.one_manifest("orders").next_seq == 99


# -- locations -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("s3:///prefix", "names no bucket"),
        ("s3://key:secret@bucket/x", "credentials before the bucket"),
        ("s3://bucket/x?acess_key=1", "'acess_key' is not an option"),
        ("s3://bucket/x?access_key=1", "needs access_key and secret_key, or neither"),
        ("s3://bucket/x?endpoint=localhost:9000", "must start with http"),
        ("s3://bucket/x?anonymous=yes", "true or false"),
        ("s3://bucket/x?region=", "is empty"),
        ("s3://bucket/a#b", "write it as %23"),
        ("abfss://container/x", "names no storage account"),
        ("file://host/x", "not a file of this machine"),
        ("http://127.0.0.1:8080/shop/orders", "directory or an object store"),
        ("oss://bucket/x", "needs Hadoop's file systems"),
        ("memory:", "is not a directory"),
    ],
)
def test_a_location_that_cannot_be_used_is_refused(
    location: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInput, match=message) as caught:
        archive_at(location)
    assert "key:secret" not in str(caught.value)


def test_credentials_of_the_environment_travel_with_the_store(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "good-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    sent = pickle.dumps(archive_at(f"s3a://{BUCKET}/environment").store)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name)
    store = pickle.loads(sent)  # on an executor, which has another environment
    store.write("x", b"data")
    assert store.read("x") == b"data"
