"""Errors as SQS answers them: the one table from an error of Penstock to SQS's code.

A client of the JSON protocol reads the code in `__type`; older client code reads the header
`x-amzn-query-error`, which has the code of the former query protocol.
"""

from collections.abc import Mapping

import msgspec

from penstock import errors
from penstock.errors import PenstockError
from penstock.server.problems import problem_of

_SHAPES = "com.amazonaws.sqs#"
_COMMON = "com.amazon.coral.service#"
_SIMPLE = "AWS.SimpleQueueService."
# Codes whose former name is another one. The service model of SQS lists all of these errors.
_FORMER = {
    "QueueDoesNotExist": f"{_SIMPLE}NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "BatchEntryIdsNotDistinct": f"{_SIMPLE}BatchEntryIdsNotDistinct",
    "BatchRequestTooLong": f"{_SIMPLE}BatchRequestTooLong",
    "EmptyBatchRequest": f"{_SIMPLE}EmptyBatchRequest",
    "InvalidBatchEntryId": f"{_SIMPLE}InvalidBatchEntryId",
    "TooManyEntriesInBatchRequest": f"{_SIMPLE}TooManyEntriesInBatchRequest",
    "MessageNotInflight": f"{_SIMPLE}MessageNotInflight",
    "UnsupportedOperation": f"{_SIMPLE}UnsupportedOperation",
    "InvalidParameterValueException": "InvalidParameterValue",
    "MissingRequiredParameterException": "MissingParameter",
    "AccessDeniedException": "AccessDenied",
}
# Of every service of AWS, not of SQS only.
_OF_ALL_SERVICES = frozenset(
    {
        "AccessDeniedException",
        "IncompleteSignatureException",
        "InternalFailure",
        "InvalidClientTokenId",
        "InvalidParameterValueException",
        "MissingAuthenticationToken",
        "MissingRequiredParameterException",
        "RequestEntityTooLargeException",
        "SerializationException",
        "ServiceUnavailable",
        "SignatureDoesNotMatch",
        "UnknownOperationException",
    }
)


class SqsError(PenstockError):
    """An error with SQS's own code, raised by the dialect."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status

    @property
    def former_code(self) -> str:
        """Return the code of the query protocol, which entries of a batch have as well."""
        return _FORMER.get(self.code, self.code)

    @property
    def is_of_sender(self) -> bool:
        return self.status < 500

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        fault = "Sender" if self.is_of_sender else "Receiver"
        return (("x-amzn-query-error", f"{self.former_code};{fault}"),)

    def body(self) -> bytes:
        space = _COMMON if self.code in _OF_ALL_SERVICES else _SHAPES
        return msgspec.json.encode({"__type": space + self.code, "message": str(self)})


def invalid_value(name: str, value: object, reason: str) -> SqsError:
    """Return the error for a parameter whose value is not allowed."""
    return SqsError(
        "InvalidParameterValueException",
        f"Value {value} for parameter {name} is invalid. Reason: {reason}",
    )


def missing(name: str) -> SqsError:
    """Return the error for a parameter that is not given."""
    return SqsError(
        "MissingRequiredParameterException", f"The request must contain the parameter {name}."
    )


def no_such_queue() -> SqsError:
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


_CODES: Mapping[type[PenstockError], tuple[str, int]] = {
    errors.InvalidInput: ("InvalidParameterValueException", 400),
    errors.NoSuchQueue: ("QueueDoesNotExist", 400),
    errors.NoSuchNamespace: ("QueueDoesNotExist", 400),
    errors.AlreadyExists: ("QueueNameExists", 400),
    errors.ReceiptInvalid: ("ReceiptHandleIsInvalid", 400),
    errors.NoSuchRedrive: ("ResourceNotFoundException", 400),
    errors.KeyRefused: ("InvalidClientTokenId", 403),
    errors.NotAllowed: ("AccessDeniedException", 403),
    errors.QuotaExceeded: ("OverLimit", 403),
    errors.QueueFull: ("RequestThrottled", 400),
    errors.RateLimited: ("RequestThrottled", 400),
    errors.TooManyRequests: ("RequestThrottled", 400),
    errors.NotSupported: ("UnsupportedOperation", 400),
    errors.Unavailable: ("ServiceUnavailable", 503),
    errors.Overloaded: ("ServiceUnavailable", 503),
    errors.LedgerError: ("ServiceUnavailable", 503),
}


def sqs_error_of(error: BaseException) -> SqsError:
    """Return the SQS error for any error. The text of an unexpected one is only logged."""
    if isinstance(error, SqsError):
        return error
    for base in type(error).__mro__:
        if base in _CODES:
            code, status = _CODES[base]
            if base in (errors.NoSuchQueue, errors.NoSuchNamespace):
                return no_such_queue()
            return SqsError(code, str(error), status)
    problem = problem_of(error)
    if problem.status >= 500:
        return SqsError("InternalFailure", problem.detail, 500)
    return SqsError("InvalidParameterValueException", problem.detail, problem.status)
