"""Which queue the sink writes to; it is made if it is not there."""

import os

from penstock.checking import is_url
from penstock.client import files as calls
from penstock.client.address import queue_address
from penstock.errors import InvalidInput
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest
from penstock.ledger.queue_directory import LOCK_NAME
from penstock.names import RULE, QueueName, directory_of, is_name
from penstock.queue import QueueSettings
from penstock.queue.adopting import refuse_bounds
from penstock.queue.queue import open_queue
from penstock.queue.segments import StagingInfo
from penstock.spark.http_files import path_of
from penstock.spark.options import WriteOptions
from penstock.spark.patience import wait_for_lock
from penstock.spark.places import (
    AtBroker,
    Directory,
    QueueAt,
    check_reachable,
    chosen,
    connection_to,
    known_key,
    queue_in_data,
)
from penstock.spark.staging import Target
from penstock.spark.writers import BROKERS_OWN, writer_of


def target_of(options: WriteOptions) -> Target:
    """The queue that was asked for: its files in a directory, or at a broker, or both."""
    key = known_key(options.key)
    if options.path is None:
        assert options.url is not None
        address = queue_address(options.url, options.queue)
        queue = AtBroker(address.base, key).queue(address.queue)
        info = _staging(queue)
        settings = QueueSettings.of_stored(info.settings)
        return Target(queue, queue, info.identity, settings)
    path = _path_of(options.path, options.queue)
    queue = QueueAt(None, path.rstrip("/").rpartition("/")[2], path, api_key=key)
    holder = queue
    if options.url is not None:
        name = QueueName.parse(options.queue) if options.queue else queue_in_data(path)
        holder = AtBroker(options.url, key).queue(name)
    if not Folder(OsFiles(), path).has(MANIFEST_NAME):
        wait_for_lock(lambda: _make(holder))
    data = Folder(OsFiles(), path).read(MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
    manifest = Manifest.unpack(data)
    settings = QueueSettings.of_stored(manifest.settings)
    refuse_bounds(settings, path)
    return Target(queue, holder, manifest.identity, settings)


def check_target(place: str, queue: str | None) -> None:
    """Raise InvalidInput for a place that the sink cannot write to. Nothing is made."""
    if is_url(place):
        queue_address(place, queue)
        check_reachable(place)
    else:
        _path_of(place, queue)


def _make(holder: QueueAt) -> None:
    with writer_of(holder) as broker:
        if broker is None:
            open_queue(holder.path, {}).close()
        else:
            _staging(broker)


def _staging(queue: QueueAt) -> StagingInfo:
    return connection_to(queue.url, queue.api_key).do(calls.staging(path_of(queue)))


def _may_become_queue(folder: Folder) -> bool:
    """Is it empty, or being made a queue at this moment? Its lock is the first file of a queue."""
    return not folder.names() or (folder.has(LOCK_NAME) and not folder.has(BROKERS_OWN))


def _path_of(place: str, queue: str | None) -> str:
    where = Directory(place)
    folder = Folder(OsFiles(), place)
    if os.path.isfile(place):
        raise InvalidInput(f"{place} is a file: a queue is a directory")
    if queue is None:
        if folder.exists() and not where.is_queue and not _may_become_queue(folder):
            raise InvalidInput(
                f"{place} is not a queue: name an empty or new directory, or, in a broker's data "
                f"directory, the option 'queue' (namespace/name)"
            )
        return place
    if where.is_queue:
        return chosen(where, [queue], None)[0].path
    namespace, slash, name = queue.partition("/")
    if not slash or not is_name("namespace", namespace) or not is_name("queue", name):
        raise InvalidInput(
            f"the queue is {queue!r}; in a data directory it is <namespace>/<name>, each {RULE}"
        )
    if not folder.child(directory_of(namespace)).exists():
        raise InvalidInput(f"{place} has no namespace {namespace!r}: make it first")
    return folder.child(directory_of(namespace)).child(directory_of(name)).path
