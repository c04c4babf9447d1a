"""Pages of listings: so many rows, found by looking at no more than a budget of messages."""

import heapq

from penstock.broker.store import Browse, DeadFilter, DeadPage, Page, Row
from penstock.checking import check_whole
from penstock.errors import InvalidInput
from penstock.model import NS, DeadLetter, Message
from penstock.queue.core import QueueCore
from penstock.queue.flight import Flight
from penstock.queue.inspecting import Inspecting
from penstock.queue.messages import size_of

MAX_PAGE = 1000
MAX_BUDGET = 1_000_000
MAX_LOOKED_BYTES = 256 << 20  # of payloads, for one page


def row_of(core: QueueCore, message: Message, group_name: str, state: str | None = None) -> Row:
    """A message with where it stands; `state` where that is known already."""
    with core.lock, core.change:
        group = core.group(group_name)
        lease, flight = group.leases.get(message.seq), group.flights.get(message.seq)
    attempts = lease.attempt if lease else flight.attempt if flight else 0
    return Row(message, state or Inspecting(core).state_of(message.id, group_name), attempts)


def browse_page(core: QueueCore, inspecting: Inspecting, query: Browse) -> Page:
    """The next rows that match."""
    check_whole("limit", query.limit, 1, MAX_PAGE)
    check_whole("budget", query.budget, 1, MAX_BUDGET)
    wanted = None if query.text is None else _as_bytes(query.text)
    rows: list[Row] = []
    looked_at, last_seq, size, looked_bytes = 0, query.after_seq, 0, 0
    for message in inspecting.browse(query.state, query.group, after_seq=query.after_seq):
        if looked_at == query.budget or looked_bytes > MAX_LOOKED_BYTES:
            return Page(rows, last_seq, looked_at, exhausted=True)
        if len(rows) == query.limit:
            return Page(rows, last_seq, looked_at, exhausted=False)
        looked_at += 1
        looked_bytes += len(message.payload)
        last_seq = message.seq
        if _matches(message, query, wanted):
            size += size_of(message)
            if rows and size > query.max_bytes:
                return Page(rows, rows[-1].message.seq, looked_at, exhausted=False)
            rows.append(row_of(core, message, query.group, query.state))
    return Page(rows, 0, looked_at, exhausted=False)


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"text is not valid text: {error.reason}") from None


def _matches(message: Message, query: Browse, wanted: bytes | None) -> bool:
    return (
        (query.key is None or message.key == query.key)
        and message.published_ns >= query.since_ns
        and not 0 < query.until_ns <= message.published_ns
        and (wanted is None or wanted in message.payload)
    )


def dead_page(
    core: QueueCore,
    inspecting: Inspecting,
    group_name: str,
    after_seq: int,
    limit: int,
    filter: DeadFilter,
    max_bytes: int,
) -> DeadPage:
    """The next dead letters that match, in the order they were published: at least one, and no more
    than fit into `max_bytes`."""
    check_whole("limit", limit, 1, MAX_PAGE)
    named = None if filter.ids is None else {inspecting.entry(id_).seq for id_ in filter.ids}
    with core.lock, core.change:
        core.tick()
        matching = [
            (seq, flight)
            for seq, flight in core.group(group_name).dead.items()
            if seq > after_seq and (named is None or seq in named) and _fits(flight, filter)
        ]
    found = heapq.nsmallest(limit + 1, matching, key=lambda item: item[0])
    letters: list[DeadLetter] = []
    last_seq = size = 0
    for seq, flight in found[:limit]:
        letter = inspecting.dead_letter(seq, flight)
        if letter is not None:
            size += size_of(letter.message)
            if letters and size > max_bytes:
                return DeadPage(letters, last_seq)
            letters.append(letter)
        last_seq = seq
    return DeadPage(letters, last_seq if len(found) > limit else 0)


def _fits(flight: Flight, filter: DeadFilter) -> bool:
    at = flight.last_failure_ns / NS
    return (
        (filter.reason is None or filter.reason in flight.reason)
        and (filter.since is None or at >= filter.since)
        and (filter.until is None or at < filter.until)
    )
