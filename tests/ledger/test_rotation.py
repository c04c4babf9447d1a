"""Rotation: by size, count, age, whichever comes first; never inside a batch."""

from dataclasses import replace

import pytest

from penstock.ledger.segment_header import base_seq_of
from tests.ledger.store import MODES, SMALL, Store, payload_of, payloads


def bases(store: Store) -> list[int]:
    """The first seq of each segment, from the names."""
    return [base_seq_of(path.name) or 0 for path in store.segments()]


def test_a_segment_is_no_larger_than_its_limit(any_store: Store) -> None:
    any_store.fill(200)
    any_store.close()
    sizes = [path.stat().st_size for path in any_store.segments()]
    assert len(sizes) > 5
    assert max(sizes) <= any_store.settings.segment_bytes
    assert min(sizes[:-1]) > any_store.settings.segment_bytes - 300


@pytest.mark.parametrize("mode", MODES)
def test_rotation_by_count(store: Store, mode: str) -> None:
    store.open(replace(MODES[mode], segment_entries=10))
    store.fill(35)
    assert bases(store) == [1, 11, 21, 31]


@pytest.mark.parametrize("mode", MODES)
def test_rotation_by_age(store: Store, mode: str) -> None:
    store.open(replace(MODES[mode], segment_age_s=60))
    store.fill(2)
    store.clock.advance(59.9)
    store.fill(1)
    assert bases(store) == [1]
    store.clock.advance(0.2)
    store.fill(1)
    assert bases(store) == [1, 4]
    store.clock.advance(1000)
    store.fill(2)
    assert bases(store) == [1, 4, 5]


def test_the_age_of_a_segment_counts_over_a_restart(store: Store) -> None:
    store.open(replace(SMALL, segment_age_s=60))
    store.fill(1)
    store.clock.advance(61)
    store.reopen()
    store.fill(1)
    assert bases(store) == [1, 2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("resting", [False, True])
def test_an_old_segment_can_be_sealed_without_an_append(
    store: Store, mode: str, resting: bool
) -> None:
    store.open(replace(MODES[mode], segment_age_s=60))
    store.fill(3)
    if resting:
        store.ledger.rest()
    store.ledger.seal_old_segments()
    assert bases(store) == [1]  # it is not old yet
    store.clock.advance(61)
    store.ledger.seal_old_segments()
    assert bases(store) == [1, 4]
    store.clock.advance(61)
    store.ledger.seal_old_segments()
    assert bases(store) == [1, 4]  # one without entries never gets old
    if resting:
        store.reopen()
    store.fill(1)
    store.reopen()
    assert payloads(store.messages) == [payload_of(seq) for seq in range(1, 5)]
    assert store.ledger.damage == ()


def test_whichever_limit_comes_first_rotates(store: Store) -> None:
    store.open(replace(SMALL, segment_entries=10, segment_age_s=60))
    store.fill(10)  # by count
    store.fill(1)
    store.clock.advance(61)
    store.fill(1)  # by age
    store.fill(1, size=4000)  # by size
    assert bases(store) == [1, 11, 12, 13]


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_never_split_over_segments(store: Store, mode: str) -> None:
    store.open(replace(MODES[mode], segment_entries=10))
    store.fill(8)
    store.messages.append_batch([payload_of(9 + n) for n in range(5)])
    store.messages.append_batch([payload_of(14 + n) for n in range(25)])
    store.fill(1)
    store.ledger.commit()
    assert bases(store) == [1, 9, 14, 39]
    store.reopen()
    assert payloads(store.messages) == [payload_of(seq) for seq in range(1, 40)]


def test_a_sealed_segment_has_no_zeros_at_its_end_and_an_index_beside_it(
    any_store: Store,
) -> None:
    any_store.fill(100)
    *sealed, last = any_store.segments()
    assert len(sealed) > 1
    for path in sealed:
        assert path.read_bytes()[-4:] != bytes(4), path
        assert path.with_suffix(".idx").exists()
    assert not last.with_suffix(".idx").exists()


def test_other_limits_take_effect_at_the_next_opening(store: Store) -> None:
    store.fill(5)
    store.reopen(replace(SMALL, segment_entries=3))
    store.fill(4)
    assert bases(store) == [1, 6, 9]
