"""Archives in object stores: S3, Google Cloud Storage, Azure. Archives on HDFS are read so too.

pyarrow reads and writes the files. It has no conditional write, so `obstore` creates manifests: the
store itself refuses the second of two writers (`If-None-Match: *`, or its equivalent). A process
that only reads needs only pyarrow.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from penstock.archive.faults import ArchiveError
from penstock.archive.places import Place
from penstock.archive.stores import StoredFile
from penstock.errors import PenstockError

_CONNECT_S = 10
_REQUEST_S = 120
_RETRIES = 5
_RETRY_S = 60
# Words of the stores' errors, in lower case, and what they mean.
_MEANINGS = (
    (("no_such_bucket", "nosuchbucket", "bucket not found"), "there is no such bucket"),
    (
        ("access_denied", "accessdenied", "forbidden", "unauthorized"),
        "access is denied: check the credentials and their rights",
    ),
    (
        ("invalid_access_key", "invalidaccesskey", "signature_does_not", "signaturedoesnot"),
        "the credentials are not valid",
    ),
    (
        ("network_connection", "curlcode", "error sending request"),
        "the store cannot be reached: check the endpoint and the network",
    ),
    (
        ("load libjvm", "load libhdfs"),
        "Python reads it with Hadoop's native library: set JAVA_HOME, HADOOP_HOME and CLASSPATH "
        "(`hadoop classpath --glob`) for the driver and the executors",
    ),
)


class ObjectStore:
    """An archive below a prefix of a bucket."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def shown(self) -> str:
        return self._place.shown

    @property
    def place(self) -> Place:
        return self._place

    @property
    def has_lock(self) -> bool:
        return False

    def check(self) -> None:
        """Raise unless the bucket exists and the credentials are accepted."""
        from pyarrow.fs import FileType

        if self._place.kind == "hdfs":
            with self._translated(self._place.root):
                self._files.get_file_info("/")
            return
        with self._translated(self._place.bucket):
            found = self._files.get_file_info(self._place.bucket)
        if found.type == FileType.NotFound:
            raise ArchiveError(f"{self.shown}: there is no bucket {self._place.bucket!r}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Do nothing: a manifest that another job wrote meanwhile is recognised by `create`."""
        check_installed()
        yield

    def read(self, path: str) -> bytes:
        with self._translated(path), self._files.open_input_file(self._full(path)) as file:
            data: bytes = file.read()
            return data

    def write(self, path: str, data: bytes) -> None:
        with self._translated(path), self._files.open_output_stream(self._full(path)) as file:
            file.write(data)

    def create(self, path: str, data: bytes) -> bool:
        check_installed()
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._translated(path):
            try:
                obstore.put(
                    _creator(self._place),
                    f"{self._place.prefix}/{path}".lstrip("/"),
                    data,
                    mode="create",
                    use_multipart=False,
                )
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def delete(self, path: str) -> None:
        with self._translated(path):
            try:
                self._files.delete_file(self._full(path))
            except FileNotFoundError:
                pass

    def files(self, folder: str) -> list[StoredFile]:
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self._full(folder), recursive=True, allow_not_found=True)
        with self._translated(folder):
            found = self._files.get_file_info(selector)
        skipped = len(self._place.root) + 1
        files = [
            StoredFile(info.path[skipped:], info.size, info.mtime_ns or 0)
            for info in found
            if info.type == FileType.File
        ]
        return sorted(files, key=lambda file: file.path)

    def remove_leftovers(self, folder: str) -> None:
        """Do nothing: an upload that did not finish is no file."""

    def _full(self, path: str) -> str:
        return f"{self._place.root}/{path}".rstrip("/")

    @property
    def _files(self) -> Any:
        return _file_system(self._place)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Raise ArchiveError with one sentence for what the libraries say in pages.

        FileNotFoundError passes, unless it means that there is no bucket.
        """
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            text = str(error).partition("Debug source:")[0].strip()
            words = text.lower()
            for signs, meaning in _MEANINGS:
                if any(sign in words for sign in signs):
                    raise ArchiveError(f"{self.shown}: {meaning} ({_one_line(text)})") from None
            if isinstance(error, FileNotFoundError):
                raise
            raise ArchiveError(f"{self.shown}, {path}: {_one_line(text)}") from None


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:300]}…"


def check_installed() -> None:
    """Raise PenstockError if the package that creates manifests is missing."""
    try:
        import obstore  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("obstore"):
            raise
        raise PenstockError(
            "writing an archive to an object store needs the package 'obstore', which is not "
            "installed; install Penstock with the extra object-store "
            "(pip install '.[object-store]' in its checkout)"
        ) from None


@lru_cache(maxsize=16)
def _file_system(place: Place) -> Any:
    """Return pyarrow's file system, one for all tasks of this process."""
    from pyarrow import fs

    options = place.options
    if place.kind == "s3":
        return fs.S3FileSystem(
            access_key=options.get("access_key"),
            secret_key=options.get("secret_key"),
            session_token=options.get("session_token"),
            anonymous=place.anonymous,
            region=options.get("region"),
            endpoint_override=options.get("endpoint"),
            connect_timeout=_CONNECT_S,
            request_timeout=_REQUEST_S,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_RETRIES),
            allow_delayed_open=True,  # a small file is one request
        )
    if place.kind == "gs":
        return fs.GcsFileSystem(
            anonymous=place.anonymous, retry_time_limit=timedelta(seconds=_RETRY_S)
        )
    if place.kind == "hdfs":
        scheme, authority = urlsplit(place.shown)[:2]
        return fs.HadoopFileSystem.from_uri(f"{scheme}://{authority}/")
    return fs.AzureFileSystem(
        place.account,
        account_key=options.get("account_key"),
        sas_token=options.get("sas_token"),
    )


@lru_cache(maxsize=16)
def _creator(place: Place) -> Any:
    """Return the store that `obstore` writes to."""
    from obstore.store import AzureStore, GCSStore, S3Store

    options = place.options
    shared: dict[str, Any] = {
        "client_options": {
            "allow_http": options.get("endpoint", "").startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "timeout": timedelta(seconds=_REQUEST_S),
        },
        "retry_config": {
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=_RETRY_S),
        },
    }
    config: Any
    if place.kind == "s3":
        names = {
            "access_key": "access_key_id",
            "secret_key": "secret_access_key",
            "session_token": "session_token",
            "region": "region",
            "endpoint": "endpoint",
        }
        config = {names[name]: value for name, value in options.items() if name in names}
        if place.anonymous:
            config["skip_signature"] = True
        return S3Store(place.bucket, config=config, **shared)
    if place.kind == "gs":
        config = {"skip_signature": True} if place.anonymous else {}
        return GCSStore(place.bucket, config=config, **shared)
    config = {"account_name": place.account}
    if "account_key" in options:
        config["account_key"] = options["account_key"]
    if "sas_token" in options:
        config["sas_key"] = options["sas_token"]
    return AzureStore(place.bucket, config=config, **shared)
