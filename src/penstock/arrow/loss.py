"""What a read reports: ranges that retention removed, and damage."""

import logging

from penstock.arrow.locations import QueueLocation
from penstock.arrow.ranges import Range
from penstock.errors import LedgerError

log = logging.getLogger("penstock.arrow")


class DataLoss(LedgerError):
    """A requested range does not exist any more: retention or compaction removed it."""


class DamagedSegment(LedgerError):
    """Bytes of a segment differ from what was written."""


def report_gap(one: Range, first: int, end: int, *, fail: bool) -> None:
    """Report removed seqs [first, end) as loss, as far as they are required."""
    first = max(first, one.wanted_from, one.required_from)
    end = min(end, one.wanted_to)
    if first < end:
        report_loss(one.info.queue.key, one.log, first, end - 1, fail=fail)


def report_loss(key: str, log_name: str, first: int, last: int, *, fail: bool) -> None:
    """Raise DataLoss for a removed range, or log it."""
    sentence = (
        f"queue {key}: seq {first} to {last} of {log_name} were requested, and were removed by "
        f"retention or compaction"
    )
    if fail:
        raise DataLoss(
            f"{sentence}. Start later, keep more (retention_s, retention_bytes), or set "
            f"failOnDataLoss=false (in Python fail_on_data_loss=False) to skip them."
        )
    log.warning("%s; skipped (failOnDataLoss=false, in Python fail_on_data_loss=False)", sentence)


def report_damage(sentence: str, queue: QueueLocation, *, verify: bool) -> None:
    """Raise DamagedSegment, or log the damage."""
    if verify:
        raise DamagedSegment(
            f"{sentence}. Nothing of this range was read. To skip what is lost, set the option "
            f"verify=false (in Python verify=False); to list all damage, run: "
            f"penstock verify {queue.path}"
        )
    log.warning("%s; skipped (verify=false, in Python verify=False)", sentence)
