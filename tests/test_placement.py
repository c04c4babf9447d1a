"""The table of queues and clusters: few queues move, and the clusters are even."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.placement import apply, moves_by_hash, moves_to_even, place

CLUSTERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)
TABLES = st.dictionaries(st.integers(0, 200).map(str), st.sampled_from("abcdefgh"))


@given(TABLES, CLUSTERS)
def test_evening_out_leaves_no_cluster_with_two_more_than_another(
    table: dict[str, str], clusters: list[str]
) -> None:
    then = apply(table, moves_to_even(table, clusters))
    held = Counter(dict.fromkeys(clusters, 0))
    held.update(then.values())
    assert set(held) == set(clusters)
    assert max(held.values()) - min(held.values()) <= 1
    assert then.keys() == table.keys()


@given(TABLES, CLUSTERS)
def test_no_fewer_moves_would_do(table: dict[str, str], clusters: list[str]) -> None:
    """At least what is above the larger share, and what is on clusters that are gone, must move."""
    moves = moves_to_even(table, clusters)
    least, more = divmod(len(table), len(clusters))
    held = sorted((Counter(table.values())[cluster] for cluster in clusters), reverse=True)
    may_stay = sum(min(count, least + (n < more)) for n, count in enumerate(held))
    assert len(moves) == len(table) - may_stay
    assert all(move.source != move.target for move in moves)
    assert len({move.queue for move in moves}) == len(moves)


def test_new_queues_move_no_others() -> None:
    before = place(["a", "b", "c", "d"], ["east", "west"])
    after = place(["e", "f"], ["east", "west", "north"], before)
    assert {queue: after[queue] for queue in before} == before
    assert Counter(after.values()) == {"east": 2, "west": 2, "north": 2}


def test_a_table_moves_a_share_and_a_hash_nearly_all() -> None:
    queues, before, after = [f"q{n}" for n in range(1000)], ["a", "b", "c"], ["a", "b", "c", "d"]
    assert len(moves_to_even(place(queues, before), after)) == 250
    assert 650 < len(moves_by_hash(queues, before, after)) < 850


@pytest.mark.parametrize("clusters", [[], ["east", "east"]])
def test_bad_clusters_are_refused(clusters: list[str]) -> None:
    with pytest.raises(InvalidInput):
        place(["a"], clusters)
    with pytest.raises(InvalidInput):
        moves_to_even({"a": "east"}, clusters)
