"""Which paths are a dialect's: whatever is refused there is said in its own shape, also what is
refused before its routes are looked at (a body too large, a page of another site)."""

from penstock.server.problems import Problem

_FIRST_PARTS = frozenset(
    {b"v1", b"namespaces", b"messages", b"subscriptions", b"health", b"healthz"}
)


def is_of_a_dialect(url: bytes) -> bool:
    """Is it a path of RivetQ or EpochQueue, or below one? A query may follow."""
    parts = url.partition(b"?")[0].split(b"/", 3)
    return parts[1:3] == [b"api", b"stats"] or (len(parts) > 1 and parts[1] in _FIRST_PARTS)


def as_said_at(url: bytes, problem: Problem) -> Problem:
    """The problem in the shape that clients of this URL know."""
    return problem._replace(is_plain=True) if is_of_a_dialect(url) else problem
