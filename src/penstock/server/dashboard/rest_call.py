"""The REST call that does the same as an action of the dashboard, to copy."""

import json
import shlex
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from penstock.broker import QueueName

API = "/api/v1"


class RestCall(NamedTuple):
    """One request."""

    method: str
    path: str
    body: Any = None  # JSON; None: without a body
    query: tuple[tuple[str, str], ...] = ()

    def curl(self, base: str, *, with_key: bool) -> str:
        """Return the call as a command. The key is a variable of the shell, never the key."""
        has_method = self.method not in ("GET", "POST")
        if has_method or (self.method == "POST" and self.body is None):
            parts = [f"curl -X {self.method} {shlex.quote(self.url(base))}"]
        else:
            parts = [f"curl {shlex.quote(self.url(base))}"]
        if with_key:
            parts.append('-H "Authorization: Bearer $PENSTOCK_KEY"')
        if self.body is not None:
            parts.append("-H 'Content-Type: application/json'")
            parts.append(f"-d {shlex.quote(json.dumps(self.body, ensure_ascii=False))}")
        return " \\\n  ".join(parts)

    def url(self, base: str) -> str:
        asked = f"?{urlencode(self.query)}" if self.query else ""
        return f"{base}{self.path}{asked}"


def queue_path(queue: QueueName, *rest: str) -> str:
    parts = "".join(f"/{quote(part, safe='')}" for part in rest)
    return f"{API}/namespaces/{quote(queue.namespace)}/queues/{quote(queue.name)}{parts}"


def message_path(id: str, *rest: str) -> str:
    return f"{API}/messages/" + "/".join(quote(part, safe="") for part in (id, *rest))


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
