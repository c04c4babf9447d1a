"""Where an archive is: a directory, a bucket with a prefix, or a URL of Hadoop's file systems.

    ./archive, file:///mnt/archive           a directory
    s3://bucket/prefix?region=eu-west-1      S3 and what speaks its protocol; also s3a:// and s3n://
    gs://bucket/prefix                       Google Cloud Storage
    abfss://container@account.dfs.core.windows.net/prefix      Azure
    hdfs://…, hadoop+s3a://…, and others     Hadoop's FileSystem, in a job on Spark

Options are in the query of the URL, or in the environment of the process that parses it. They
travel to Spark's executors with the place, and are never shown.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from penstock.checking import check_local, check_not_empty, is_database_url, is_url
from penstock.errors import InvalidInput

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}
HADOOP_PREFIX = "hadoop+"
_HADOOP_URL = re.compile(r"([^:]+):(?://([^/]*))?(/.*)?", re.DOTALL)

# Options of each kind of store, and the variables of the environment that stand for them.
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {
        "access_key": ("AWS_ACCESS_KEY_ID",),
        "secret_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "anonymous": (),
    },
    "gs": {"anonymous": ()},
    "abfs": {
        "account_key": ("AZURE_STORAGE_ACCOUNT_KEY",),
        "sas_token": ("AZURE_STORAGE_SAS_TOKEN",),
    },
}
# One given in the URL must not be mixed with others of the environment.
_CREDENTIALS = frozenset({"access_key", "secret_key", "session_token", "account_key", "sas_token"})

_PUBLIC = ("region", "endpoint", "anonymous")  # others are secrets


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed location. `shown` has no secrets."""

    kind: str  # "local", "s3", "gs", "abfs" or "hadoop"; "hdfs" if Python reads it
    root: str  # a directory; or "bucket/prefix"; or the URL for Hadoop
    shown: str
    account: str = ""  # of Azure
    options: dict[str, str] = field(default_factory=dict, repr=False)

    def __hash__(self) -> int:
        return hash((self.kind, self.root))

    @property
    def bucket(self) -> str:
        return self.root.partition("/")[0]

    @property
    def prefix(self) -> str:
        return self.root.partition("/")[2]

    @property
    def url(self) -> str:
        """The URL without options, with the scheme that Python packages know."""
        if self.kind == "abfs":
            prefix = f"/{self.prefix}" if self.prefix else ""
            return f"abfss://{self.bucket}@{self.account}.dfs.core.windows.net{prefix}"
        return f"{self.kind}://{self.root}"

    @property
    def recorded(self) -> str:
        """The location as it is noted in queues: absolute, and without secrets."""
        if self.kind == "local":
            return os.path.abspath(self.root)
        if self.kind == "hadoop":
            return f"{HADOOP_PREFIX}{self.shown}"
        public = {name: self.options[name] for name in _PUBLIC if name in self.options}
        return f"{self.url}?{urlencode(public)}" if public else self.url

    @property
    def anonymous(self) -> bool:
        return self.options.get("anonymous") == "true"


def store_variables() -> dict[str, str]:
    """Return the variables of this process's environment that stand for options of stores."""
    names = {name for known in OPTIONS.values() for names in known.values() for name in names}
    return {name: os.environ[name] for name in sorted(names) if os.environ.get(name)}


def place_of(location: str, variables: Mapping[str, str] | None = None) -> Place:
    """Parse a location. Raise InvalidInput for one that cannot hold an archive.

    `variables` replace those of the environment.
    """
    check_not_empty("the location of an archive, table or report", location)
    scheme = _SCHEME.match(location)
    if is_url(location) or is_database_url(location) or scheme is None:
        path = check_local(
            location,
            "an archive, table or report is in a directory or an object store",
            "An object store has a URL such as s3://bucket/prefix.",
        )
        return Place("local", path, path)
    name = scheme[1].lower()
    kind = _ALIASES.get(name, name)
    if kind == "file":
        path = _path_of_file_url(location)
        return Place("local", path, path)
    if kind not in OPTIONS:
        url = location.removeprefix(HADOOP_PREFIX)
        return Place("hadoop", url.rstrip("/"), _without_secrets(url))
    return _object_store(kind, location, store_variables() if variables is None else variables)


