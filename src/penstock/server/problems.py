"""Errors as HTTP says them: the one table from an error to its status and code.

An answer is an RFC 9457 problem. `code` is stable and for programs; `detail` is for people and may
change. Dialects that have their own shape of an error take status and text from here as well.
"""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from penstock import errors
from penstock.errors import PenstockError
from penstock.server import refusals

PROBLEM_JSON = "application/problem+json"
RETRY_LATER_S = 1.0  # where nobody knows better


class Kind(NamedTuple):
    """How one class of errors is answered."""

    status: int
    code: str
    retry: bool = False  # the same call may succeed later: say when


KINDS: Mapping[type[PenstockError], Kind] = {
    # what the caller sent
    errors.InvalidInput: Kind(400, "invalid_input"),
    errors.TooLarge: Kind(400, "too_large"),
    errors.PayloadTooLarge: Kind(413, "payload_too_large"),
    errors.AddressRefused: Kind(400, "address_refused"),
    refusals.Refused: Kind(400, "bad_request"),
    refusals.NoSuchRoute: Kind(404, "no_such_route"),
    refusals.MethodNotAllowed: Kind(405, "method_not_allowed"),
    refusals.RequestTooSlow: Kind(408, "request_too_slow"),
    refusals.BodyTooLarge: Kind(413, "body_too_large"),
    refusals.UrlTooLong: Kind(414, "url_too_long"),
    refusals.BodyCompressed: Kind(415, "body_compressed"),
    refusals.NotJson: Kind(415, "not_json"),
    refusals.HeadersTooLarge: Kind(431, "headers_too_large"),
    # who the caller is
    errors.KeyRefused: Kind(401, "key_refused"),
    errors.NotAllowed: Kind(403, "not_allowed"),
    refusals.OriginRefused: Kind(403, "origin_refused"),
    # what is there
    errors.NoSuchNamespace: Kind(404, "no_such_namespace"),
    errors.NoSuchQueue: Kind(404, "no_such_queue"),
    errors.NoSuchGroup: Kind(404, "no_such_group"),
    errors.NoSuchMessage: Kind(404, "no_such_message"),
    errors.NoSuchSegment: Kind(404, "no_such_segment"),
    errors.NoSuchWebhook: Kind(404, "no_such_webhook"),
    errors.EntryGone: Kind(404, "no_such_message"),
    errors.AlreadyExists: Kind(409, "already_exists"),
    errors.NotEmpty: Kind(409, "not_empty"),
    errors.ReceiptInvalid: Kind(410, "receipt_invalid"),
    # how much there may be
    errors.QueueFull: Kind(429, "queue_full", retry=True),
    errors.RateLimited: Kind(429, "rate_limited", retry=True),
    errors.TooManyRequests: Kind(429, "too_many_requests", retry=True),
    errors.QuotaExceeded: Kind(429, "quota_exceeded", retry=True),
    # what the server can do now
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
    """The entry of the table for an error, or for the nearest of its bases."""
    for base in type(error).__mro__:
        kind = KINDS.get(base)
        if kind is not None:
            return kind
    return KINDS[PenstockError]


def problem_of(error: BaseException, **more: Any) -> Problem:
    """How an error is answered. What an unforeseen one says stays in the log: it may be secret."""
    kind = kind_of(error)
    headers: dict[str, str] = {}
    if kind.retry:
        after_s = getattr(error, "retry_after_s", RETRY_LATER_S)
        headers["retry-after"] = str(max(1, math.ceil(after_s)))  # HTTP knows whole seconds only
        more["retry_after_s"] = after_s
    if kind.status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, refusals.MethodNotAllowed):
        headers["allow"] = error.allowed
    if isinstance(error, PenstockError):
        detail = str(error) or type(error).__doc__ or ""
    else:
        detail = "something went wrong inside the server: its log says what, under the request_id"
    return Problem(kind.status, kind.code, detail, headers, more)
