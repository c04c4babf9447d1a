"""The packed structures that hold what waits with a due time, against plain Python ones."""

from array import array
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.key_order import KeyOrder
from penstock.queue.schedule import NEVER_NS, Delays, Timetable
from tests.queue.costs import kept_by

pairs = st.tuples(st.integers(0, 50), st.integers(1, 100))


def check(table: Timetable, model: set[tuple[int, int]]) -> None:
    check_front(table, model)
    assert list(table) == sorted(model)


def check_front(table: Timetable, model: set[tuple[int, int]]) -> None:
    """Unlike a list of all, this does not tidy up the table."""
    assert len(table) == len(model)
    assert table.first == min(model, default=None)
    assert table.next_ns == (min(model)[0] if model else NEVER_NS)
    if model:
        dues, seqs = table.lowest(5)
        lowest = sorted(model)[: len(dues)]
        assert list(zip(dues, seqs, strict=True)) == lowest != []


@given(st.lists(pairs, unique=True), st.lists(st.tuples(st.sampled_from("arfplb"), pairs)))
def test_a_timetable_is_a_sorted_set(
    start: list[tuple[int, int]], steps: list[tuple[str, tuple[int, int]]]
) -> None:
    table, model = Timetable(start), set(start)
    for what, pair in steps:
        match what:
            case "a" if pair not in model:
                table.add(*pair)
                model.add(pair)
            case "r":
                assert table.remove(*pair) == (pair in model)
                model.discard(pair)
            case "f" if model:
                assert table.remove(*min(model))
                model.remove(min(model))
            case "l":
                assert list(table) == sorted(model)
            case "p":
                due = sorted(other for other in model if other[0] <= pair[0])
                assert list(table.pop_upto(pair[0])) == due
                model.difference_update(due)
            case "b":
                below = {other for other in model if other[1] < pair[1]}
                assert sorted(table.pop_below(pair[1])) == sorted(seq for _, seq in below)
                model -= below
        check_front(table, model)
    check(table, model)


@pytest.mark.parametrize("kind", ["rising", "falling", "all at once", "anyhow"])
def test_a_timetable_of_many_pieces_is_one_too(kind: str) -> None:
    random = Random(kind)
    due: Callable[[int], int] = {
        "rising": lambda number: number,
        "falling": lambda number: 10_000 - number,
        "all at once": lambda number: 7,
        "anyhow": lambda number: random.randrange(1000),
    }[kind]
    table, model = Timetable(), set()
    for number in range(10_000):
        pair = (due(number), number)
        table.add(*pair)
        model.add(pair)
    check(table, model)
    for pair in random.sample(sorted(model), 7_000):
        assert table.remove(*pair)
        assert not table.remove(*pair)
        model.remove(pair)
    check(table, model)
    half = sorted(model)[len(model) // 2][0]
    popped = list(table.pop_upto(half))
    assert popped == sorted(pair for pair in model if pair[0] <= half)
    check(table, model - set(popped))


@given(st.lists(st.integers(1 << 60, (1 << 60) + 600)))
def test_a_timetable_of_columns_is_the_same(dues: list[int]) -> None:
    """Times that a float cannot tell apart among them."""
    table = Timetable.of(array("Q", dues), array("Q", range(len(dues))))
    check(table, {(due_ns, seq) for seq, due_ns in enumerate(dues)})


@given(st.lists(st.tuples(st.sampled_from("agpb"), st.integers(1, 60))))
def test_delays_are_a_table_by_seq(steps: list[tuple[str, int]]) -> None:
    delays, model, last = Delays(), {}, 0
    for what, number in steps:
        match what:
            case "a":
                last += number
                delays.add(last, number, number % 10)
                model[last] = (number, number % 10)
            case "g":
                assert delays.get(number) == model.get(number)
            case "p":
                assert delays.pop(number) == model.pop(number, None)
            case "b":
                delays.pop_below(number)
                model = {seq: value for seq, value in model.items() if seq >= number}
        assert list(delays) == sorted(model)
        assert len(delays) == len(model)
    frozen = delays.freeze()
    for seq in list(delays)[::2]:
        delays.pop(seq)  # what is frozen stays as it was
    again = Delays.load(frozen(), known=())
    assert {seq: again.get(seq) for seq in again} == model
    assert again.freeze()() == frozen()
    if model:
        with pytest.raises(ValueError, match="delays"):
            Delays.load(frozen(), known=model)
        with pytest.raises(ValueError, match="delays"):
            Delays.load(frozen()[:-1], known=())


def test_delays_that_left_cost_nothing_in_the_end() -> None:
    delays = Delays((seq, seq, 5) for seq in range(20_000))
    for seq in range(19_990):
        assert delays.pop(seq) == (seq, 5)
    assert list(delays) == list(range(19_990, 20_000))
    assert delays.allocated < 2_100


def test_a_delayed_message_costs_at_most_64_bytes() -> None:
    count, random = 50_000, Random(1)
    dues = [random.randrange(1 << 60) for _ in range(count)]
    table, delays = Timetable(), Delays()

    def fill() -> None:
        for seq, due_ns in enumerate(dues):
            table.add(due_ns, seq)
            delays.add(seq, due_ns, 5)

    assert kept_by(fill) <= 64 * count


@given(st.lists(st.tuples(st.sampled_from("jl"), st.integers(1, 12))))
def test_a_line_is_in_order_behind_its_first(steps: list[tuple[str, int]]) -> None:
    lines, model = KeyOrder(), list[int]()
    for what, seq in steps:
        if what == "j" and seq not in model:
            assert lines.join(b"k", seq) == (not model)
            model = [*model[:1], *sorted([*model[1:], seq])] if model else [seq]
        elif what == "l":
            was_first = bool(model) and model[0] == seq
            model = [other for other in model if other != seq]
            assert lines.leave(b"k", seq) == (model[0] if was_first and model else None)
        assert len(lines.seqs) == bool(model)
        if model:
            assert lines.ahead(b"k", model[-1]) == model[:-1]
            behind = len(model) > 1 and model[0] > model[1]
            assert lines.first_behind(b"k") == (model[0] if behind else None)
