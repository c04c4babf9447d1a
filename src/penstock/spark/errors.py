"""What a read or write on Spark can end in, besides the errors that all of Penstock has."""

from penstock.errors import LedgerError


class DataLoss(LedgerError):
    """A range that was asked for is not there any more: retention or compaction removed it."""


class DamagedSegment(LedgerError):
    """Bytes of a segment are not what was written there."""
