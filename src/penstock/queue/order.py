"""The order of delivery: which of the ready messages goes next."""

import heapq
from collections.abc import Iterator, Sequence

from penstock.codec.layout import MAX_PRIORITY
from penstock.model import NS
from penstock.queue.core import QueueCore
from penstock.queue.group import Group


def in_order(core: QueueCore, group: Group, now_ns: int) -> Iterator[int]:
    """The ready messages of a group in the order of their delivery. Do not change it meanwhile."""
    lanes = [priority for priority, lane in enumerate(group.lanes) if len(lane)]
    if len(lanes) > 1 and core.settings.starvation_after_s:
        return _aged(core, group, lanes, now_ns)
    return group.candidates(reversed(lanes), core.published_ns)


def _aged(core: QueueCore, group: Group, lanes: Sequence[int], now_ns: int) -> Iterator[int]:
    """As `candidates`, but what has waited long is served as of a higher priority."""
    level_ns = round(core.settings.starvation_after_s * NS)
    heads: list[tuple[tuple[int, int, int], int, Iterator[int]]] = []

    def take_head(priority: int, seqs: Iterator[int]) -> None:
        seq = next(seqs, None)
        if seq is not None:
            flight = group.flights.get(seq)
            since_ns = core.due_ns(seq) if flight is None else flight.due_ns
            level = min(priority + max(now_ns - since_ns, 0) // level_ns, MAX_PRIORITY)
            heapq.heappush(heads, ((-level, since_ns, -priority), seq, seqs))

    for priority in lanes:
        take_head(priority, group.lanes[priority].in_order(core.published_ns))
    while heads:
        (_, _, negative), seq, seqs = heapq.heappop(heads)
        yield seq
        take_head(-negative, seqs)
