"""Message attributes of SQS as headers of Penstock, and the MD5 that clients verify.

An attribute of type String is the header of the same name, so every interface sees it. One of
another type is a header too, with binary values in base64; the header `AWS.types` keeps the types.
SQS forbids attributes whose names begin with `AWS.`, so the names of such headers are free.
"""

import hashlib
import re
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from penstock.server.sqs.errors import SqsError, invalid_value

MAX_ATTRIBUTES = 10
TYPES_HEADER = "AWS.types"
TRACE_HEADER = "AWS.trace"
GROUP_HEADER = "AWS.group"  # of a message in a standard queue; in a FIFO queue it is the key
DEDUP_HEADER = "AWS.dedup"
TRACE_ATTRIBUTE = "AWSTraceHeader"
_OWN = frozenset({TYPES_HEADER, TRACE_HEADER, GROUP_HEADER, DEDUP_HEADER})
# Added to a dead letter when it is read; they are no part of the message that was sent.
_OF_DEAD_LETTERS = frozenset(
    {"dlq.original_msg_id", "dlq.retry_count", "dlq.failure_reason", "dlq.last_failure"}
)
_NAME = re.compile(r"(?!\.)(?!.*\.\.)(?!.*\.$)[A-Za-z0-9_.-]{1,256}", re.ASCII)
_RESERVED = re.compile(r"(aws|amazon)\.", re.IGNORECASE)
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_LENGTH = struct.Struct(">I")
_types = msgspec.json.Decoder(dict[str, str])


class Attribute(Struct, omit_defaults=True):
    """The value of an attribute. Binary values are base64, as in the JSON of a request."""

    DataType: str
    StringValue: str | None = None
    BinaryValue: str | None = None
    StringListValues: list[str] | None = None
    BinaryListValues: list[str] | None = None

    @property
    def is_binary(self) -> bool:
        return self.DataType.startswith("Binary")

    def value(self) -> bytes:
        if self.is_binary:
            return a2b_base64(self.BinaryValue or "", strict_mode=True)
        return (self.StringValue or "").encode()


Attributes = Mapping[str, Attribute]


# -- checking --------------------------------------------------------------------------------------


def check_attributes(attributes: Attributes) -> int:
    """Raise an error of SQS for what it does not allow. Return the size in bytes."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise _invalid(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum "
            f"[{MAX_ATTRIBUTES}]."
        )
    return sum([_check(name, one) for name, one in attributes.items()])


def _check(name: str, one: Attribute) -> int:
    if not _NAME.fullmatch(name) or _RESERVED.match(name):
        raise _invalid(
            f"The message attribute name {name!r} is invalid: 1 to 256 of A-Z, a-z, 0-9, _, - and "
            f"., without AWS. or Amazon. at its start."
        )
    if len(one.DataType) > 256 or not _TYPE.fullmatch(one.DataType):
        raise _invalid(
            f"The message attribute {name!r} has an invalid message attribute type, the set of "
            f"supported type prefixes is Binary, Number, and String."
        )
    if one.StringListValues or one.BinaryListValues:
        raise SqsError(
            "UnsupportedOperation",
            "Message attribute list values in SendMessage are not supported.",
        )
    try:
        value = one.value()
    except ValueError:
        raise SqsError(
            "SerializationException", f"The binary value of {name!r} is not base64."
        ) from None
    if not value:
        kind = "binary" if one.is_binary else "string"
        raise _invalid(
            f"The message attribute {name!r} must contain a non-empty {kind} value for message "
            f"attribute type {one.DataType!r}."
        )
    if one.DataType.startswith("Number") and not _NUMBER.fullmatch(one.StringValue or ""):
        raise _invalid(f"Can't cast the value of message attribute {name!r} to a number.")
    return len(name) + len(one.DataType.encode()) + len(value)


def _invalid(message: str) -> SqsError:
    return SqsError("InvalidParameterValueException", message)


def check_system_attributes(attributes: Attributes) -> str | None:
    """Return the trace header, the only attribute that SQS allows here; None without one."""
    for name in attributes:
        if name != TRACE_ATTRIBUTE:
            raise invalid_value("MessageSystemAttributeName", name, "Unknown system attribute.")
    trace = attributes.get(TRACE_ATTRIBUTE)
    if trace is None:
        return None
    if trace.DataType != "String" or not trace.StringValue:
        raise _invalid(f"{TRACE_ATTRIBUTE} must be a non-empty value of type String.")
    return trace.StringValue


# -- headers ---------------------------------------------------------------------------------------


def headers_of(attributes: Attributes) -> dict[str, str]:
    """Return the headers that keep attributes, which have been checked."""
    headers = {
        name: (one.BinaryValue if one.is_binary else one.StringValue) or ""
        for name, one in attributes.items()
    }
    types = {name: one.DataType for name, one in attributes.items() if one.DataType != "String"}
    if types:
        headers[TYPES_HEADER] = msgspec.json.encode(types).decode()
    return headers


def attributes_of(headers: Mapping[str, str], wanted: Iterable[str]) -> dict[str, Attribute]:
    """Return the attributes with the wanted names; `All` and `prefix.*` stand for several."""
    exact, prefixes = set(), []
    for name in wanted:
        if name in ("All", ".*"):
            prefixes.append("")
        elif name.endswith(".*"):
            prefixes.append(name[:-2])
        else:
            exact.add(name)
    if not headers or not (exact or prefixes):
        return {}
    types = _types_in(headers)
    return {
        name: _attribute(types.get(name, "String"), headers[name])
        for name in sorted(headers)
        if name not in _OWN
        and name not in _OF_DEAD_LETTERS
        and (name in exact or any(name.startswith(prefix) for prefix in prefixes))
    }


def _types_in(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the types. Another interface may have written anything into the header."""
    try:
        return _types.decode(headers.get(TYPES_HEADER) or "{}")
    except msgspec.MsgspecError:
        return {}


def _attribute(kind: str, value: str) -> Attribute:
    if kind.startswith("Binary"):
        try:
            a2b_base64(value, strict_mode=True)
        except ValueError:  # changed by another interface
            value = b2a_base64(value.encode(), newline=False).decode()
        return Attribute(kind, BinaryValue=value)
    return Attribute(kind, StringValue=value)


# -- MD5 -------------------------------------------------------------------------------------------


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def md5_of(attributes: Attributes) -> str:
    """Return the MD5 of attributes, as clients compute it from what they sent or received."""
    whole = bytearray()
    for name, one in sorted(attributes.items()):
        value = one.value()
        for part in (name.encode(), one.DataType.encode()):
            whole += _LENGTH.pack(len(part)) + part
        whole += b"\2" if one.is_binary else b"\1"
        whole += _LENGTH.pack(len(value)) + value
    return md5(bytes(whole))