def place_to_read(location: str, variables: Mapping[str, str] | None = None) -> Place:
    """Parse the location of an archive that Python reads without Spark's JVM.

    Hadoop's file systems that Python has another way to are read by it: directories, object stores,
    and HDFS. Raise InvalidInput for others.
    """
    place = place_of(location, variables)
    if place.kind != "hadoop":
        return place
    # Hadoop's paths have no percent-escapes.
    scheme, authority, path = _HADOOP_URL.fullmatch(place.root).groups()  # type: ignore[union-attr]
    if scheme == "file":
        return Place("local", path or "/", place.shown)
    if scheme in ("hdfs", "viewfs"):
        return Place("hdfs", path or "", place.shown)
    if _ALIASES.get(scheme, scheme) in OPTIONS:
        return place_of(f"{scheme}://{authority or ''}{quote(path or '')}", variables)
    raise InvalidInput(
        f"{place.shown} needs Hadoop's file systems, which a job on Spark has: use "
        f"penstock.spark.jobs or `penstock spark`"
    )


def _path_of_file_url(location: str) -> str:
    parts = urlsplit(location)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidInput(f"{location!r} is not a file of this machine: write file:///directory")
    return unquote(parts.path) or "/"


def _object_store(kind: str, location: str, variables: Mapping[str, str]) -> Place:
    shown = _without_secrets(location)
    parts = urlsplit(location)
    if parts.fragment:
        raise InvalidInput(f"{shown} has a #: write it as %23")
    bucket, account = parts.netloc, ""
    if kind == "abfs":
        bucket, _, host = parts.netloc.partition("@")
        account = host.partition(".")[0]
        if not account:
            raise InvalidInput(
                f"{shown} names no storage account: write "
                f"abfss://container@account.dfs.core.windows.net/prefix"
            )
    elif "@" in bucket:
        raise InvalidInput(
            f"{shown} has credentials before the bucket: set them in the environment, or give "
            f"access_key and secret_key as options of the URL"
        )
    if not bucket:
        raise InvalidInput(f"{shown} names no bucket: write {kind}://bucket/prefix")
    prefix = unquote(parts.path).strip("/")
    root = f"{bucket}/{prefix}" if prefix else bucket
    return Place(kind, root, shown, account, _options(kind, shown, parts.query, variables))


def _options(kind: str, shown: str, query: str, environment: Mapping[str, str]) -> dict[str, str]:
    known = OPTIONS[kind]
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise InvalidInput(
                f"{name!r} is not an option of {shown}; there are {', '.join(known)}"
            )
        if not value:
            raise InvalidInput(f"the option {name} of {shown} is empty")
        given[name] = value
    if given.get("anonymous", "false") not in ("true", "false"):
        raise InvalidInput(f"the option anonymous of {shown} is true or false")
    own_credentials = bool(_CREDENTIALS & given.keys()) or given.get("anonymous") == "true"
    for name, variables in known.items():
        if name in given or (own_credentials and name in _CREDENTIALS):
            continue
        found = next((environment[one] for one in variables if environment.get(one)), None)
        if found is not None:
            given[name] = found
    if ("access_key" in given) != ("secret_key" in given):
        raise InvalidInput(f"{shown} needs access_key and secret_key, or neither")
    endpoint = given.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise InvalidInput(
            f"the endpoint of {shown} is {endpoint!r}: it must start with http:// or https://"
        )
    if endpoint is not None:
        # Otherwise the SDK asks the machine's metadata service for a region, for ten seconds.
        given.setdefault("region", "us-east-1")
    return given


def _without_secrets(location: str) -> str:
    """Return a URL without its query, and without what stands before an @ and a colon."""
    shown = location.partition("?")[0]
    return re.sub(r"//[^/@]*:[^/@]*@", "//", shown)
