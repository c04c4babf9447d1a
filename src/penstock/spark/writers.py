"""Changing a queue through whoever is its writer.

One directory has one writer. Where nobody is at it, that is us for a moment. In the data directory
of a running broker it is the broker, which says in its LOCK where it can be asked.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.client import files as calls
from penstock.client.address import QueueAddress, queue_path
from penstock.client.queue import RemoteQueue
from penstock.clock import SystemClock
from penstock.errors import LedgerLocked
from penstock.ledger import Ledger
from penstock.ledger.adoption import adopt_or_append, applications, sweep_staging
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.json_files import Transaction
from penstock.ledger.queue_directory import DirectoryLock, announced_url
from penstock.ledger.staging import Staged
from penstock.names import QueueName
from penstock.queue import Queue, QueueSettings
from penstock.queue.queue import open_queue
from penstock.queue.segments import StagedSegment
from penstock.spark.patience import wait_for_lock
from penstock.spark.places import AtBroker, QueueAt, connection_to, queue_in_data

BROKERS_OWN = "_broker"  # a directory that every data directory of a broker has


@contextmanager
def open_to_change(queue: QueueAt) -> Iterator[Queue | RemoteQueue]:
    """The queue, to be changed as its users change it."""
    with writer_of(queue) as broker:
        if broker is not None:
            connection = connection_to(broker.url, broker.api_key)
            yield RemoteQueue(QueueAddress(broker.url, _name(broker)), connection.exchange)
        else:
            with open_queue(queue.path, {}, create=False) as it:
                yield it


@contextmanager
def writer_of(queue: QueueAt) -> Iterator[QueueAt | None]:
    """The queue at the broker that is its writer; None: it is ours, as long as this lasts."""
    if queue.url:
        yield queue
        return
    data = Folder(OsFiles(), queue.path).parent().parent()
    if not data.has(BROKERS_OWN):
        yield None  # no broker's: its own lock is all there is
        return
    lock = DirectoryLock(data)
    try:
        lock.take(SystemClock())
    except LedgerLocked as locked:
        yield _at_holder(queue, data, locked)
        return
    try:
        yield None
    finally:
        lock.release()


def _at_holder(queue: QueueAt, data: Folder, locked: LedgerLocked) -> QueueAt:
    url = announced_url(data)
    if url is None:
        raise LedgerLocked(
            f"{locked} If that is a broker, give its address with the option 'url' as well."
        ) from None
    return AtBroker(url, queue.api_key).queue(queue_in_data(queue.path))


def _name(broker: QueueAt) -> QueueName:
    assert broker.namespace is not None
    return QueueName(broker.namespace, broker.name)


# -- for the sink ----------------------------------------------------------------------------------


def commit_staged(
    queue: QueueAt,
    settings: QueueSettings,
    staged: Sequence[Staged],
    transaction: Transaction | None,
) -> None:
    """Have staged segments taken in, all or none, and a transaction once.

    Wait for a queue that another process holds, up to a deadline; then raise LedgerLocked.
    """
    wait_for_lock(lambda: _commit(queue, settings, staged, transaction))


def _commit(
    queue: QueueAt,
    settings: QueueSettings,
    staged: Sequence[Staged],
    transaction: Transaction | None,
) -> None:
    with writer_of(queue) as broker:
        if broker is not None:
            app, version = transaction or (None, 0)
            segments = [StagedSegment(one.folder, one.name, one.entries) for one in staged]
            call = calls.adopt(queue_path(_name(broker)), segments, app, version)
            connection_to(broker.url, broker.api_key).do(call)
            return
        with _ledger(queue, settings) as ledger:
            adopt_or_append(ledger, staged, transaction, now_ns=SystemClock().now_ns())


def applications_of(queue: QueueAt, settings: QueueSettings, prefix: str) -> list[str]:
    """Return the applications whose transactions a queue remembers, if they begin so."""
    return wait_for_lock(lambda: _applications(queue, settings, prefix))


def _applications(queue: QueueAt, settings: QueueSettings, prefix: str) -> list[str]:
    with writer_of(queue) as broker:
        if broker is not None:
            call = calls.staging(queue_path(_name(broker)), applications=prefix)
            found = connection_to(broker.url, broker.api_key).do(call)
            return list(found.applications)
        with _ledger(queue, settings) as ledger:
            return applications(ledger, prefix)


def drop_staged(queue: QueueAt, settings: QueueSettings, folders: Sequence[str]) -> None:
    """Remove folders of the staging area. What was adopted has left them, and stays."""
    with writer_of(queue) as broker:
        if broker is None:
            with _ledger(queue, settings) as ledger:
                sweep_staging(ledger, folders)
            return
        for folder in folders:
            call = calls.unstage(queue_path(_name(broker)), folder)
            connection_to(broker.url, broker.api_key).do(call)


def _ledger(queue: QueueAt, settings: QueueSettings) -> Ledger:
    return Ledger.open(queue.path, settings.ledger_settings(), create=False)
