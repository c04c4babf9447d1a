"""Errors as HTTP answers: the one table from an error to its status and code.

An answer is an RFC 9457 problem. `code` is stable and for programs; `detail` is for people and may
change. Dialects with their own error format take status and text from here as well.
"""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from penstock import errors
from penstock.errors import PenstockError

PROBLEM_JSON = "application/problem+json"
RETRY_LATER_S = 1.0  # if the error has no time of its own


# -- refused by the server itself, before the broker is called -------------------------------------


class Refused(PenstockError):
    """A request is not valid HTTP, or not valid for this server."""


class NoSuchRoute(Refused):
    """There is nothing at that path."""


class MethodNotAllowed(Refused):
    """The path exists, but not with this method; `allowed` lists its methods."""

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class RequestTooSlow(Refused):
    """The headers or the body took longer to arrive than the limit."""


class BodyTooLarge(Refused):
    """The body is larger than the limit."""


class UrlTooLong(Refused):
    """The URL is longer than the limit."""


class HeadersTooLarge(Refused):
    """There are more headers than the limit, or they are larger."""


class BodyCompressed(Refused):
    """The body is compressed, which is not supported."""


class NotJson(Refused):
    """The route requires JSON, and the content type is another one."""


class OriginRefused(Refused):
    """A page of another site requests a change, and its origin is not configured."""


# -- the table -------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """The HTTP answer of one class of errors."""

    status: int
    code: str
    retry: bool = False  # the same call may succeed later: the answer says when


KINDS: Mapping[type[PenstockError], Kind] = {
    # the request
    errors.InvalidInput: Kind(400, "invalid_input"),
    errors.TooLarge: Kind(400, "too_large"),
    errors.PayloadTooLarge: Kind(413, "payload_too_large"),
    errors.AddressRefused: Kind(400, "address_refused"),
    Refused: Kind(400, "bad_request"),
    NoSuchRoute: Kind(404, "no_such_route"),
    MethodNotAllowed: Kind(405, "method_not_allowed"),
    RequestTooSlow: Kind(408, "request_too_slow"),
    BodyTooLarge: Kind(413, "body_too_large"),
    UrlTooLong: Kind(414, "url_too_long"),
    BodyCompressed: Kind(415, "body_compressed"),
    NotJson: Kind(415, "not_json"),
    HeadersTooLarge: Kind(431, "headers_too_large"),
    # the caller
    errors.KeyRefused: Kind(401, "key_refused"),
    errors.NotAllowed: Kind(403, "not_allowed"),
    OriginRefused: Kind(403, "origin_refused"),
    # existence and state
    errors.NoSuchNamespace: Kind(404, "no_such_namespace"),
    errors.NoSuchQueue: Kind(404, "no_such_queue"),
    errors.NoSuchGroup: Kind(404, "no_such_group"),
    errors.NoSuchSchedule: Kind(404, "no_such_schedule"),
    errors.NoSuchMessage: Kind(404, "no_such_message"),
    errors.NoSuchSegment: Kind(404, "no_such_segment"),
    errors.NoSuchRedrive: Kind(404, "no_such_redrive"),
    errors.NoSuchWebhook: Kind(404, "no_such_webhook"),
    errors.NoSuchDelivery: Kind(404, "no_such_delivery"),
    errors.EntryGone: Kind(404, "no_such_message"),
    errors.AlreadyExists: Kind(409, "already_exists"),
    errors.NotEmpty: Kind(409, "not_empty"),
    errors.ReceiptInvalid: Kind(410, "receipt_invalid"),
    # limits
    errors.QueueFull: Kind(429, "queue_full", retry=True),
    errors.RateLimited: Kind(429, "rate_limited", retry=True),
    errors.TooManyRequests: Kind(429, "too_many_requests", retry=True),
    errors.QuotaExceeded: Kind(429, "quota_exceeded", retry=True),
    # the server
    errors.PayloadUnreadable: Kind(500, "payload_unreadable"),
    errors.NotSupported: Kind(501, "not_supported"),
    errors.Unavailable: Kind(503, "unavailable", retry=True),
    errors.Overloaded: Kind(503, "overloaded", retry=True),
    errors.LedgerError: Kind(503, "storage_unavailable", retry=True),
    errors.LedgerStopped: Kind(503, "storage_stopped", retry=True),
    errors.ReadOnly: Kind(503, "read_only", retry=True),
    errors.CorruptLedger: Kind(503, "storage_damaged", retry=True),
    errors.BadEntry: Kind(503, "storage_damaged", retry=True),
    errors.DiskFull: Kind(507, "disk_full", retry=True),
    PenstockError: Kind(500, "internal"),
}
CODES = frozenset(kind.code for kind in KINDS.values())


class Problem(NamedTuple):
    """An error, ready to be sent."""

    status: int
    code: str
    detail: str
    headers: Mapping[str, str]
    more: Mapping[str, Any]  # members beside the standard ones
    is_plain: bool = False  # as `{"error": text}`, see `dialects`

    @property
    def content_type(self) -> str:
        return "application/json" if self.is_plain else PROBLEM_JSON

    def body(self, request_id: str = "") -> bytes:
        if self.is_plain:
            return msgspec.json.encode({"error": self.detail})
        members: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if request_id:
            members["request_id"] = request_id
        return msgspec.json.encode(members | dict(self.more))


def kind_of(error: BaseException) -> Kind:
    """Return the table's entry for an error, or for its nearest base class."""
    for base in type(error).__mro__:
        kind = KINDS.get(base)
        if kind is not None:
            return kind
    return KINDS[PenstockError]


def problem_of(error: BaseException, **more: Any) -> Problem:
    """Return the answer to an error. The text of an unexpected one is only logged: it may be
    secret."""
    kind = kind_of(error)
    headers: dict[str, str] = {}
    if kind.retry:
        after_s = getattr(error, "retry_after_s", RETRY_LATER_S)
        headers["retry-after"] = str(max(1, math.ceil(after_s)))  # whole seconds only
        more["retry_after_s"] = after_s
    if kind.status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allowed
    if isinstance(error, PenstockError):
        detail = str(error) or type(error).__doc__ or ""
    else:
        detail = "something went wrong inside the server: its log says what, under the request_id"
    return Problem(kind.status, kind.code, detail, headers, more)


# -- dialects: errors at their paths have their format ---------------------------------------------

_FIRST_PARTS = frozenset(
    {b"v1", b"namespaces", b"messages", b"subscriptions", b"health", b"healthz"}
)


def is_dialect_path(url: bytes) -> bool:
    """Return whether a URL is a path of RivetQ or EpochQueue, or below one."""
    parts = url.partition(b"?")[0].split(b"/", 3)
    return parts[1:3] == [b"api", b"stats"] or (len(parts) > 1 and parts[1] in _FIRST_PARTS)


def in_format_of(url: bytes, problem: Problem) -> Problem:
    """Return the problem in the format that clients of this URL expect."""
    return problem._replace(is_plain=True) if is_dialect_path(url) else problem
