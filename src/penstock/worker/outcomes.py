"""Outcomes that a handler can choose itself, beside returning and raising."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model import NewMessage, Payload


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """Returned by a handler: ack the message, and publish others to its queue in the same write.

    Only for handlers that get one message a call.

    >>> Done(emit=["ship order 7"]).emit
    ['ship order 7']
    """

    emit: Sequence[Payload | NewMessage] = ()


class Failed(Exception):
    """Raised by a handler: nack with this reason, and nothing else is logged.

    `delay_s` replaces the backoff. With `dead` the message becomes a dead letter at once.
    """

    def __init__(self, reason: str, *, delay_s: float | None = None, dead: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay_s = delay_s
        self.dead = dead


def error_text(error: BaseException, name: str | None = None) -> str:
    """Return the type and text of an error, also if its `__str__` raises.

    >>> error_text(ValueError("x")), error_text(KeyError())
    ('ValueError: x', 'KeyError')
    """
    try:
        text = str(error)
    except Exception as raised:
        text = f"its text cannot be read: __str__ raised {type(raised).__name__}"
    name = name or type(error).__name__
    return f"{name}: {text}" if text else name
