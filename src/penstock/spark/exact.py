"""Reading a log the way its owner does: slower, and right whatever the files look like.

The fast way (`decoding`) takes a range of bytes as it was planned. Where that does not come out
(the segment was rewritten or removed meanwhile, entries are damaged, missing or out of place), the
ledger's own reader decides what is there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from penstock.codec import Entry
from penstock.ledger import Cursor, Damage, Ledger, seq_at_time
from penstock.queue import QueueSettings
from penstock.spark.http_files import files_of
from penstock.spark.places import QueueAt

_CHUNK = 2000


class ExactReader:
    """A log, opened read-only as it is now; what is found damaged is remembered."""

    def __init__(self, ledger: Ledger, log: str, damages: list[Damage]) -> None:
        self._log = ledger.messages if log == "messages" else ledger.events
        self.damages = damages

    @property
    def first_seq(self) -> int:
        return self._log.first_seq

    def entries(self, first_seq: int, end_seq: int) -> Iterator[list[Entry]]:
        """The entries with seqs [first_seq, end_seq) that are there, in order."""
        cursor = Cursor(self._log, first_seq)
        while found := cursor.read(_CHUNK):
            wanted = [entry for entry in found if first_seq <= entry.seq < end_seq]
            if wanted:
                yield wanted
            if found[-1].seq >= end_seq - 1:
                return

    def seq_at_time(self, timestamp_ns: int) -> int:
        """The first seq written at or after a time; the next one if there is none."""
        return seq_at_time(self._log, max(timestamp_ns, 0))


@contextmanager
def exact_reader(queue: QueueAt, log: str) -> Iterator[ExactReader]:
    """Open a queue's files for reading. No lock is taken, nothing is changed."""
    damages: list[Damage] = []
    files = files_of(queue)
    stored = Ledger.stored_queue_settings(queue.path, files=files)
    settings = QueueSettings.of_stored(stored).ledger_settings()
    with Ledger.open(
        queue.path,
        # Reading goes on behind damage; what to do about it is the caller's to say. And a reader
        # needs neither the locks nor the syncs that a network file system is refused for.
        replace(settings, on_corruption="quarantine", allow_network_file_system=True),
        files=files,
        read_only=True,
        create=False,
        on_damage=damages.append,
    ) as ledger:
        yield ExactReader(ledger, log, damages)
