"""Positions in a queue, as a body names them."""

from typing import Any, Literal

from penstock.errors import InvalidInput
from penstock.server.rest.structs import PlaceBody
from penstock.server.times import unix_seconds


def position_of(body: Literal["beginning", "end"] | PlaceBody, path: str) -> dict[str, Any]:
    """Return the position that a body names, as arguments of an operation."""
    if not isinstance(body, PlaceBody):
        return {"to": body}
    time = None if body.time is None else unix_seconds(f"{path}.time", body.time)
    if sum(one is not None for one in (body.seq, body.id, time)) != 1:
        raise InvalidInput(f"a position is exactly one of seq, id and time - at `{path}`")
    return {"seq": body.seq, "id": body.id, "time": time}
