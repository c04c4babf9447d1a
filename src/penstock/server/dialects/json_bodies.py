"""Decode JSON bodies into structs by the rules of the original servers of the dialects.

Field names match in any case. Of a repeated field the last one counts. A field that is null counts
as missing. A `Raw` field keeps its bytes as sent: numbers of any size, up to 10,000 levels deep.
"""

import json
import re
from collections.abc import Mapping
from typing import Generic, TypeVar, get_origin

import msgspec
from msgspec import Raw, Struct

from penstock.errors import InvalidInput
from penstock.server.strict_json import check_values

_T = TypeVar("_T", bound=Struct)

MAX_DEPTH = 10_000
# Of one object, repeated ones included. A field that is not read costs memory and time too.
MAX_FIELDS = 10_000
_USUAL_BYTES = 64 * 1024  # smaller than any limit below
MAX_MAPPING_BYTES = 1 << 20  # of headers or metadata; what fits into a message needs less

_object = msgspec.json.Decoder(dict[str, Raw])
_array = msgspec.json.Decoder(list[Raw])
_raw = msgspec.json.Decoder(Raw)


class Shape(Generic[_T]):
    """The fields that a body may have.

    A field that is not among them is passed over; it is refused if the shape is `closed`, or if the
    `principal` field is missing: that one was misspelt, perhaps. A struct that forbids unknown
    fields is read faster where a body has none.
    """

    def __init__(self, kind: type[_T], *, closed: bool = False, principal: str = "") -> None:
        self._kind = kind
        self._closed = closed
        self._principal = principal
        fields = msgspec.structs.fields(kind)
        self._fields = {one.encode_name.casefold(): one.name for one in fields}
        self._decoders = {
            one.name: None if one.type is Raw else msgspec.json.Decoder(one.type) for one in fields
        }
        self._mappings = [one.name for one in fields if get_origin(one.type) is dict]
        self._required = [one.name for one in fields if one.required]
        # Reads a body of the usual form in one call: names as they are written here, no null.
        is_strict = kind.__struct_config__.forbid_unknown_fields
        self._usual = msgspec.json.Decoder(kind) if is_strict else None
        # Skips unknown fields without making an object of each.
        self._known = msgspec.json.Decoder(
            msgspec.defstruct("Known", [(one.encode_name, Raw, Raw()) for one in fields])
        )

    def read(self, body: bytes, path: str = "$") -> _T:
        """Decode an object. Raise InvalidInput with the problem and its path."""
        if self._usual is not None and len(body) <= _USUAL_BYTES:
            try:
                if not body.isascii():
                    body.decode()  # raises if it is not UTF-8: a decoder does not look at all of it
                return self._usual.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # it has another form, or is wrong
        values: dict[str, object] = {}
        unknown = ""
        for key, raw in self._members(body).items():
            name = self._fields.get(key.casefold())
            if name is None:
                unknown = unknown or key
            elif bytes(raw).strip() != b"null":
                values[name] = self._value(name, raw, path)
        is_told = not self._principal or self._principal in values
        if unknown and (self._closed or not is_told):
            raise InvalidInput(
                f"there is no field {unknown!r}; the fields are {', '.join(self._decoders)} - "
                f"at `{path}`"
            )
        for name in self._required:
            if name not in values:
                raise InvalidInput(f"the field {name!r} is missing - at `{path}`")
        return self._kind(**values)

    def read_array(self, body: bytes) -> list[_T]:
        """Decode an array of such objects."""
        check_values(body)
        try:
            items = _array.decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidInput(f"the body is not a JSON array: {error} - at `$`") from None
        return [self.read(bytes(one), f"$[{index}]") for index, one in enumerate(items)]

    def _members(self, body: bytes) -> Mapping[str, Raw | bytes]:
        """Return the members of an object, at most MAX_FIELDS of them."""
        if self._may_have_too_many(body):
            _check_text(body)
            return _scan(body, MAX_DEPTH + 1)  # counts them
        return _members(body)

    def _may_have_too_many(self, body: bytes) -> bool:
        """Return False if there cannot be more than MAX_FIELDS. Each field has a colon."""
        colons = body.count(b":")
        if colons <= MAX_FIELDS:
            return False
        try:
            known = self._known.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return True
        inside = sum(bytes(raw).count(b":") for raw in msgspec.structs.astuple(known))
        return colons - inside > MAX_FIELDS

    def _value(self, name: str, raw: Raw | bytes, path: str) -> object:
        decoder = self._decoders[name]
        if decoder is None:
            return Raw(raw)
        if name in self._mappings and len(bytes(raw)) > MAX_MAPPING_BYTES:
            raise InvalidInput(
                f"it has {len(bytes(raw))} bytes; the maximum is {MAX_MAPPING_BYTES} - "
                f"at `{path}.{name}`"
            )
        try:
            return decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            said = re.sub(r" - at `\$?(.*)`", "", str(error))
            if "truncated" in said:  # no value ends too early here, so it is this
                said = "half of a surrogate pair is not a character"
            raise InvalidInput(f"{said} - at `{path}.{name}`") from None


