"""A rotation that is interrupted, beside a compaction."""

from pathlib import Path
from typing import Literal

import pytest

import penstock
from penstock.ledger.log import Log
from penstock.ledger.segment import Segment


@pytest.mark.parametrize("sync", ["always", "never"])
def test_a_compaction_leaves_a_segment_alone_whose_rotation_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Literal["always", "never"]
) -> None:
    with penstock.open(tmp_path, segment_entries=4, sync=sync, auto_compact=False) as queue:
        for name in ("old", "mid", "last"):
            queue.enqueue_batch([f"{name} {n}" for n in range(3 + (name != "last"))])
        queue.ack(queue.lease(20))
        sealed = Log.sealed_segments

        def after_an_interrupt(log: Log) -> list[tuple[Segment, int]]:
            monkeypatch.setattr(Log, "sealed_segments", sealed)
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                # The next segment is made by then, and the last one is still being written.
                patch.setattr(Segment, "save_index", _interrupt)
                queue.enqueue_batch(["x", "y"])
            return log.sealed_segments()

        monkeypatch.setattr(Log, "sealed_segments", after_an_interrupt)
        queue.compact()
        queue.enqueue("a")
        queue.compact()
        queue.enqueue_batch(["b", "c", "d", "e"])
    with penstock.open(tmp_path) as queue:
        found = [job.payload.decode() for job in queue.lease(20)]
    assert found in (list("abcde"), list("xyabcde"))


def _interrupt(segment: Segment) -> None:
    raise KeyboardInterrupt
