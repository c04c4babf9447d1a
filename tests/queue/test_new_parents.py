"""The parents of a queue's directory are made, and a crash takes neither them nor the queue."""

from pathlib import Path

import pytest

from tests.harness.journal import RecordedFiles
from tests.harness.queue_store import QueueStore

PLACE = Path("/data/shop/orders")
ALWAYS = {"sync": "always"}


class DyingFiles(RecordedFiles):
    """The process dies right after it made the so-manieth directory."""

    left = 0

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("seed", range(8))
def test_answered_messages_are_there_after_a_power_cut(seed: int) -> None:
    store = QueueStore(ALWAYS, path=PLACE, files=RecordedFiles())
    id_ = store.queue.enqueue(b"paid")
    assert store.cut_power(seed).get(id_).payload == b"paid"


@pytest.mark.parametrize("died_after", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_parents_that_a_dead_process_made_are_durable_as_well(died_after: int, seed: int) -> None:
    files = DyingFiles()
    files.left = died_after
    store = QueueStore(ALWAYS, path=PLACE, files=files)
    with pytest.raises(KeyboardInterrupt):
        store.open()
    id_ = store.kill().enqueue(b"paid")
    assert store.cut_power(seed).get(id_).payload == b"paid"
