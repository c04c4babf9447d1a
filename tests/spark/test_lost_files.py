"""Files of a queue that are missing, cut or misplaced: the source tells, and doubles no row."""

from pathlib import Path

import pytest

import penstock
from penstock.errors import NotALedger
from penstock.spark.errors import DamagedSegment
from tests.harness.file_strokes import entry_bounds
from tests.spark.in_process import rows


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "queue"
    with penstock.open(path, segment_bytes=4096, sync="never") as made:
        for number in range(120):
            made.enqueue(b"%d" % number + bytes(80))
    return path


def segments(queue: Path) -> list[Path]:
    return sorted((queue / "messages").glob("*.log"))


def test_a_copy_of_a_segment_under_another_number_adds_no_rows(queue: Path) -> None:
    whole = [row["seq"] for row in rows(queue)]
    (queue / "messages" / f"{500:020d}.log").write_bytes(segments(queue)[0].read_bytes())
    assert [row["seq"] for row in rows(queue)] == whole == list(range(1, 121))


@pytest.mark.parametrize("how", ["cut", "delete"])
def test_a_lost_end_is_told_after_a_clean_close(queue: Path, how: str) -> None:
    last = segments(queue)[-1]
    data = last.read_bytes()
    if how == "delete":
        last.unlink()
    else:
        last.write_bytes(data[: entry_bounds(data)[2]])
    with pytest.raises(DamagedSegment, match="lost"):
        rows(queue)
    left = int(last.stem) + (2 if how == "cut" else 0)
    assert [row["seq"] for row in rows(queue, verify="false")] == list(range(1, left))


def test_a_queue_without_its_manifest_is_a_clear_error(queue: Path) -> None:
    (queue / "queue.json").unlink()
    with pytest.raises(NotALedger):
        rows(queue)
