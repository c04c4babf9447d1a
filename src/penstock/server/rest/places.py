"""Places in a queue, as a body names them."""

from typing import Literal

from penstock.broker import Place
from penstock.errors import InvalidInput
from penstock.server.rest.structs import PlaceBody
from penstock.server.times import unix_seconds


def place_of(body: Literal["beginning", "end"] | PlaceBody, path: str) -> Place:
    if not isinstance(body, PlaceBody):
        return Place(to=body)
    time = None if body.time is None else unix_seconds(f"{path}.time", body.time)
    place = Place(seq=body.seq, id=body.id, time=time)
    if sum(one is not None for one in place) != 1:
        raise InvalidInput(f"a place is exactly one of seq, id and time - at `{path}`")
    return place
