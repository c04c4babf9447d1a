"""Listings, page by page."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple

from penstock.client.call import Call, Reply, Story, T, get

ROWS = 500  # of a page


class Page(NamedTuple, Generic[T]):
    """Some rows of a listing, and how to ask for those that follow."""

    rows: list[T]
    next: "Call[Page[T]] | None"


def first_page(
    path: str, name: str, read: Callable[[Any], T], query: dict[str, Any]
) -> "Call[Page[T]]":
    """The rows are what the answer has under `name`."""

    def page(cursor: str | None) -> "Call[Page[T]]":
        def read_page(reply: Reply) -> "Page[T]":
            following = reply.data.get("cursor")
            rows = [read(item) for item in reply.data[name]]
            return Page(rows, None if following is None else page(following))

        return get(path, read_page, {**query, "limit": ROWS, "cursor": cursor})

    return page(None)


def every_row(call: "Call[Page[T]]") -> Story[list[T]]:
    """A whole listing."""
    rows: list[T] = []
    following: Call[Page[T]] | None = call
    while following is not None:
        page: Page[T] = yield following
        rows += page.rows
        following = page.next
    return rows
