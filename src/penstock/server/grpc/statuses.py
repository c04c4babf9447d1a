"""Errors as gRPC statuses: the one table from the code of a problem to a status.

The trailing metadata of a failed call has `penstock-code`, which is stable and for programs, and
`grpc-status-details-bin`, a google.rpc.Status. If the same call may succeed later, the details say
when (google.rpc.RetryInfo), and so does `grpc-retry-pushback-ms`, which clients with a retry policy
obey.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from penstock.server.problems import problem_of

DOMAIN = "penstock"
CODE_KEY = "penstock-code"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
_LONGEST_DETAIL = 1024  # characters; clients limit metadata to 8 KiB

STATUSES: Mapping[str, StatusCode] = {
    # the request
    "invalid_input": StatusCode.INVALID_ARGUMENT,
    "too_large": StatusCode.INVALID_ARGUMENT,
    "payload_too_large": StatusCode.INVALID_ARGUMENT,
    "address_refused": StatusCode.INVALID_ARGUMENT,
    "bad_request": StatusCode.INVALID_ARGUMENT,
    "no_such_route": StatusCode.UNIMPLEMENTED,
    "request_too_slow": StatusCode.DEADLINE_EXCEEDED,
    # the caller
    "key_refused": StatusCode.UNAUTHENTICATED,
    "not_allowed": StatusCode.PERMISSION_DENIED,
    # existence and state
    "no_such_namespace": StatusCode.NOT_FOUND,
    "no_such_queue": StatusCode.NOT_FOUND,
    "no_such_group": StatusCode.NOT_FOUND,
    "no_such_schedule": StatusCode.NOT_FOUND,
    "no_such_message": StatusCode.NOT_FOUND,
    "no_such_segment": StatusCode.NOT_FOUND,
    "no_such_redrive": StatusCode.NOT_FOUND,
    "no_such_webhook": StatusCode.NOT_FOUND,
    "no_such_delivery": StatusCode.NOT_FOUND,
    "already_exists": StatusCode.ALREADY_EXISTS,
    "not_empty": StatusCode.FAILED_PRECONDITION,
    "receipt_invalid": StatusCode.FAILED_PRECONDITION,
    # limits
    "queue_full": StatusCode.RESOURCE_EXHAUSTED,
    "rate_limited": StatusCode.RESOURCE_EXHAUSTED,
    "too_many_requests": StatusCode.RESOURCE_EXHAUSTED,
    "quota_exceeded": StatusCode.RESOURCE_EXHAUSTED,
    "disk_full": StatusCode.RESOURCE_EXHAUSTED,
    # the server
    "payload_unreadable": StatusCode.DATA_LOSS,
    "not_supported": StatusCode.UNIMPLEMENTED,
    "unavailable": StatusCode.UNAVAILABLE,
    "overloaded": StatusCode.UNAVAILABLE,
    "storage_unavailable": StatusCode.UNAVAILABLE,
    "storage_stopped": StatusCode.UNAVAILABLE,
    "storage_damaged": StatusCode.UNAVAILABLE,
    "read_only": StatusCode.UNAVAILABLE,
    "internal": StatusCode.INTERNAL,
}
# Codes of errors in the form of HTTP requests.
ONLY_HTTP = frozenset(
    {
        "method_not_allowed",
        "body_too_large",
        "url_too_long",
        "body_compressed",
        "not_json",
        "headers_too_large",
        "origin_refused",
    }
)


class Refusal(NamedTuple):
    """An error, ready to be sent."""

    status: StatusCode
    detail: str
    trailers: tuple[tuple[str, Any], ...]


def refusal_of(error: BaseException) -> Refusal:
    """Return the answer to an error. The text of an unexpected one is only logged."""
    problem = problem_of(error)
    status = STATUSES[problem.code]
    detail = problem.detail.encode(errors="replace").decode()[:_LONGEST_DETAIL]
    details = [_any(ErrorInfo(reason=problem.code, domain=DOMAIN))]
    trailers: list[tuple[str, Any]] = [(CODE_KEY, problem.code)]
    after_s = problem.more.get("retry_after_s")
    if after_s is not None:
        retry = RetryInfo()
        retry.retry_delay.FromNanoseconds(round(after_s * 1e9))
        details.append(_any(retry))
        trailers.append((PUSHBACK_KEY, str(max(1, round(after_s * 1000)))))
    rich = Status(code=status.value[0], message=detail, details=details)
    trailers.append((DETAILS_KEY, rich.SerializeToString()))
    return Refusal(status, detail, tuple(trailers))


def _any(message: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
