"""Damage anywhere: it is found, reported and contained, and no wrong byte is ever served.

What that means in detail stands in `penstock.torture.damage_judge`.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random

import pytest

from penstock.ledger.settings import KIB
from penstock.torture.damage_judge import judge
from penstock.torture.damage_store import LARGE, Truth, build
from penstock.torture.damage_strokes import Stroke, every_bit, stroke

STROKES = 20_000
PARTS = 40
LARGE_STORE_BYTES = 64 * KIB
LARGE_PARTS = 32


@pytest.fixture(scope="module")
def truth() -> Truth:
    return build()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each damage is logged, which is right and here too much."""
    logger = logging.getLogger("penstock.ledger")
    logger.disabled = True
    yield
    logger.disabled = False


def judge_all(truth: Truth, strokes: Iterable[Stroke]) -> int:
    count = 0
    for each in strokes:
        try:
            judge(truth, each)
        except Exception as error:
            raise AssertionError(f"stroke {count}, {each}: {error!r}") from error
        count += 1
    return count


@pytest.mark.parametrize("part", range(PARTS))
def test_no_damage_makes_a_wrong_answer_or_hides_a_good_entry(truth: Truth, part: int) -> None:
    random = Random(f"damage {part}")
    strokes = (stroke(truth, random) for _ in range(STROKES // PARTS))
    assert judge_all(truth, strokes) == STROKES // PARTS


@pytest.fixture(scope="module")
def large_truth() -> Truth:
    large = build(size=4, payload_bytes=900, settings=LARGE)
    assert sum(map(len, large.files.values())) >= LARGE_STORE_BYTES
    return large


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(LARGE_PARTS))
def test_no_single_bit_of_a_large_store_does(large_truth: Truth, part: int) -> None:
    for file in large_truth.files:
        assert judge_all(large_truth, islice(every_bit(large_truth, file), part, None, LARGE_PARTS))
