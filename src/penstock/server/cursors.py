"""Cursors: the position of the next page of a listing, as opaque text.

A cursor is signed together with its listing and filters, so it cannot be forged or used for another
listing. The key is in the store: a cursor is valid after a restart, and at every broker of the
store.
"""

import base64
import binascii
import hmac
from collections.abc import Callable

import msgspec

from penstock.errors import InvalidInput

_TAG_BYTES = 12
_MAX_LENGTH = 512


class Cursors:
    """Makes and reads the cursors of one server."""

    def __init__(self, key: Callable[[], bytes]) -> None:
        """`key` returns the key to sign with; it is called for each cursor."""
        self._key = key

    def make(self, listing: str, position: int | str) -> str:
        """Return the cursor of a position. `listing` identifies the listing and its filters."""
        body = msgspec.json.encode(position)
        return _base64(self._tag(listing, body) + body)

    def read_number(self, listing: str, cursor: str | None) -> int:
        """Return the position; 0, the beginning, if there is no cursor."""
        position = 0 if cursor is None else self._read(listing, cursor)
        if not isinstance(position, int):
            raise _refused()
        return position

    def read_name(self, listing: str, cursor: str | None) -> str:
        """Return the position in a listing of names; "", before all names, if there is none."""
        position = "" if cursor is None else self._read(listing, cursor)
        if not isinstance(position, str):
            raise _refused()
        return position

    def _read(self, listing: str, cursor: str) -> int | str:
        data = _bytes(cursor)
        tag, body = data[:_TAG_BYTES], data[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(listing, body)):
            raise _refused()
        return msgspec.json.decode(body, type=int | str)

    def _tag(self, listing: str, body: bytes) -> bytes:
        said = listing.encode("utf-8", "backslashreplace") + b"\0" + body
        return hmac.digest(self._key(), said, "sha256")[:_TAG_BYTES]  # by name: faster


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        if len(text) > _MAX_LENGTH:
            raise _refused()
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _refused() from None


def _refused() -> InvalidInput:
    return InvalidInput(
        "the cursor does not belong to this listing: send the cursor of the previous page, with "
        "the same filters"
    )
