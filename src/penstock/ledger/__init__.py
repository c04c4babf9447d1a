"""Bytes and files: segmented logs that survive crashes, and everything around them."""

from penstock.ledger.compaction import Compactor, LiveSeqs, Retention
from penstock.ledger.damage import Damage
from penstock.ledger.ledger import Ledger
from penstock.ledger.reading import Cursor, read_entry, seq_at_time
from penstock.ledger.settings import LedgerSettings
from penstock.ledger.snapshots import Snapshot
from penstock.ledger.verify import VerifyReport, verify

__all__ = [
    "Compactor",
    "Cursor",
    "Damage",
    "Ledger",
    "LedgerSettings",
    "LiveSeqs",
    "Retention",
    "Snapshot",
    "VerifyReport",
    "read_entry",
    "seq_at_time",
    "verify",
]
