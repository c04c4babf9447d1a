"""Handing out dead letters: the dead-letter queue as a queue.

A dead letter stays where it is, with its id; leasing it is a state of the same message. An ack
settles it for good; a nack, a release or the end of the lease make it dead again, at once.
"""

from penstock.checking import Duration
from penstock.model import LeasedMessage, Ticket
from penstock.queue.core import QueueCore
from penstock.queue.delivering import Delivering, check_count
from penstock.queue.events import Event, EventType, as_written
from penstock.queue.inspecting import Inspecting
from penstock.queue.messages import NO_BYTE_LIMIT, size_of
from penstock.queue.runs import as_runs
from penstock.queue.settings import MOST_ATTEMPTS


class DeadLetters:
    """Leases of dead letters."""

    def __init__(self, core: QueueCore, inspecting: Inspecting, delivering: Delivering) -> None:
        self._core = core
        self._inspecting = inspecting
        self._delivering = delivering

    def lease(
        self,
        count: int,
        lease_s: Duration | None,
        group_name: str,
        holder: str,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> list[LeasedMessage]:
        """Lease up to `count` dead letters, oldest first: at least one, and no more than fit into
        `max_bytes`."""
        core = self._core
        check_count(count)
        length_ns = self._delivering.length_ns(lease_s)
        holder = as_written("holder", holder)
        with core.lock, core.change:
            now_ns = core.tick()
            group = core.group(group_name)
            nonce = self._delivering.nonce()
            leased: list[LeasedMessage] = []
            size = 0
            by_attempt: dict[int, list[int]] = {}
            for seq, flight in group.dead.items():
                if len(leased) == count:
                    break
                letter = self._inspecting.dead_letter(seq, flight)
                if letter is None:
                    continue  # its bytes are gone; there is nothing to hand out
                size += size_of(letter.message)
                if leased and size > max_bytes:
                    break
                attempt = min(flight.attempt + 1, MOST_ATTEMPTS)
                by_attempt.setdefault(attempt, []).append(seq)
                ticket = Ticket(
                    core.identity,
                    group.number,
                    group.name,
                    attempt,
                    nonce,
                    now_ns + length_ns,
                    self._delivering.settler,
                )
                leased.append(LeasedMessage(letter.message, ticket))
            if leased:
                core.record(
                    [
                        Event(
                            EventType.DEAD_LEASED,
                            group=group.number,
                            attempt=attempt,
                            runs=tuple(as_runs(seqs)),
                            nonce=nonce,
                            deadline_ns=now_ns + length_ns,
                            length_ns=length_ns,
                            holder=holder,
                        )
                        for attempt, seqs in by_attempt.items()
                    ]
                )
            return leased
