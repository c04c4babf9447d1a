"""Sessions that were ended before their time, so that a copy of their cookie is refused.

They are a document of the store, which all of its brokers read: when the store reports a change,
and at least every second while sessions are used. A session stays listed until it would have ended
anyway. The list is bounded: beyond its limit, the sessions that end first are dropped from it, and
all sessions that end no later are refused instead. So no ended session becomes valid again.
"""

import asyncio
import logging
from asyncio import Future

import msgspec

from penstock.broker.store import Documents, update_document
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.model import NS

log = logging.getLogger("penstock.broker")

DOCUMENT = "ended-sessions.json"
MAX_ENDED = 1000
SESSION_S = 12 * 3600
_FRESH_S = 1.0


class _Ended(msgspec.Struct, frozen=True):
    sessions: dict[str, int] = {}  # id, and when it would have ended: Unix seconds
    upto_s: int = 0  # every session that would end until then has ended


class EndedSessions:
    """The ended sessions of a store, as one of its brokers knows them."""

    def __init__(self, store: Documents, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._ended = _Ended()
        self._document: bytes | None = None
        self._read_ns: int | None = None
        self._reading: Future[None] | None = None

    def on_document(self, name: str) -> None:
        """For `Broker.on_document_changed`."""
        if name == DOCUMENT:
            self._read_ns = None

    async def end(self, id: str, expires_s: int) -> None:
        """End a session, durably. Other brokers refuse it within about a second."""

        def add(old: bytes | None) -> bytes:
            found = self._load(old)
            more = _Ended({**found.sessions, id: expires_s}, found.upto_s)
            return msgspec.json.encode(_bounded(more, self._now_s()))

        self._take(await update_document(self._store, DOCUMENT, add))

    async def has(self, id: str, expires_s: int) -> bool:
        """Return whether a session was ended."""
        if self._read_ns is None or self._clock.monotonic_ns() - self._read_ns > _FRESH_S * NS:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.ensure_future(self._read())
            await asyncio.shield(self._reading)
        return id in self._ended.sessions or expires_s <= self._ended.upto_s

    async def _read(self) -> None:
        self._read_ns = self._clock.monotonic_ns()  # a change from now on resets it
        try:
            self._take(await self._store.load_document(DOCUMENT))
        except (PenstockError, OSError) as error:
            log.error("the ended sessions could not be read again: %s", error)

    def _take(self, document: bytes | None) -> None:
        """Add what a document says to what is known: it may be older than what `end` wrote."""
        if document == self._document:
            return
        found, known = self._load(document), self._ended
        both = _Ended({**known.sessions, **found.sessions}, max(known.upto_s, found.upto_s))
        self._ended = _bounded(both, self._now_s())
        self._document = document

    def _load(self, document: bytes | None) -> _Ended:
        if document is None:
            return _Ended()
        try:
            return msgspec.json.decode(document, type=_Ended)
        except msgspec.DecodeError as error:
            log.error("%s is damaged; all sessions so far have ended: %s", DOCUMENT, error)
            return _Ended(upto_s=self._now_s() + SESSION_S)

    def _now_s(self) -> int:
        return self._clock.now_ns() // NS


def _bounded(ended: _Ended, now_s: int) -> _Ended:
    """Drop the sessions that would have ended by now, and the first ones if they are too many."""
    left = sorted((at_s, id_) for id_, at_s in ended.sessions.items() if at_s >= now_s)
    dropped, kept = left[:-MAX_ENDED], left[-MAX_ENDED:]
    upto_s = max(ended.upto_s, dropped[-1][0]) if dropped else ended.upto_s
    return _Ended({id_: at_s for at_s, id_ in kept}, upto_s)
