"""Request ids: one for each request, in its answer, in the log, in a problem.

A caller may send its own as X-Request-Id, so that its log and ours can be read together.
"""

import itertools
import re
import secrets

_GIVEN = re.compile(rb"[A-Za-z0-9._:-]{1,64}")


class RequestIds:
    """Gives out ids. A random beginning tells the runs of a server apart, a count the requests."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def next(self, given: bytes | None = None) -> str:
        """The id that the caller gave, where it is one; else a new one."""
        if given is not None and _GIVEN.fullmatch(given):
            return given.decode()
        return f"{self._prefix}-{next(self._numbers):x}"
