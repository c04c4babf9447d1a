# cython: annotation_typing=False
"""Drafts of the usual messages, checked in few steps.

`drafting.check` calls a function for each option and takes about 10 µs. Here the usual types are
recognised in line, which the compiled module does in a fraction of a microsecond. Everything else
is left to `drafting`: unusual types, values to refuse, and compression.
"""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.checking import unix_ns
from penstock.codec import Draft
from penstock.codec.layout import DATA, MAX_PRIORITY
from penstock.model import NS, NewMessage
from penstock.queue.attributes import CONTENT_TYPE, MAX_ATTEMPTS, TENANT
from penstock.queue.dedup import OWN_PREFIX, dedup_attributes
from penstock.queue.drafting import (
    MAX_CONTENT_TYPE_BYTES,
    MAX_DEDUP_ID_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_TENANT_BYTES,
)
from penstock.queue.gate import HEADER as GATE_HEADER
from penstock.queue.settings import (
    MIN_DEDUP_WINDOW_S,
    MOST_ATTEMPTS,
    YEARS_S,
    QueueSettings,
)
from penstock.queue.unique import HEADER

_new_tuple = tuple.__new__
_MOST_KNOWN = 1024  # header names and attributes that are remembered


class QuickDrafts:
    """Makes drafts for a queue with these settings."""

    def __init__(self, settings: QueueSettings, now_ns: Callable[[], int]) -> None:
        self._max_bytes = settings.max_payload_bytes if settings.compression == "none" else -1
        self._default_priority = settings.default_priority
        self._default_ttl_s = settings.default_ttl_s or None
        self._dedup_window_s = settings.dedup_window_s
        self._now_ns = now_ns
        self._names: set[str] = set()  # of headers that are valid
        self._attributes: dict[tuple[str | None, int | None, str | None], dict[int, bytes]] = {}

    def of_options(self, payload: object, options: Mapping[str, Any]) -> Draft | None:
        """Return the draft of a payload and the options of `enqueue`; None: use `drafting`."""
        priority = delay = deliver_at = ttl = headers = key = max_attempts = content_type = None
        dedup_id = window_s = tenant = None
        for name, value in options.items():
            if name == "priority":
                priority = value
            elif name == "headers":
                headers = value
            elif name == "key":
                key = value
            elif name == "ttl":
                ttl = value
            elif name == "delay":
                delay = value
            elif name == "max_attempts":
                max_attempts = value
            elif name == "content_type":
                content_type = value
            elif name == "deliver_at":
                deliver_at = value
            elif name == "tenant":
                tenant = value
            elif name == "dedup_id":
                dedup_id = value
            elif name == "dedup_window_s":
                window_s = value
            else:
                return None
        if window_s is not None and dedup_id is None:
            return None
        draft = self._draft(
            payload,
            priority,
            delay,
            deliver_at,
            ttl,
            headers,
            key,
            max_attempts,
            content_type,
            tenant,
        )
        if dedup_id is not None and draft is not None:
            return self._with_dedup_id(draft, dedup_id, window_s)
        return draft

    def of_message(self, message: NewMessage) -> Draft | None:
        """Return the draft of a message; None: use `drafting`."""
        if (
            message.compression is not None
            or message.after is not None
            or message.after_failed is not None
        ):
            return None
        draft = self._draft(
            message.payload,
            message.priority,
            message.delay,
            message.deliver_at,
            message.ttl,
            message.headers,
            message.key,
            message.max_attempts,
            message.content_type,
            message.tenant,
        )
        if message.dedup_id is not None and draft is not None:
            return self._with_dedup_id(draft, message.dedup_id, message.dedup_window_s)
        return draft

    def _with_dedup_id(self, draft: Draft, dedup_id: Any, window_s: Any) -> Draft | None:
        if (
            type(dedup_id) is not str
            or not dedup_id.isascii()
            or len(dedup_id) > MAX_DEDUP_ID_BYTES
            or dedup_id.startswith(OWN_PREFIX)  # it may be refused: `Publishing.prepare`
        ):
            return None
        if window_s is None:
            window_s = self._dedup_window_s
        elif not _is_seconds(window_s) or window_s < MIN_DEDUP_WINDOW_S:
            return None
        until_ns = self._now_ns() + round(window_s * NS)
        attributes = dedup_attributes(dedup_id, until_ns)
        if draft.attributes is not None:
            attributes.update(draft.attributes)
        return _new_tuple(Draft, (*draft[:7], attributes, 0))

    def _draft(
        self,
        payload: Any,
        priority: Any,
        delay: Any,
        deliver_at: Any,
        ttl: Any,
        headers: Any,
        key: Any,
        max_attempts: Any,
        content_type: Any,
        tenant: Any,
    ) -> Draft | None:
        if type(payload) is not bytes or len(payload) > self._max_bytes:
            return None
        if priority is None:
            priority = self._default_priority
        elif type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
            return None
        if key is not None:
            if type(key) is not str:
                return None
            key = _encoded(key)
            if key is None or len(key) > MAX_KEY_BYTES:
                return None
        if headers is not None:
            headers = self._checked_headers(headers)
            if headers is None:
                return None
            if not headers:
                headers = None
        attributes = None
        if max_attempts is not None or content_type is not None or tenant is not None:
            attributes = self._checked_attributes(content_type, max_attempts, tenant)
            if attributes is None:
                return None
        deliver_at_ns = expires_at_ns = 0
        if ttl is None:
            ttl = self._default_ttl_s
        if delay is not None or deliver_at is not None or ttl is not None:
            now_ns = self._now_ns()
            if delay is not None:
                if deliver_at is not None or not _is_seconds(delay):
                    return None
                delay_ns = delay * NS if type(delay) is int else round(delay * NS)
                deliver_at_ns = now_ns + delay_ns if delay_ns else 0
            elif deliver_at is not None:
                if type(deliver_at) is not float and type(deliver_at) is not int:
                    return None
                if not 0 <= deliver_at <= now_ns / NS + YEARS_S:
                    return None
                deliver_at_ns = unix_ns(deliver_at)
            if ttl is not None:
                if not _is_seconds(ttl):
                    return None
                ttl_ns = ttl * NS if type(ttl) is int else round(ttl * NS)
                expires_at_ns = (deliver_at_ns if deliver_at_ns > now_ns else now_ns) + ttl_ns
        return _new_tuple(
            Draft,
            (
                payload,
                DATA,
                priority,
                expires_at_ns,
                deliver_at_ns,
                key,
                headers,
                attributes,
                0,
            ),
        )

    def _checked_headers(self, headers: Any) -> "dict[str, str] | None":
        """Return a copy of headers; None if they are unusual or invalid."""
        if type(headers) is not dict or len(headers) > MAX_HEADERS:
            return None
        headers = headers.copy()
        if HEADER in headers or GATE_HEADER in headers:
            return None  # a unique message, or a gate
        total = 0
        for name, value in headers.items():
            if type(name) is not str or type(value) is not str:
                return None
            if not value.isascii() or not name.isascii():
                return None
            total += len(name) + len(value)
            if name not in self._names:
                if not name or "\r" in name or "\n" in name or "\0" in name:
                    return None
                if len(self._names) < _MOST_KNOWN and len(name) < _MOST_KNOWN:
                    self._names.add(name)
        return headers if total <= MAX_HEADERS_BYTES else None

    def _checked_attributes(
        self, content_type: Any, max_attempts: Any, tenant: Any
    ) -> "dict[int, bytes] | None":
        """Return attributes, shared by all messages that have the same; None if unusual."""
        if content_type is not None and type(content_type) is not str:
            return None
        if max_attempts is not None and type(max_attempts) is not int:
            return None
        if tenant is not None and type(tenant) is not str:
            return None
        found = self._attributes.get((content_type, max_attempts, tenant))
        if found is not None:
            return found
        made = {}
        if max_attempts is not None:
            if not 1 <= max_attempts <= MOST_ATTEMPTS:
                return None
            made[MAX_ATTEMPTS] = max_attempts.to_bytes(4, "little")
        if content_type is not None:
            encoded = _encoded(content_type)
            if encoded is None or len(encoded) > MAX_CONTENT_TYPE_BYTES:
                return None
            made[CONTENT_TYPE] = encoded
        if tenant is not None:
            encoded = _encoded(tenant)
            if encoded is None or not 0 < len(encoded) <= MAX_TENANT_BYTES:
                return None
            made[TENANT] = encoded
        if len(self._attributes) < _MOST_KNOWN:
            self._attributes[content_type, max_attempts, tenant] = made
        return made


def _encoded(text: str) -> bytes | None:
    """Return text as UTF-8; None if it is not valid."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _is_seconds(value: Any) -> bool:
    return (type(value) is float or type(value) is int) and 0 <= value <= YEARS_S
