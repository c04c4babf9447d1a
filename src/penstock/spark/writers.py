"""Change a queue through its owner: the one process that may write to its directory.

If no process has the queue open, the driver becomes the owner for a moment. In the data directory
of a running broker the broker is the owner, and its LOCK file has the address.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from typing import TypeVar

from penstock.arrow.locations import (
    Directory,
    QueueLocation,
    check_reachable,
    choose,
    default_key,
    queue_at_broker,
    queue_of_directory,
)
from penstock.checking import is_url
from penstock.client import files as calls
from penstock.client.address import QueueAddress, queue_address
from penstock.client.queue import RemoteQueue
from penstock.clock import SystemClock
from penstock.errors import InvalidInput, LedgerLocked, NoSuchNamespace, NoSuchQueue, NotAllowed
from penstock.ledger import Ledger
from penstock.ledger.adoption import adopt_or_append, applications, sweep_staging
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Transaction
from penstock.ledger.queue_directory import LOCK_NAME, DirectoryLock, announced_url
from penstock.ledger.staging import Staged
from penstock.model import NS
from penstock.names import RULE, QueueName, directory_of, is_name
from penstock.queue import Queue, QueueSettings
from penstock.queue.adopting import refuse_bounds
from penstock.queue.queue import open_queue
from penstock.queue.segments import StagedSegment, StagingInfo
from penstock.spark.options import WriteOptions

LOCK_WAIT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
_BROKER_FOLDER = "_broker"  # in every data directory of a broker

_Result = TypeVar("_Result")


def wait_for_lock(attempt: Callable[[], _Result]) -> _Result:
    """Return what `attempt` returns. Repeat it while it raises LedgerLocked, up to LOCK_WAIT_S.

    Two streams may write to one queue, and a worker may outlive its killed driver. Each holds the
    lock for the length of a commit. The kernel does not tell when a lock is released.
    """
    clock, pause_s, unlocked = SystemClock(), _FIRST_PAUSE_S, Condition()
    deadline_ns = clock.monotonic_ns() + round(LOCK_WAIT_S * NS)
    while True:
        try:
            return attempt()
        except LedgerLocked:
            left_s = (deadline_ns - clock.monotonic_ns()) / NS
            if left_s <= 0:
                raise
        with unlocked:
            clock.wait(unlocked, min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@contextmanager
def owning_broker(queue: QueueLocation) -> Iterator[QueueLocation | None]:
    """Yield the queue at the broker that owns it, or None while this process may open it.

    Raise LedgerLocked if another process owns the data directory and gives no address.
    """
    if queue.url:
        yield queue
        return
    data = Folder(OsFiles(), queue.path).parent().parent()
    if not data.has(_BROKER_FOLDER):
        yield None  # not in a data directory: only the queue's own lock counts
        return
    lock = DirectoryLock(data)
    try:
        lock.take(SystemClock())
    except LedgerLocked as locked:
        url = announced_url(data)
        if url is None:
            raise LedgerLocked(
                f"{locked} If that is a broker, give its address with the option 'url' as well."
            ) from None
        yield queue_at_broker(url, queue_of_directory(queue.path), queue.api_key)
        return
    try:
        yield None
    finally:
        lock.release()


@contextmanager
def open_for_change(queue: QueueLocation) -> Iterator[Queue | RemoteQueue]:
    """Open a queue through its owner."""
    with owning_broker(queue) as broker:
        if broker is not None:
            assert broker.namespace is not None
            address = QueueAddress(broker.url, QueueName(broker.namespace, broker.name))
            yield RemoteQueue(address, broker.connection.exchange)
        else:
            with open_queue(queue.path, {}, create=False) as it:
                yield it


# -- the queue that the sink writes to -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """The queue that a sink writes to. Pickled to the tasks."""

    queue: QueueLocation  # where tasks stage segments
    owner: QueueLocation  # where they are adopted: the same, or at the broker with these files
    identity: int
    settings: QueueSettings

    def open_ledger(self) -> Ledger:
        return Ledger.open(self.owner.path, self.settings.storage.ledger_settings(), create=False)


def open_target(options: WriteOptions) -> Target:
    """Return the queue that the options name. It is created if it does not exist."""
    key = default_key(options.key)
    if options.path is None:
        assert options.url is not None
        address = queue_address(options.url, options.queue)
        queue = queue_at_broker(address.base, address.queue, key)
        info = _staging_info(queue)
        return Target(queue, queue, info.identity, QueueSettings.of_stored(info.settings))
    path = _directory_of(options.path, options.queue)
    queue = QueueLocation(None, path.rstrip("/").rpartition("/")[2], path, api_key=key)
    owner = queue
    if options.url is not None:
        owner = queue_at_broker(options.url, queue_of_directory(path), key)
    if not Folder(OsFiles(), path).has(MANIFEST_NAME):
        wait_for_lock(lambda: _create(owner))
    data = Folder(OsFiles(), path).read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
    manifest = Manifest.unpack(data)
    settings = QueueSettings.of_stored(manifest.settings)
    refuse_bounds(settings, path)
    return Target(queue, owner, manifest.identity, settings)


def check_target(location: str, queue: str | None) -> QueueLocation:
    """Return the queue that a sink would write to.

    Raise for a location that it cannot write to. Nothing is created.
    """
    if is_url(location):
        address = queue_address(location, queue)
        check_reachable(location)
        return queue_at_broker(address.base, address.queue, default_key(None))
    path = _directory_of(location, queue)
    return QueueLocation(None, path.rstrip("/").rpartition("/")[2], path)


def identity_of(queue: QueueLocation) -> int | None:
    """Return the identity of a queue, which is the same at its path and its URL.

    Return None if there is no such queue. A key that may only publish creates the queue.
    """
    if not queue.url:
        try:
            data = Folder(OsFiles(), queue.path).read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
        except FileNotFoundError:
            return None
        return Manifest.unpack(data).identity
    try:
        return queue.connection.do(calls.segments(queue.api_path)).identity
    except (NoSuchQueue, NoSuchNamespace):
        return None
    except NotAllowed:
        return _staging_info(queue).identity


def _create(owner: QueueLocation) -> None:
    with owning_broker(owner) as broker:
        if broker is None:
            open_queue(owner.path, {}).close()
        else:
            _staging_info(broker)


def _staging_info(queue: QueueLocation) -> StagingInfo:
    return queue.connection.do(calls.staging(queue.api_path))


def _directory_of(path: str, queue: str | None) -> str:
    """Return the directory of the queue that a path and the option `queue` name."""
    directory = Directory(path)
    folder = Folder(OsFiles(), path)
    if os.path.isfile(path):
        raise InvalidInput(f"{path} is a file: a queue is a directory")
    if queue is None:
        if folder.exists() and not directory.is_queue and not _may_become_queue(folder):
            raise InvalidInput(
                f"{path} is not a queue: name an empty or new directory, or, in a broker's data "
                f"directory, the option 'queue' (namespace/name)"
            )
        return path
    if directory.is_queue:
        return choose(directory.queues(), [queue], None)[0].path
    namespace, slash, name = queue.partition("/")
    if not slash or not is_name("namespace", namespace) or not is_name("queue", name):
        raise InvalidInput(
            f"the queue is {queue!r}; in a data directory it is <namespace>/<name>, each {RULE}"
        )
    if not folder.child(directory_of(namespace)).exists():
        raise InvalidInput(f"{path} has no namespace {namespace!r}: create it first")
    return folder.child(directory_of(namespace)).child(directory_of(name)).path


def _may_become_queue(folder: Folder) -> bool:
    """Return whether it is empty, or being made a queue now: the lock is a queue's first file."""
    return not folder.names() or (folder.has(LOCK_NAME) and not folder.has(_BROKER_FOLDER))


