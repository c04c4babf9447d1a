"""Back up a queue or a broker's data directory while it is in use, and restore it.

>>> import tempfile, penstock
>>> place = tempfile.mkdtemp()
>>> with penstock.open(f"{place}/orders") as queue:
...     _ = queue.enqueue(b"hello")
...     made = back_up(f"{place}/orders", f"{place}/backups")
>>> _ = restore(f"{place}/backups", f"{place}/again")
>>> with penstock.open(f"{place}/again") as queue:
...     queue.stats().ready
1
"""

from penstock.backup.restoring import Restored, restore
from penstock.backup.saving import BackupResult, back_up
from penstock.backup.target import BackupError, BackupTarget

__all__ = ["BackupError", "BackupResult", "BackupTarget", "Restored", "back_up", "restore"]
