"""Gates: messages of several queues that run all together, or not at all.

Queues cannot be written in one step. So a publisher first publishes a gate, a message that is not
delivered. Then it publishes the others, each `after` the gate, in as many writes as it takes. At
last it opens the gate, in one write. Until then, none of them runs. If the gate is cancelled or
expires, all of them are cancelled: no dead letters, whatever happened to others before them.

A publisher says it by the header `penstock-gate`, so every interface of a broker offers it:
`closed` for a gate itself, and the id of the gate for a message behind it. Workflows of tasks use
this, see `tasks/publishing.py`.
"""

from collections.abc import Mapping, Sequence

from penstock.codec import parse_id
from penstock.errors import InvalidInput
from penstock.model import NewMessage
from penstock.queue.after import id_bytes

HEADER = "penstock-gate"
CLOSED = "closed"
ABANDONED = "its gate was never opened: it was not published as a whole"


def is_gate(headers: Mapping[str, str] | None) -> bool:
    """Return whether a message with these headers is a gate."""
    return headers is not None and headers.get(HEADER) == CLOSED


def gate_of(message: NewMessage) -> bytes | None:
    """Return the id of the gate that a message is behind; None if it is behind none."""
    value = None if message.headers is None else message.headers.get(HEADER)
    return None if value is None or value == CLOSED else id_bytes(value)


def are_behind_gates(messages: Sequence[object]) -> bool:
    """Return whether all messages that come after others are behind gates."""
    return all(
        gate_of(message) is not None
        for message in messages
        if isinstance(message, NewMessage) and message.after
    )


def check_gate(headers: Mapping[str, str] | None, after: Sequence[str | int] | None) -> None:
    """Raise InvalidInput if the header is neither `closed` nor an id that `after` names."""
    value = None if headers is None else headers.get(HEADER)
    if value is None or value == CLOSED:
        return
    parse_id(value)
    if after is None or value not in after:
        raise InvalidInput(
            f"header {HEADER} is {value!r}, and after does not name that message: a message "
            f"behind a gate comes after it"
        )
