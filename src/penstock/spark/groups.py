"""The names of a queue's consumer groups: events carry only their numbers."""

from collections.abc import Iterator

from penstock.codec import Entry
from penstock.ledger.folder import Folder
from penstock.ledger.snapshots import Snapshots
from penstock.model import MAIN_GROUP_NAME
from penstock.queue.events import MAIN_GROUP, EventType, decode
from penstock.queue.snapshot import load_state
from penstock.queue.state import QueueState
from penstock.spark.exact import exact_reader
from penstock.spark.http_files import files_of
from penstock.spark.places import QueueAt
from penstock.spark.segments import LogView


def group_names(view: LogView) -> dict[int, str]:
    """Number to name: from the newest snapshot, and the events since.

    A group that was deleted before the snapshot has no name any more.
    """
    queue = view.facts.queue
    names, next_event = {MAIN_GROUP: MAIN_GROUP_NAME}, view.first_seq
    folder = Folder(files_of(queue), queue.path).child("snapshots")
    snapshot = Snapshots(folder).newest(upto=view.next_seq - 1)
    if snapshot is not None:
        state = QueueState(dedup_entries=1)
        load_state(state, snapshot.blob)
        names.update({number: group.name for number, group in state.groups.items()})
        next_event = max(next_event, snapshot.event_seq + 1)
    for entry in _created(queue, next_event, view.next_seq):
        event = decode(entry.type, entry.payload, timestamp_ns=0, event_seq=entry.seq)
        names[event.group] = event.name
    return names


def _created(queue: QueueAt, first_seq: int, end_seq: int) -> Iterator[Entry]:
    if first_seq >= end_seq:
        return
    with exact_reader(queue, "events") as reader:
        for entries in reader.entries(first_seq, end_seq):
            for entry in entries:
                if entry.type == EventType.GROUP_CREATED:
                    yield entry
