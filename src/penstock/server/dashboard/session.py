"""Who looks at the dashboard: sessions, opened with an API key, and tokens against forged forms.

A session is a signed cookie with the id of a key, never the key itself. It is signed with the
secret of the store: it is valid after a restart, and at every broker of the store. It ends when its
key is revoked, or by a logout, which the store keeps. Without keys, a session belongs to anyone and
only protects the forms.
"""

import hashlib
import hmac
import re
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple

from penstock.broker import Caller
from penstock.broker.ended_sessions import SESSION_S
from penstock.errors import KeyRefused, Unavailable
from penstock.model import NS
from penstock.server.call import Call
from penstock.server.problems import Refused
from penstock.server.service import refuse_key_in_query

COOKIE = "penstock_session"
_ANYONE = "-"
_BODY = re.compile(r"([0-9a-f]{12}|-)\.([0-9]{1,12})\.([0-9a-f]{32})", re.ASCII)


class LoginNeeded(KeyRefused):
    """A page needs a session that was opened with a key."""


class FormRefused(Refused):
    """A form does not have the token of its session."""


class Session(NamedTuple):
    """What the cookie says."""

    key_id: str  # `-`: anyone
    expires_s: int
    nonce: str
    is_new: bool = False  # its cookie has to be set

    @property
    def body(self) -> str:
        return f"{self.key_id}.{self.expires_s}.{self.nonce}"

    @property
    def is_login(self) -> bool:
        return self.key_id != _ANYONE


class Visitor(NamedTuple):
    """The caller of a page, and its session."""

    caller: Caller
    session: Session


def new_session(call: Call, key_id: str = _ANYONE) -> Session:
    expires_s = call.broker.clock.now_ns() // NS + SESSION_S
    return Session(key_id, expires_s, secrets.token_hex(16), is_new=True)


def session_of(call: Call) -> Session:
    """Return the session of a request; a new one of anyone if it has none that is valid."""
    if not call.broker.is_open:
        raise Unavailable("the broker is starting or stopping: try again in a moment")
    body, _, tag = _cookie(call).rpartition(".")
    found = _BODY.fullmatch(body)
    if (
        found is None
        or not hmac.compare_digest(_tag(call, "session", body).encode(), tag.encode())
        or int(found[2]) * NS < call.broker.clock.now_ns()
    ):
        return new_session(call)
    return Session(found[1], int(found[2]), found[3])


async def visitor_of(call: Call) -> Visitor:
    """Return who asks. Raise LoginNeeded if a key is needed, or the one of the session is revoked.

    A program may send a key as with any other call; then there is no session to forge.
    """
    if call.query_string:
        refuse_key_in_query(call.query_string)
    session = session_of(call)
    service, keys = call.service, call.service.keys
    if b"authorization" in call.headers or b"x-api-key" in call.headers or not keys.required:
        caller = await service.admit(call.headers, call.query_string, call.connection.peer)
        return Visitor(caller, session)
    if not session.is_login:
        raise LoginNeeded("log in with an API key")
    if await call.broker.ended_sessions.has(session.nonce, session.expires_s):
        raise LoginNeeded("this session has ended: log in again")
    try:
        return Visitor(await keys.admit_holder(session.key_id), session)
    except KeyRefused as error:
        raise LoginNeeded(str(error)) from None


async def log_in(call: Call, token: str) -> Session:
    """Return a session of a key. Raise KeyRefused if it is wrong."""
    service = call.service
    address = service.address_of(call.headers, call.connection.peer)
    caller = await service.keys.admit(token, address)
    kind, _, key_id = caller.client.partition(":")
    return new_session(call, key_id if kind == "key" else _ANYONE)


async def log_out(call: Call, session: Session) -> None:
    """End a session at every broker: a copy of its cookie is refused."""
    if session.is_login:
        await call.broker.ended_sessions.end(session.nonce, session.expires_s)


def cookie_of(call: Call, session: Session | None, prefix: str) -> tuple[str, str]:
    """Return the header that sets the cookie of a session; None deletes it."""
    value, max_age = "", 0
    if session is not None:
        value = f"{session.body}.{_tag(call, 'session', session.body)}"
        max_age = SESSION_S
    parts = [f"{COOKIE}={value}", f"Path={prefix}/", f"Max-Age={max_age}"]
    parts += ["HttpOnly", "SameSite=Strict"]
    if is_secure(call):
        parts.append("Secure")
    return "set-cookie", "; ".join(parts)


def is_secure(call: Call) -> bool:
    """Return whether the browser uses HTTPS, here or at a trusted proxy."""
    peer = call.connection.peer
    proto = call.service.forwarded(b"x-forwarded-proto", call.headers, peer)
    return call.connection.is_tls or proto == "https"


def form_token(call: Call, session: Session) -> str:
    """Return the token that every form of this session carries."""
    return _tag(call, "form", session.nonce)


def check_form(call: Call, session: Session, given: str) -> None:
    """Raise FormRefused unless a form carries the token of its session."""
    wanted = form_token(call, session)
    if not hmac.compare_digest(wanted.encode(), given.encode("utf-8", "replace")):
        raise FormRefused("this form is too old or from another page: load the page again")


def _cookie(call: Call) -> str:
    jar = SimpleCookie()
    try:
        for name, value in call.header_list:
            if name == b"cookie":
                jar.load(value.decode("latin-1"))
    except CookieError:
        return ""
    found = jar.get(COOKIE)
    return "" if found is None else found.value


def _tag(call: Call, purpose: str, body: str) -> str:
    said = f"dashboard {purpose}\0{body}".encode()
    return hmac.digest(call.broker.secret, said, hashlib.sha256).hex()[:40]