def is_json(data: bytes) -> bool:
    """Return whether this is one JSON value in UTF-8, at most MAX_DEPTH levels deep."""
    try:
        _raw.decode(data)
        data.decode()
        return True
    except (UnicodeDecodeError, msgspec.MsgspecError):
        if b"\\u" not in data:  # the decoder refuses half a surrogate pair; JSON does not
            return False
    except RecursionError:
        pass
    try:
        data.decode()
        _scan(data, MAX_DEPTH)
    except (UnicodeDecodeError, InvalidInput):
        return False
    return True


def _members(body: bytes) -> Mapping[str, Raw | bytes]:
    """Return the members of an object as bytes. Of a repeated key, the last one counts.

    Keys that differ only in case are in the order of their last occurrence.
    """
    _check_text(body)
    try:
        found = _object.decode(body)
        is_plain = len({key.casefold() for key in found}) == len(found)
        return found if is_plain else _scan(body, MAX_DEPTH + 1)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{error} - at `$`") from None
    except (msgspec.MsgspecError, RecursionError):
        return _scan(body, MAX_DEPTH + 1)  # says what is wrong, if something is


def _check_text(body: bytes) -> None:
    if not body or body.isspace():
        raise InvalidInput("the body is empty; it must be JSON")
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: {error.reason}") from None


# -- deep nesting ----------------------------------------------------------------------------------

_TOKEN = re.compile(
    rb"""[ \t\r\n]*+(?:
        (?P<mark>[\[\]{}:,])
      | (?P<string>"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+")
      | (?P<other>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null)
    )[ \t\r\n]*+""",
    re.VERBOSE,
)
_CLOSES = {b"{": b"}", b"[": b"]"}
_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON, _NEXT = range(6)  # what may come
_MAY_CLOSE = (_FIRST_VALUE, _FIRST_KEY, _NEXT)


def _scan(body: bytes, max_depth: int) -> dict[str, bytes]:
    """Check a JSON value without recursion. Return its members, if it is an object.

    A loop with a stack of the brackets that have to be closed. Slower than the decoder, so only
    what the decoder cannot read comes here.
    """
    members: dict[str, bytes] = {}
    stack: list[bytes] = []
    key, began, fields = b"", 0, 0
    wanted, at = _VALUE, 0
    while True:
        token = _TOKEN.match(body, at)
        if token is None:
            raise _malformed(at)
        mark = token["mark"]
        is_whole = False  # does a value end here?
        if wanted in (_VALUE, _FIRST_VALUE) and (mark is None or mark in _CLOSES):
            began = at if len(stack) == 1 else began
            if mark is None:
                is_whole = True
            else:
                stack.append(_CLOSES[mark])
                wanted = _FIRST_KEY if mark == b"{" else _FIRST_VALUE
        elif wanted in (_KEY, _FIRST_KEY) and token["string"] is not None:
            key = token["string"] if len(stack) == 1 else key
            wanted = _COLON
        elif wanted == _COLON and mark == b":":
            wanted = _VALUE
        elif wanted == _NEXT and mark == b",":
            wanted = _KEY if stack[-1] == b"}" else _VALUE
        elif wanted in _MAY_CLOSE and stack[-1:] == [mark]:
            stack.pop()
            is_whole = True
        else:
            raise _malformed(at)
        if len(stack) > max_depth:
            raise InvalidInput(f"a value is nested deeper than {MAX_DEPTH}")
        at = token.end()
        if not is_whole:
            continue
        if not stack:
            break
        if stack == [b"}"]:
            fields += 1
            if fields > MAX_FIELDS:
                raise InvalidInput(f"an object has at most {MAX_FIELDS} fields - at `$`")
            name = json.loads(key)
            members.pop(name, None)  # so that the last comes last
            members[name] = body[began:at].strip()
        wanted = _NEXT
    if at != len(body):
        raise _malformed(at)
    return members


def _malformed(at: int) -> InvalidInput:
    return InvalidInput(f"the body is not JSON: malformed at byte {at}")
