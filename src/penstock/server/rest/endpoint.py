"""A route of the native interface, as one description for both the route and the OpenAPI document.
Also pages: a limit, and the cursor of the next page."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from msgspec import UNSET, Meta, UnsetType

from penstock.broker import Verb
from penstock.server.call import Call
from penstock.server.routes import Route, decoded_path, split_url

_T = TypeVar("_T")

API = "/api/v1"
QUEUE = f"{API}/namespaces/{{namespace}}/queues/{{queue}}"


class Parameter(NamedTuple):
    """A parameter of a query string."""

    name: str
    description: str
    schema: Any = str  # a type that says what it may be
    required: bool = False


class Endpoint(NamedTuple):
    """A method of a path, with its handler and its documentation."""

    method: str
    path: str
    handler: Callable[[Call], Any]  # see `penstock.server.call`
    verb: Verb | None  # that the caller's key must allow; None: no key is needed
    answer: Any = None  # the type of the answer; None: there is none
    status: int = 200
    body: Any = None  # the type of the body; None: there is none
    body_optional: bool = False
    query: tuple[Parameter, ...] = ()
    also: tuple[int, ...] = ()  # further statuses, beside those that any route may answer
    media_type: str = ""  # of the answer; by default that of its type
    is_large: bool = False  # its answer may be: few are made at a time, and not in the loop

    @property
    def summary(self) -> str:
        """Return the first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]

    @property
    def route(self) -> Route:
        return Route(
            self.method,
            self.path,
            self.handler,
            needs_key=self.verb is not None,
            parameters=frozenset(parameter.name for parameter in self.query),
            status=200 if 200 in self.also else self.status,
            is_large=self.is_large,
        )


# -- pages -----------------------------------------------------------------------------------------

USUAL, MOST = 50, 1000

LIMIT = Parameter("limit", "How many at most.", Annotated[int, Meta(ge=1, le=MOST)])
CURSOR = Parameter("cursor", "Where to begin: the cursor of the page before.")
PAGING = (LIMIT, CURSOR)


def limit_of(call: Call) -> int:
    return call.query.whole("limit", 1, MOST) or USUAL


def listing_of(call: Call, *filters: object) -> str:
    """Return the listing that a cursor is valid for: this path, with these filters."""
    return repr((decoded_path(split_url(call.url)[0]), *filters))


def page_by_name(
    call: Call, items: Sequence[_T], name_of: Callable[[_T], str]
) -> tuple[list[_T], str | UnsetType]:
    """Return a page of items sorted by name, and the cursor of the next page."""
    listing, limit = listing_of(call), limit_of(call)
    after = call.service.cursors.read_name(listing, call.query.text("cursor"))
    rest = [item for item in items if name_of(item) > after]
    if len(rest) <= limit:
        return rest, UNSET
    page = rest[:limit]
    return page, call.service.cursors.make(listing, name_of(page[-1]))


def cursor_of(call: Call, listing: str, next_seq: int) -> str | UnsetType:
    """Return the cursor of the page that starts after a seq; none for 0."""
    return call.service.cursors.make(listing, next_seq) if next_seq else UNSET
