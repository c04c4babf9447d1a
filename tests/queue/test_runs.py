"""Runs are a set of numbers, whatever is done to them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penstock.queue.runs import Runs

SPANS = st.tuples(st.integers(1, 60), st.integers(1, 8))
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "extend", "discard", "take one", "take some"]), SPANS),
    max_size=60,
)


@given(STEPS)
def test_runs_hold_what_a_set_would(steps: list[tuple[str, tuple[int, int]]]) -> None:
    runs, model = Runs(), set[int]()
    for step, (first, count) in steps:
        span = set(range(first, first + count))
        if step == "add":
            if not span & model:  # its promise to the caller is only about these
                runs.add(first, first + count)
                model |= span
        elif step == "extend":
            some = [*range(first, first + count, 2), first + count, first + count + 1]
            seqs = [seq for seq in sorted(set(some)) if seq not in model]
            if seqs:
                runs.extend(seqs)
                model |= set(seqs)
        elif step == "discard":
            assert runs.discard(first, first + count) == len(span & model)
            model -= span
        elif model:
            low, end = runs.first_run(1 if step == "take one" else count)
            assert low == min(model)
            assert model >= set(range(low, end))
            assert runs.discard(low, end) == end - low
            model -= set(range(low, end))
        assert runs.first == min(model, default=None)
        assert runs.holds(first, first + 1) == (first in model) == (first in runs)
        assert runs.count(first, first + count) == len(span & model)
        assert list(runs.within(first, first + count)) == sorted(span & model)
    assert len(runs) == len(model)
    assert list(runs) == sorted(model)
    loaded = Runs()
    loaded.load(runs.dump())
    assert (list(loaded), len(loaded), loaded.first) == (list(runs), len(runs), runs.first)
    assert not model or loaded.first_run(99) == runs.first_run(99)
    some = sorted(model)[::2]
    loaded.load(runs.dump(without=some))
    assert list(loaded) == sorted(model)[1::2]
    loaded.add_many(some)
    assert loaded.dump() == runs.dump()


def test_seqs_that_are_in_the_runs_already_are_refused() -> None:
    with pytest.raises(ValueError, match="not rising"):
        Runs([(1, 4)]).add_many([3])


@pytest.mark.parametrize("bad", [b"\0" * 8, bytes([2, *[0] * 7, 1, *[0] * 7])])
def test_a_dump_that_is_no_runs_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match="not rising"):
        Runs().load(bad)


@given(st.sets(st.integers(1, 40)), st.integers(0, 45), st.integers(1, 20))
def test_the_seqs_above_one_are_found(model: set[int], seq: int, count: int) -> None:
    runs = Runs()
    for one in sorted(model):
        runs.add(one, one + 1)
    assert runs.after(seq, count) == sorted(one for one in model if one > seq)[:count]
