"""A reader that looks at any moment of a writer's life reports no damage where there is none."""

import logging
from collections.abc import Callable, Iterator

import pytest

from penstock.ledger import verify
from penstock.ledger.memory_files import MemoryFiles
from penstock.queue.queue import Queue, open_core
from tests.harness.file_lives import PATH, ROOM_BYTES, SHAPES, Life


class LookedAt(MemoryFiles):
    """Files at which somebody looks after every change."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__(mapped_room_bytes=ROOM_BYTES)
        self._look = look
        self._looking = False

    def _changed(self) -> None:
        if self._looking:
            return
        self._looking = True
        try:
            self._look()
        finally:
            self._looking = False

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        written = super().pwrite(fd, data, offset)
        self._changed()
        return written

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self._changed()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._changed()

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._changed()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("penstock").disabled = True
    yield
    logging.getLogger("penstock").disabled = False


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_no_moment_of_a_life_looks_like_damage(shape: Callable[[Life], None]) -> None:
    looks = 0

    def look() -> None:
        nonlocal looks
        if not files.exists(f"{PATH}/queue.json"):
            return
        looks += 1
        report = verify(PATH, files=files)
        assert report.is_sound, report.problems
        with Queue(open_core(PATH, {}, files=files, read_only=True)) as queue:
            assert not queue.stats().storage.damaged
            list(queue.browse())

    files = LookedAt(look)
    life = Life(files)
    shape(life)
    life.queue.close()
    assert looks > 5
