"""The tables of events and of states say what the queue itself says."""

from pathlib import Path
from random import Random

import pytest

from penstock.arrow.locations import QueueLocation
from penstock.arrow.logs import ledger_reader
from penstock.clock import ManualClock
from penstock.errors import NoSuchGroup
from penstock.queue.events import ALL_GROUPS, decode
from penstock.queue.queue import open_queue
from tests.spark.in_process import rows
from tests.spark.random_queues import SMALL, fill, open_small, work


@pytest.mark.parametrize("seed", range(6))
def test_events_are_those_of_the_log_one_row_for_each_message(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with open_small(tmp_path, ManualClock()) as queue:
        fill(queue, random, 200)
        queue.groups.create("audit")
        work(queue, random, 80)
        queue.dequeue_batch(50, group="audit")
        queue.pause()
        queue.resume()
        queue.purge(group="audit")
        queue.seek("beginning", group="audit")
    with ledger_reader(QueueLocation(None, "queue", str(tmp_path)), "events") as reader:
        events = [
            decode(e.type, e.payload, timestamp_ns=e.timestamp_ns, event_seq=e.seq)
            for entries in reader.entries(1, 1 << 62)
            for e in entries
        ]
    names = {0: "main", 1: "audit", ALL_GROUPS: None}
    no_message: list[int | None] = [None]
    wanted = [
        (
            event.event_seq,
            event.type.name.lower(),
            names[event.group],
            seq,
            event.timestamp_ns,
            event.attempt,
            event.reason or None,
            event.holder or None,
            event.target_seq or None,
        )
        for event in events
        for seq in (list(event.seqs) or no_message)
    ]
    columns = "event_seq,event,group,seq,timestamp_ns,attempt,reason,holder,target_seq"
    for size in (4096, 1 << 20):
        found = rows(tmp_path, table="events", columns=columns, maxPartitionBytes=size)
        assert [tuple(row.values()) for row in found] == wanted
    retries = rows(tmp_path, table="events", columns="event,retry_at,deadline")
    for row in retries:
        assert (row["retry_at"] is not None) == (row["event"] in ("nacked", "timed_out"))
        assert (row["deadline"] is not None) == (row["event"] == "leased")


@pytest.mark.parametrize("seed", range(6))
def test_states_are_those_the_queue_gives(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    # Nothing may become due between the read and the question.
    slow = {**SMALL, "backoff_base_s": 3600.0, "backoff_max_s": 3600.0, "lease_s": 3600.0}
    with open_queue(str(tmp_path), slow) as queue:
        fill(queue, random, 150)
        work(queue, random, 60)
        queue.sync()
        found = rows(tmp_path, table="state", columns="id,state,attempts,reason,holder")
        assert len(found) == 150
        for row in found:
            assert row["state"] == queue.state(row["id"]), row
        leased = [row for row in found if row["state"] == "leased"]
        assert all(row["attempts"] >= 1 for row in leased)
        assert all(row["attempts"] is None for row in found if row["state"] == "done")


def test_dead_letters_have_reason_and_times(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue(b"poison", max_attempts=1)
        (leased,) = queue.lease()
        queue.nack(leased, "cannot digest this")
    (row,) = rows(
        tmp_path, table="state", columns="state,attempts,reason,first_failure,last_failure"
    )
    assert (row["state"], row["attempts"], row["reason"]) == ("dead", 1, "cannot digest this")
    assert row["first_failure"] == row["last_failure"] is not None


def test_the_state_of_another_group(tmp_path: Path) -> None:
    with open_small(tmp_path) as queue:
        queue.enqueue(b"x")
        queue.groups.create("audit")
        queue.dequeue(group="audit")
    assert [row["state"] for row in rows(tmp_path, table="state")] == ["ready"]
    (row,) = rows(tmp_path, table="state", group="audit", columns="group,state")
    assert row == {"group": "audit", "state": "done"}
    with pytest.raises(NoSuchGroup):
        rows(tmp_path, table="state", group="nobody")
