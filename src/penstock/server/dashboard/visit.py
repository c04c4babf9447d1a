"""One request to the dashboard: its caller, its place behind a proxy, its parameters."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from penstock.broker import Broker, Caller, QueueName, Verb
from penstock.broker.webhooks import Webhooks
from penstock.checking import check_whole
from penstock.errors import InvalidInput
from penstock.model import MAIN_GROUP_NAME
from penstock.names import check_name
from penstock.server.call import Call, media_type
from penstock.server.dashboard.rest_call import RestCall
from penstock.server.dashboard.session import Visitor, form_token, is_secure
from penstock.server.settings import PREFIX

HOME = "/dashboard"
FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 200
_HOST = re.compile(r"[A-Za-z0-9._~%:\[\]-]{1,255}")
_THEME = re.compile(rb"(?:^|;\s*)penstock_theme=(dark|light)(?:;|$)")
NOTICE = "done"  # the parameter with what an action did
_MOST_NOTICE = 200


class Visit:
    """A request of a visitor."""

    def __init__(self, call: Call, visitor: Visitor, fields: Mapping[str, str]) -> None:
        self.call = call
        self.session = visitor.session
        self.caller: Caller = visitor.caller
        self.fields = fields  # of the query string, or of the form; empty ones are left out
        self.prefix = prefix_of(call)
        self.now_ns = call.broker.clock.now_ns()

    @property
    def broker(self) -> Broker:
        return self.call.broker

    @property
    def webhooks(self) -> Webhooks:
        found: Webhooks = self.call.service.webhooks
        return found

    @property
    def queue(self) -> QueueName:
        return self.call.queue

    @property
    def form_token(self) -> str:
        return form_token(self.call, self.session)

    @property
    def theme(self) -> str:
        found = _THEME.search(self.call.headers.get(b"cookie", b""))
        return "" if found is None else found[1].decode()

    # -- rights ------------------------------------------------------------------------------------

    def may(self, verb: str, namespace: str | None = None) -> bool:
        """Return whether the caller may use a verb; without a namespace, for the whole broker."""
        return self.caller.may(Verb(verb), namespace)

    # -- links -------------------------------------------------------------------------------------

    def link(self, *parts: str, **query: Any) -> str:
        """Return the path of a page of the dashboard."""
        path = "".join(f"/{quote(part, safe='')}" for part in parts)
        asked = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.prefix}{HOME}{path}" + (f"?{urlencode(asked)}" if asked else "")

    def queue_link(self, queue: QueueName, *parts: str, **query: Any) -> str:
        return self.link("queues", queue.namespace, queue.name, *parts, **query)

    def here(self, **changes: Any) -> str:
        """Return the path of this page, with some parameters changed."""
        path, _, _ = self.call.url.partition(b"?")
        asked = {**self.fields, NOTICE: None, **changes}
        kept = {name: value for name, value in asked.items() if value not in (None, "")}
        return f"{self.prefix}{path.decode('latin-1')}" + (f"?{urlencode(kept)}" if kept else "")

    # -- what an action did, shown on the page that it leads to ------------------------------------

    def with_notice(self, path: str, text: str) -> str:
        """Return the path of a page that shows what was done. It is signed: no link can lie."""
        made = self.call.service.cursors.make(NOTICE, text[:_MOST_NOTICE])
        return f"{path}{'&' if '?' in path else '?'}{NOTICE}={made}"

    @property
    def notice(self) -> str:
        """Return what the action that led to this page did."""
        try:
            return self.call.service.cursors.read_name(NOTICE, self.fields.get(NOTICE))
        except InvalidInput:
            return ""

    @property
    def base(self) -> str:
        """Return the URL of this server as the browser sees it."""
        return base_of(self.call)

    def curl(self, rest: RestCall) -> str:
        return rest.curl(self.base, with_key=self.call.service.keys.required)

    # -- parameters --------------------------------------------------------------------------------

    def text(self, name: str) -> str | None:
        return self.fields.get(name)

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self.fields.get(name)
        if value is None:
            return None
        if not value.isascii() or not value.lstrip("-").isdigit() or len(value) > 20:
            raise InvalidInput(f"{name} is {value!r}; it must be a whole number")
        return check_whole(name, int(value), low, high)

    def number(self, name: str) -> float | None:
        value = self.fields.get(name)
        if value is None:
            return None
        try:
            return float(value)
        except ValueError:
            raise InvalidInput(f"{name} is {value!r}; it must be a number") from None

    def flag(self, name: str) -> bool:
        return self.fields.get(name) in ("on", "true", "1")

    def group(self) -> str:
        return check_name("group", self.fields.get("group") or MAIN_GROUP_NAME)

    def time(self, name: str) -> float | None:
        """Return a time as Unix seconds. Times of forms have no zone: they are UTC."""
        value = self.fields.get(name)
        if value is None:
            return None
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(f"{name} is {value!r}; a time is like 2030-01-31T12:00") from None
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def prefix_of(call: Call) -> str:
    """Return the path under which a proxy shows this server; empty if there is none."""
    service = call.service
    found = service.forwarded(b"x-forwarded-prefix", call.headers, call.connection.peer)
    if found is not None:
        found = found.rstrip("/")
        if PREFIX.fullmatch(found):
            return found
    return service.settings.dashboard_prefix


def base_of(call: Call) -> str:
    """Return the URL of this server as the caller used it."""
    peer = call.connection.peer
    host = call.service.forwarded(b"x-forwarded-host", call.headers, peer)
    if host is None or not _HOST.fullmatch(host):
        host = call.headers.get(b"host", b"localhost").decode("latin-1")
    return f"{'https' if is_secure(call) else 'http'}://{host}{prefix_of(call)}"


def query_fields(call: Call) -> dict[str, str]:
    """Return the parameters of a page. Empty fields of a form are left out."""
    return _fields(call.query_string)


async def form_fields(call: Call) -> dict[str, str]:
    """Return the fields of a form."""
    if media_type(call.content_type) != FORM:
        raise InvalidInput(f"a form is sent as {FORM}")
    body = call.body
    return await call.service.off_loop.run_if_large(len(body), lambda: _fields(body))


def _fields(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidInput(f"the parameters cannot be read: {error}") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if value and name in found:
            value = f"{found[name]},{value}"  # several boxes of one name
        if value:
            found[name] = value
    return found
