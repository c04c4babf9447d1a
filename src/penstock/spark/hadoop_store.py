"""An archive on one of Hadoop's file systems, through the JVM of Spark's driver.

Any scheme works for which the user's Spark has the classes and the settings: `hdfs://`, or `s3a://`
with the `hadoop-aws` jar. Only the driver uses it. Bytes travel as local files, because py4j sends
them as text.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from penstock.archive import ArchiveError, StoredFile
from penstock.archive.places import Place
from penstock.errors import InvalidInput

_NOT_FOUND = "java.io.FileNotFoundException"
_EXISTS = ("FileAlreadyExistsException",)


class HadoopStore:
    """The files of an archive below a path of Hadoop's FileSystem."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        try:
            context: Any = spark.sparkContext
        except PySparkAttributeError:
            raise InvalidInput(
                f"{place.shown} is reached through the JVM of the driver, which Spark Connect does "
                f"not give to Python: use a classic session, such as penstock.spark.session()"
            ) from None
        self._jvm = context._jvm
        self._settings = context._jsc.hadoopConfiguration()
        self._root = place.root
        self._shown = place.shown
        with self._translated():
            self._files = self._path("").getFileSystem(self._settings)

    @property
    def shown(self) -> str:
        return self._shown

    @property
    def has_lock(self) -> bool:
        return False

    def check(self) -> None:
        with self._translated():
            root = self._path("")
            if self._files.exists(root) and not self._files.getFileStatus(root).isDirectory():
                raise InvalidInput(f"{self._shown} is not a directory")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Do nothing: a manifest that another job wrote meanwhile is recognised by `create`."""
        yield

    def url(self, path: str) -> str:
        """Return the URL by which Spark reads a file."""
        return f"{self._root}/{path}"

    def read(self, path: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder, self._translated():
            local = os.path.join(folder, "copy")
            # "Raw": without a checksum file beside it.
            self._files.copyToLocalFile(False, self._path(path), self._java_path(local), True)
            with open(local, "rb") as file:
                return file.read()

    def write(self, path: str, data: bytes) -> None:
        with self._local_copy(data) as local, self._translated():
            self._files.copyFromLocalFile(False, True, local, self._path(path))

    def create(self, path: str, data: bytes) -> bool:
        """Store a file that does not exist.

        The file is written whole under another name, then renamed. HDFS refuses to rename onto a
        file that exists; file systems that would replace it are asked before.
        """
        target = self._path(path)
        temporary = self._path(f"{path}.{os.urandom(8).hex()}.tmp")
        with self._local_copy(data) as local, self._translated():
            if self._files.exists(target):
                return False
            self._files.mkdirs(target.getParent())
            self._files.copyFromLocalFile(False, True, local, temporary)
            try:
                return bool(self._files.rename(temporary, target))
            except Py4JJavaError as error:
                if any(name in str(error.java_exception.getClass()) for name in _EXISTS):
                    return False
                raise
            finally:
                self._files.delete(temporary, False)

    def delete(self, path: str) -> None:
        with self._translated():
            self._files.delete(self._path(path), False)

    def files(self, folder: str) -> list[StoredFile]:
        found = []
        with self._translated():
            where = self._path(folder)
            if not self._files.exists(where):
                return []
            root = self._files.makeQualified(self._path("")).toUri().getPath()
            listed = self._files.listFiles(where, True)
            while listed.hasNext():
                status = listed.next()
                path = status.getPath().toUri().getPath().removeprefix(root).lstrip("/")
                if not path.endswith(".tmp"):
                    found.append(
                        StoredFile(path, status.getLen(), status.getModificationTime() * 1_000_000)
                    )
        return sorted(found, key=lambda file: file.path)

    def remove_leftovers(self, folder: str) -> None:
        """Do nothing: another job may be writing them."""

    def _path(self, path: str) -> Any:
        return self._java_path(f"{self._root}/{path}" if path else self._root)

    def _java_path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    @contextmanager
    def _local_copy(self, data: bytes) -> Iterator[Any]:
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "copy")
            with open(local, "wb") as file:
                file.write(data)
            yield self._java_path(f"file://{local}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            cause = error.java_exception
            text = str(cause.toString()).partition("\n")[0]
            if _NOT_FOUND in text:
                raise FileNotFoundError(text) from None
            hint = ""
            if "No FileSystem for scheme" in text or "ClassNotFoundException" in text:
                hint = ": start Spark with the jar of this file system, such as hadoop-aws for s3a"
            raise ArchiveError(f"{self._shown}: {text}{hint}") from None
        except Py4JError as error:
            raise ArchiveError(f"{self._shown}: {error}") from None
