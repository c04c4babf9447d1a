"""Pages: a limit, and a cursor to where the next one begins."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from msgspec import UNSET, Meta, UnsetType

from penstock.server.rest.endpoint import Call, Parameter

_T = TypeVar("_T")

USUAL, MOST = 50, 1000

LIMIT = Parameter("limit", "How many at most.", Annotated[int, Meta(ge=1, le=MOST)])
CURSOR = Parameter("cursor", "Where to begin: the cursor of the page before.")
PAGING = (LIMIT, CURSOR)


def limit_of(call: Call) -> int:
    return call.query.whole("limit", 1, MOST) or USUAL


def listing_of(call: Call, *filters: object) -> str:
    """What a cursor is good for: this path, with these filters."""
    return repr((call.request.scope["path"], *filters))


def page_by_name(
    call: Call, items: Sequence[_T], name_of: Callable[[_T], str]
) -> tuple[list[_T], str | UnsetType]:
    """A page of what is sorted by name, and the cursor of the next."""
    listing, limit = listing_of(call), limit_of(call)
    after = call.service.cursors.read_name(listing, call.query.text("cursor"))
    rest = [item for item in items if name_of(item) > after]
    if len(rest) <= limit:
        return rest, UNSET
    page = rest[:limit]
    return page, call.service.cursors.make(listing, name_of(page[-1]))


def cursor_of(call: Call, listing: str, next_seq: int) -> str | UnsetType:
    """The cursor of the page that begins behind a seq; 0: there is none."""
    return call.service.cursors.make(listing, next_seq) if next_seq else UNSET
