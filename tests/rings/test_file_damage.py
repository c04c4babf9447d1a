"""Damage to any file of a queue: told by opening or by `verify`, and never served.

What that means in detail stands in `tests.harness.file_judge`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from random import Random

import pytest

from tests.harness.file_judge import judge
from tests.harness.file_lives import SHAPES, Life, contents_of, lived
from tests.harness.file_strokes import FileStroke, strokes

SAMPLE = 30  # strokes for each shape and each end
CLOSED = pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each damage is logged, which is right and here too much."""
    loggers = [logging.getLogger("penstock.ledger"), logging.getLogger("penstock.queue")]
    for logger in loggers:
        logger.disabled = True
    yield
    for logger in loggers:
        logger.disabled = False


@cache
def life_of(shape: Callable[[Life], None], closed: bool) -> tuple[Life, list[FileStroke]]:
    life = lived(shape, closed=closed)
    return life, list(strokes(contents_of(life.files), life.older))


def judge_all(life: Life, chosen: Iterable[FileStroke], *, closed: bool) -> Counter[str]:
    counts: Counter[str] = Counter()
    for stroke in chosen:
        try:
            verdict = judge(life, stroke, closed=closed)
        except Exception as error:
            raise AssertionError(f"{stroke}: {error!r}") from error
        counts["strokes"] += 1
        counts["reported"] += bool(verdict.reports or verdict.refused)
        counts["with a loss"] += bool(verdict.lost)
    return counts


def sampled(found: list[FileStroke], seed: str) -> list[FileStroke]:
    """Some of each kind, on each file."""
    random = Random(seed)
    random.shuffle(found := list(found))
    ranks: Counter[tuple[str, str]] = Counter()
    ranked = []
    for stroke in found:
        about = (stroke.kind, stroke.file)
        ranked.append((ranks[about], stroke))
        ranks[about] += 1
    ranked.sort(key=lambda pair: pair[0])
    return [stroke for _, stroke in ranked[:SAMPLE]]


@CLOSED
@SHAPE
def test_no_damage_to_a_file_is_silent_or_served(
    shape: Callable[[Life], None], closed: bool
) -> None:
    life, found = life_of(shape, closed)
    chosen = sampled(found, f"{shape.__name__} {closed}")
    assert judge_all(life, chosen, closed=closed)["strokes"] == len(chosen)


@CLOSED
@SHAPE
def test_what_is_whole_is_reported_as_such(shape: Callable[[Life], None], closed: bool) -> None:
    """Teeth: without damage there is no report, and nothing is lost."""
    life = lived(shape, closed=closed)
    verdict = judge(life, FileStroke("nothing", "", contents_of(life.files)), closed=closed)
    assert not (verdict.reports or verdict.refused or verdict.lost or verdict.back)


@pytest.mark.long
@pytest.mark.timeout(7200)
@CLOSED
@SHAPE
def test_no_damage_at_all_to_a_file_is(shape: Callable[[Life], None], closed: bool) -> None:
    life, found = life_of(shape, closed)
    print(shape.__name__, closed, judge_all(life, found, closed=closed))
