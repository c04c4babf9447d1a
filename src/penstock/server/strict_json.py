"""Strict decoding of JSON bodies: refuse JSON that two decoders could read differently.

msgspec refuses malformed JSON, wrong types and unknown fields. These are refused here, also inside
payloads: duplicate keys, nesting deeper than 32, numbers beyond the range of a double, lone
surrogates, bytes that are not UTF-8.

Every publish is checked, so it has to be fast. With a duplicate key, the decoded value has fewer
keys than the body has colons outside of strings. Only if those counts differ, or decoding fails,
the slow path finds the position of the problem.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    is_surely_strict: Callable[[bytes], bool] | None
else:
    try:
        from penstock.server._strict_scan import is_surely_strict
    except ImportError:  # there was no compiler
        is_surely_strict = None

_T = TypeVar("_T")

MAX_DEPTH = 32
MAX_VALUES = 600_000  # more would block other requests for too long
MAX_KEYS = 100_000  # of one message; each distinct key takes far longer than a value

_MAX_DIGITS = 309  # of a whole number in the range of a double
_LARGEST = int(sys.float_info.max)
_SAMPLE_STEP = _MAX_DIGITS // 2  # a longer number covers two samples in a row
_TWO_DIGITS = re.compile(rb"[0-9](?=[0-9])")
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
ANY_VALUE = msgspec.json.Decoder()
_raw = msgspec.json.Decoder(msgspec.Raw)
SCANNED_BYTES = 64 * 1024  # at most: a scan is not interrupted


def decode(body: bytes, decoder: "msgspec.json.Decoder[_T]") -> _T:
    """Decode a body. Raise InvalidInput with the problem and its position (`$.a[3]`)."""
    check(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidInput(_with_path(str(error))) from None


def decode_closed(body: bytes, decoder: "msgspec.json.Decoder[_T]") -> _T:
    """Decode a body whose type has no field for arbitrary JSON.

    The decoder checks all of it except duplicate keys, for which there must be two keys.
    """
    check_values(body)
    check_keys(body)
    try:
        value = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode(body, decoder)  # raises an error with the position
    if not has_one_key_at_most(body):
        check_decoded(body)
    return value


def has_one_key_at_most(body: bytes) -> bool:
    """Return True if there is at most one key; False if there may be more."""
    return body.count(b":") <= 1


def is_strict(body: bytes) -> bool:
    """Return whether `check` accepts a body."""
    if is_surely_strict is not None and len(body) <= SCANNED_BYTES and is_surely_strict(body):
        return True
    try:
        _raw.decode(body)
        check_decoded(body)
    except (InvalidInput, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def check_decoded(body: bytes) -> None:
    """Do as `check`, for a body that was decoded into another type."""
    if is_surely_strict is None or len(body) > SCANNED_BYTES or not is_surely_strict(body):
        check(body)


def check(body: bytes) -> None:
    """Raise InvalidInput unless a body is JSON that all decoders read in the same way."""
    if not body or body.isspace():
        raise InvalidInput("the body is empty; it must be JSON")
    check_values(body)
    check_keys(body)
    if _may_have_a_long_number(body):
        _raise_problem(body)
    try:
        value = ANY_VALUE.decode(body)
        if has_one_key_at_most(body) and body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
            return  # no duplicate key, and not nested too deep
        pairs = _count_pairs(value, 0)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise _too_deep() from None
    except msgspec.MsgspecError as error:
        _raise_problem(body)
        if isinstance(error, msgspec.ValidationError):
            raise InvalidInput(_with_path(str(error))) from None
        raise InvalidInput(f"the body is not JSON: {error}") from None
    # Equal counts mean no colons in strings and no duplicate keys; else count exactly.
    if pairs != body.count(b":") and pairs != _count_colons(body):
        _raise_problem(body)


def check_values(body: bytes) -> None:
    """Raise InvalidInput if a body has more values than MAX_VALUES."""
    if len(body) <= MAX_VALUES:
        return
    if _has_more_than(MAX_VALUES - 1, body, b",", b"[", b"{"):
        raise InvalidInput(
            f"the JSON has more than {MAX_VALUES} values: send less at a time, or the payload as "
            f"base64 or as a body that is not JSON"
        )


def check_keys(body: bytes) -> None:
    """Raise InvalidInput if a body has more keys than MAX_KEYS.

    A decoder makes and hashes all keys of an object in one call, during which no other thread runs:
    590,000 took 0.4 s.
    """
    if len(body) > MAX_KEYS and _has_more_than(MAX_KEYS, body, b":"):
        try:
            _raw.decode(body)  # makes no keys
        except RecursionError:
            raise _too_deep() from None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        raise InvalidInput(
            f"the JSON of one message has more than {MAX_KEYS} keys: send the payload as base64 or "
            f"as a body that is not JSON"
        )


def _may_have_a_long_number(body: bytes) -> bool:
    """Return False if no whole number is beyond the range of a double.

    The decoder would accept such a number, in time quadratic in its digits. Only every 154th byte
    is sampled, and the bytes between two samples that are digits.
    """
    if len(body) < _MAX_DIGITS:
        return False
    for digit in _TWO_DIGITS.finditer(body[::_SAMPLE_STEP]):
        at = digit.start() * _SAMPLE_STEP
        if body[at : at + _SAMPLE_STEP].isdigit():
            return True
    return False


def _has_more_than(most: int, body: bytes, *marks: bytes) -> bool:
    """Return whether there are more than `most` marks outside of strings.

    They are counted in many short calls, so that other threads can run.
    """
    if sum(map(body.count, marks)) <= most:
        return False
    count, at = 0, 0
    while True:
        quote = body.find(b'"', at)
        end = len(body) if quote < 0 else quote
        for mark in marks:
            count += body.count(mark, at, end)
        if count > most:
            return True
        if quote < 0:
            return False
        at = _end_of_string(body, quote + 1)


def _end_of_string(body: bytes, at: int) -> int:
    """Return the position after the closing quote of the string that contains `at`."""
    quote = body.find(b'"', at)
    while quote >= 0:
        escape = body.find(b"\\", at, quote)
        if escape < 0:
            return quote + 1
        at = escape + 2
        if at > quote:
            quote = body.find(b'"', at)
    return len(body)


def _with_path(text: str) -> str:
    """Return an error text of msgspec with its path, which it omits at the top level."""
    return text if " - at `" in text else f"{text} - at `$`"


def _too_deep() -> InvalidInput:
    return InvalidInput(f"the JSON is nested deeper than {MAX_DEPTH}")


def _count_pairs(value: Any, depth: int) -> int:
    """Return the total number of keys of all objects."""
    kind = type(value)
    if kind is dict:
        inner, pairs = value.values(), len(value)
    elif kind is list:
        inner, pairs = value, 0
    else:
        return 0
    if depth >= MAX_DEPTH:
        raise _too_deep()
    depth += 1
    for one in inner:
        kind = type(one)
        if kind is dict or kind is list:
            pairs += _count_pairs(one, depth)
    return pairs


def _count_colons(body: bytes) -> int:
    """Return the number of colons outside of strings: one for each key of the body."""
    if b"\\" in body:
        body = _ESCAPE.sub(b"", body)
    return b"".join(body.split(b'"')[::2]).count(b":")


# -- the slow path ---------------------------------------------------------------------------------


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, with duplicate keys."""


def _raise_problem(body: bytes) -> None:
    # Python's json, because it can return duplicate keys.
    try:
        value = json.loads(
            body, object_pairs_hook=_Pairs, parse_constant=_no_constant, parse_int=_whole
        )
    except (ValueError, RecursionError):
        return  # malformed: the caller reports it
    for path, problem in _problems(value, "$"):
        raise InvalidInput(f"{problem} - at `{path}`")


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _whole(digits: str) -> float:
    """Return the number; infinity if it is beyond the range of a double."""
    value = math.inf if len(digits) > _MAX_DIGITS + 1 else int(digits)
    return math.inf if abs(value) > _LARGEST else value


def _problems(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, _Pairs):
        seen = set()
        for key, inner in value:
            if not _is_text(key):
                yield path, "a key has a lone surrogate, which no UTF-8 can say"
            here = f"{path}.{key}"
            if key in seen:
                yield here, "the key is given twice"
            seen.add(key)
            yield from _problems(inner, here)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _problems(inner, f"{path}[{index}]")
    elif isinstance(value, str):
        if not _is_text(value):
            yield path, "the text has a lone surrogate, which no UTF-8 can say"
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, "the number is too large"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
