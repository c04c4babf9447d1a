"""Every error Penstock raises, in one tree.

The first line of each docstring is the situation; the message of an instance says what happened,
why, and what to do.
"""

from typing import TypeVar

E = TypeVar("E", bound=Exception)


class PenstockError(Exception):
    """Anything that Penstock itself refuses or reports."""


class InvalidInput(PenstockError, ValueError):
    """A value given by the caller is outside its limits; nothing was changed."""


class TooLarge(InvalidInput):
    """An entry, header, key or batch is larger than its limit."""


class PayloadTooLarge(TooLarge):
    """A payload is larger than the queue takes."""


class BadEntry(PenstockError):
    """Bytes that should be an entry are not one.

    `offset` is where the entry starts in the buffer that was read, `reason` says what is wrong.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"bad entry at offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class NewerVersion(BadEntry):
    """An entry or file was written by a newer version of Penstock."""


class LedgerError(PenstockError):
    """Something about the files of a queue."""


class NotALedger(LedgerError):
    """The directory is not a queue, or does not exist."""


class LedgerLocked(LedgerError):
    """Another process, or another handle in this one, is the writer of the directory."""


class LedgerClosed(LedgerError):
    """The ledger was closed; open it again."""


class LedgerForked(LedgerError):
    """The handle belongs to the parent process; a forked child must open its own."""


class LedgerStopped(LedgerError):
    """A write or sync failed permanently; the ledger takes no writes until it is reopened."""


class ReadOnly(LedgerError):
    """The ledger was opened for reading."""


class DiskFull(LedgerError):
    """There is less free space than the floor, or no room to grow; nothing was written."""


class CorruptLedger(LedgerError):
    """Damage was found and the setting is to stop at damage."""


class EntryGone(LedgerError):
    """The entry was removed by retention, was never written, or lies in a damaged range."""


class RefusedFileSystem(LedgerError):
    """The directory is on a network file system, where locks and syncs are not reliable."""


class QueueError(PenstockError):
    """Something about a queue's messages."""


class ReceiptInvalid(QueueError):
    """The receipt settles nothing: unknown, of another queue, out of date, or used."""


class NoSuchMessage(QueueError):
    """There is no message with that id here (any more)."""


class NoSuchGroup(QueueError):
    """The queue has no consumer group of that name."""


class NoSuchSchedule(QueueError):
    """The queue has no schedule of that name."""


class QueueFull(QueueError):
    """The queue holds as many messages or bytes as it may, or remembers as many unique jobs."""


class RateLimited(QueueError):
    """More was published than the queue's rate limit allows; try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return str(self.args[0])


class PayloadUnreadable(QueueError):
    """A payload cannot be decompressed, or would be larger than allowed."""


class BrokerError(PenstockError):
    """Something about namespaces, queues, keys or clients of a broker."""


class NoSuchNamespace(BrokerError):
    """There is no namespace of that name."""


class NoSuchQueue(BrokerError):
    """There is no queue of that name, and queues are not made by using them."""


class AlreadyExists(BrokerError):
    """There is one of that name already."""


class NotEmpty(BrokerError):
    """The namespace still has queues; delete them first, or use force."""


class QuotaExceeded(BrokerError):
    """The namespace holds as many queues or bytes as it may."""


class KeyRefused(BrokerError):
    """No key was given, or it is wrong or revoked."""


class NotAllowed(BrokerError):
    """The key is good, but not for this namespace or verb."""


class TooManyRequests(BrokerError):
    """A client asks more than it may; try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return str(self.args[0])


class NoSuchSegment(BrokerError):
    """There is no segment of that name, or it was rewritten or removed meanwhile."""


class NoSuchRedrive(BrokerError):
    """The queue has no paced redrive of that id (any more): it is finished, or was cancelled."""


class NoSuchWebhook(BrokerError):
    """There is no webhook subscription of that id."""


class NoSuchDelivery(BrokerError):
    """The log of a webhook has no delivery of that number (any more)."""


class AddressRefused(BrokerError):
    """A webhook's address is not one that the broker may call."""


class NotSupported(BrokerError):
    """The broker's store does not have what the call needs, such as segment files."""


class Unavailable(BrokerError):
    """The broker cannot answer now: it is starting, stopping, or the queue is being recovered."""


class Overloaded(Unavailable):
    """More connections, or more bytes of requests and answers, are held than the limit."""


class Unreachable(Unavailable):
    """No answer came from the broker: no connection, or it broke, or the time was over."""


def again(error: E) -> E:
    """Return a copy of an error, to be raised once more.

    An error that is raised twice keeps the frames of both calls, and their payloads with them.
    """
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
