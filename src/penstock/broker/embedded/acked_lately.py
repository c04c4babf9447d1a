"""Acks that an earlier process carried out shortly before it ended, from the event log.

A client whose connection broke repeats its ack. If the process that served it died in between, its
successor finds here that the receipt was good.
"""

from typing import NamedTuple

from penstock.ledger import Ledger
from penstock.model import NS
from penstock.queue.events import EventType
from penstock.queue.history import all_events

_WITHIN_NS = 120 * NS  # longer than a client retries by default
_MOST_EVENTS = 20_000  # read when a queue is opened: about 50 ms
_LEASES = (EventType.LEASED, EventType.DEAD_LEASED)


class Acked(NamedTuple):
    """The lease that an ack ended."""

    attempt: int
    nonce: int | None  # None: the lease began before the events that were read


def acked_lately(ledger: Ledger, now_ns: int) -> dict[tuple[int, int], Acked]:
    """Return the messages that were acked within the last two minutes, by group and seq.

    Reads a bounded part of the event log, and nothing of a log that did not grow lately.
    """
    events = ledger.events
    if events.last_timestamp_ns < now_ns - _WITHIN_NS:
        return {}
    nonces: dict[tuple[int, int], int] = {}
    found: dict[tuple[int, int], Acked] = {}
    for event in all_events(ledger, events.next_seq - _MOST_EVENTS):
        group = event.group
        if event.type in _LEASES:
            for seq in event.seqs:
                nonces[group, seq] = event.nonce
                found.pop((group, seq), None)
        elif event.type is EventType.ACKED and event.timestamp_ns >= now_ns - _WITHIN_NS:
            for seq in event.seqs:
                found[group, seq] = Acked(event.attempt, nonces.get((group, seq)))
        elif event.type is EventType.SOUGHT:
            # Attempts are counted anew, so that an attempt alone does not identify a lease.
            found = {key: one for key, one in found.items() if one.nonce is not None}
    return found