# -- commits of the sink ---------------------------------------------------------------------------


def commit_staged(
    target: Target, staged: Sequence[Staged], transaction: Transaction | None
) -> None:
    """Adopt staged segments, all or none. A transaction is adopted once.

    Wait for a queue that another process has open; raise LedgerLocked after LOCK_WAIT_S.
    """

    def commit() -> None:
        with owning_broker(target.owner) as broker:
            if broker is not None:
                app, version = transaction or (None, 0)
                segments = [StagedSegment(one.folder, one.name, one.entries) for one in staged]
                broker.connection.do(calls.adopt(broker.api_path, segments, app, version))
                return
            with target.open_ledger() as ledger:
                adopt_or_append(ledger, staged, transaction, now_ns=SystemClock().now_ns())

    wait_for_lock(commit)


def applications_of(target: Target, prefix: str) -> list[str]:
    """Return the applications with this prefix whose transactions a queue remembers."""

    def read() -> list[str]:
        with owning_broker(target.owner) as broker:
            if broker is not None:
                call = calls.staging(broker.api_path, applications=prefix)
                return list(broker.connection.do(call).applications)
            with target.open_ledger() as ledger:
                return applications(ledger, prefix)

    return wait_for_lock(read)


def remove_staged(target: Target, folders: Sequence[str]) -> None:
    """Remove folders of the staging area. Adopted segments are not in them any more."""
    with owning_broker(target.owner) as broker:
        if broker is None:
            with target.open_ledger() as ledger:
                sweep_staging(ledger, folders)
            return
        for folder in folders:
            broker.connection.do(calls.unstage(broker.api_path, folder))
