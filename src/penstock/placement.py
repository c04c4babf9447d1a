"""A table that says which cluster serves which queue, and how it changes when clusters are added.

A queue stays where the table says. A new cluster gets its share by moving queues, as few as
possible, one after another. With `hash % n` instead, nearly all queues would move at once.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.errors import InvalidInput

Table = Mapping[str, str]  # queue → cluster


class Move(NamedTuple):
    """A queue that changes its cluster."""

    queue: str
    source: str
    target: str


def place(queues: Iterable[str], clusters: Sequence[str], table: Table | None = None) -> Table:
    """Return the table with more queues: each goes to the cluster that has the fewest.

    >>> place(["a", "b", "c"], ["east", "west"], {"z": "east"})
    {'z': 'east', 'a': 'west', 'b': 'east', 'c': 'west'}
    """
    _check(clusters)
    found = dict(table or {})
    held = Counter(found.values())
    for queue in queues:
        if queue not in found:
            found[queue] = min(clusters, key=lambda cluster: held[cluster])
            held[found[queue]] += 1
    return found


def moves_to_even(table: Table, clusters: Sequence[str]) -> list[Move]:
    """Return the fewest moves after which no cluster has two queues more than another.

    Queues of clusters that are not in `clusters` move away.

    >>> moves_to_even({"a": "east", "b": "east", "c": "east"}, ["east", "west"])
    [Move(queue='c', source='east', target='west')]
    """
    _check(clusters)
    by_cluster: dict[str, list[str]] = {cluster: [] for cluster in clusters}
    homeless: list[tuple[str, str]] = []
    for queue, cluster in table.items():
        if cluster in by_cluster:
            by_cluster[cluster].append(queue)
        else:
            homeless.append((queue, cluster))
    least, more = divmod(len(table), len(clusters))
    # The fullest clusters keep one more than the others, so that the fewest queues move.
    order = sorted(clusters, key=lambda cluster: -len(by_cluster[cluster]))
    wanted = {cluster: least + (place < more) for place, cluster in enumerate(order)}
    moving = homeless
    for cluster in clusters:
        held = by_cluster[cluster]
        moving += [(queue, cluster) for queue in held[wanted[cluster] :]]
    rooms = [
        cluster
        for cluster in clusters
        for _ in range(max(wanted[cluster] - len(by_cluster[cluster]), 0))
    ]
    return [Move(*one, room) for one, room in zip(moving, rooms, strict=True)]


def apply(table: Table, moves: Iterable[Move]) -> Table:
    """Return the table after moves."""
    return {**table, **{move.queue: move.target for move in moves}}


def moves_by_hash(queues: Iterable[str], before: Sequence[str], after: Sequence[str]) -> list[Move]:
    """Return the moves if `hash(queue) % len(clusters)` chose the cluster, for comparison."""
    _check(before)
    _check(after)
    found = []
    for queue in queues:
        hashed = int.from_bytes(hashlib.sha256(queue.encode()).digest()[:8], "big")
        source, target = before[hashed % len(before)], after[hashed % len(after)]
        if source != target:
            found.append(Move(queue, source, target))
    return found


def _check(clusters: Sequence[str]) -> None:
    if not clusters:
        raise InvalidInput("there must be at least one cluster")
    if len(set(clusters)) != len(clusters):
        raise InvalidInput("two clusters have the same name")
