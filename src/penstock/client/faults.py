"""Error answers: the one table from a problem's code to the error that is raised."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from penstock import errors
from penstock.errors import PenstockError

ERRORS: Mapping[str, type[PenstockError]] = {
    # what was sent
    "invalid_input": errors.InvalidInput,
    "bad_request": errors.InvalidInput,
    "body_compressed": errors.InvalidInput,
    "not_json": errors.InvalidInput,
    "url_too_long": errors.TooLarge,
    "headers_too_large": errors.TooLarge,
    "body_too_large": errors.TooLarge,
    "too_large": errors.TooLarge,
    "payload_too_large": errors.PayloadTooLarge,
    "address_refused": errors.AddressRefused,
    # who sent it
    "key_refused": errors.KeyRefused,
    "not_allowed": errors.NotAllowed,
    "origin_refused": errors.NotAllowed,
    # what exists
    "no_such_namespace": errors.NoSuchNamespace,
    "no_such_queue": errors.NoSuchQueue,
    "no_such_group": errors.NoSuchGroup,
    "no_such_schedule": errors.NoSuchSchedule,
    "no_such_message": errors.NoSuchMessage,
    "no_such_segment": errors.NoSuchSegment,
    "no_such_redrive": errors.NoSuchRedrive,
    "no_such_webhook": errors.NoSuchWebhook,
    "no_such_delivery": errors.NoSuchDelivery,
    "already_exists": errors.AlreadyExists,
    "not_empty": errors.NotEmpty,
    "receipt_invalid": errors.ReceiptInvalid,
    # limits
    "queue_full": errors.QueueFull,
    "rate_limited": errors.RateLimited,
    "too_many_requests": errors.TooManyRequests,
    "quota_exceeded": errors.QuotaExceeded,
    # the state of the broker
    "payload_unreadable": errors.PayloadUnreadable,
    "not_supported": errors.NotSupported,
    "unavailable": errors.Unavailable,
    "overloaded": errors.Overloaded,
    "request_too_slow": errors.Unavailable,
    "storage_unavailable": errors.LedgerError,
    "storage_stopped": errors.LedgerStopped,
    "storage_damaged": errors.CorruptLedger,
    "read_only": errors.ReadOnly,
    "disk_full": errors.DiskFull,
    # another version of the broker, or no broker at all
    "no_such_route": errors.BrokerError,
    "method_not_allowed": errors.BrokerError,
    "internal": errors.BrokerError,
}
_LATER = (errors.RateLimited, errors.TooManyRequests)
_BY_STATUS: Mapping[int, type[PenstockError]] = {  # of answers without a code: a proxy's
    401: errors.KeyRefused,
    403: errors.NotAllowed,
    408: errors.Unavailable,
    413: errors.TooLarge,
    414: errors.TooLarge,
    429: errors.TooManyRequests,
    431: errors.TooLarge,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}


def error_of(status: int, body: bytes, retry_after_s: float | None) -> PenstockError:
    """Return the error that an answer stands for."""
    problem = _problem(body)
    kind = ERRORS.get(str(problem.get("code"))) or _BY_STATUS.get(status, errors.BrokerError)
    detail = problem.get("detail")
    text = detail if isinstance(detail, str) and detail else f"the broker answered {status}"
    if issubclass(kind, _LATER):
        precise = _seconds(problem.get("retry_after_s"))
        return kind(text, (retry_after_s if precise is None else precise) or 0.0)
    return kind(text)


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header; None if it is missing, a date or infinite."""
    return _seconds(headers.get("retry-after"))


def _seconds(value: object) -> float | None:
    if not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return max(seconds, 0.0) if isfinite(seconds) else None


def _problem(body: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return problem if isinstance(problem, dict) else {}
