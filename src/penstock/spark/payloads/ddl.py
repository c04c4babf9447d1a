"""Check the DDL of payloads, such as `id BIGINT, tags ARRAY<STRING>`, without a Spark session.

The source pastes it into the DDL of its table, which Spark parses. So a typo would be reported for
another column, and a bracket too many would add columns.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches

from penstock.errors import InvalidInput

MAX_PRECISION = 38
_TOKEN = re.compile(
    r"""\s*(?:(?P<name>`(?:[^`]|``)+`|\w+)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<sign>\S)|$)""",
    re.DOTALL,
)
_PLAIN = (
    *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"),
    *("FLOAT", "REAL", "DOUBLE", "STRING", "BINARY", "DATE"),
    *("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"),
)
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_LENGTHS = ("CHAR", "CHARACTER", "VARCHAR")
_NESTED = ("ARRAY", "MAP", "STRUCT")
_TYPES = (*_PLAIN, *_DECIMALS, *_NESTED)
DECIMAL_RULE = f"the precision is 1 to {MAX_PRECISION}, the scale 0 to the precision"

# A name that Spark takes without backquotes: ASCII, and no number such as 1, 1L or 1e5.
_BARE_NAME = re.compile(r"(?i)(?![0-9]+(e[0-9]+)?(f|d|bd)?$|[0-9]+[lsy]$)[a-z0-9_]+")
# A collation is one of Spark's, or a language of ICU. Only Spark knows which languages exist.
_COLLATION = re.compile(
    r"(?i)(utf8_binary|utf8_lcase|unicode|[a-z]{2,3}(_[a-z]{4})?(_[a-z]{3})?)"
    r"(_(ci|cs|ai|as|rtrim))*"
)


def bad_schema(text: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"the schema of payloads, {text[:200]!r}, cannot be read ({why}): write it as "
        f"'id BIGINT, name STRING', or as StructType.json() gives it"
    )


def check_ddl(text: str) -> None:
    """Raise InvalidInput unless the text is a list of fields with types that payloads have."""
    try:
        _Parser(text).parse()
    except _Wrong as wrong:
        raise bad_schema(text, str(wrong)) from None
    except RecursionError:
        raise bad_schema(text, "it is nested too deeply") from None


def is_collation(name: str) -> bool:
    """Return whether a collation may have this name.

    >>> is_collation("UNICODE_CI"), is_collation("de_AI"), is_collation("NOPE")
    (True, True, False)
    """
    return _COLLATION.fullmatch(name) is not None


class _Wrong(Exception):
    pass


class _Parser:
    """A recursive descent over the tokens."""

    def __init__(self, text: str) -> None:
        self._tokens = [(one.lastgroup, one[one.lastgroup or 0]) for one in _TOKEN.finditer(text)]
        self._at = 0

    def parse(self) -> None:
        self._list_of(self._field)
        if self._token != "":
            raise self._expected("a comma or the end")

    def _list_of(self, part: Callable[[], None]) -> None:
        part()
        while self._take(","):
            part()

    def _field(self) -> None:
        name = self._name("the name of a field")
        if not name.startswith("`") and not _BARE_NAME.fullmatch(name):
            raise _Wrong(f"the name {name} needs backquotes: `{name}`")
        self._take(":")
        if self._kind != "name":
            raise _Wrong(f"the field {name} has no type")
        self._type(name)
        if self._take("NOT"):
            self._need("NULL")
        if self._take("COMMENT"):
            if self._kind != "text":
                raise self._expected("a text in quotes")
            while self._kind == "text":  # Spark joins them, as in 'it''s'
                self._at += 1

    def _type(self, field: str) -> None:
        given = self._name("a type")
        type_ = given.upper()
        if type_ == "ARRAY":
            self._in_brackets(lambda: self._type(field))
        elif type_ == "MAP":
            self._in_brackets(lambda: self._entry(field))
        elif type_ == "STRUCT":
            self._in_brackets(self._fields)
        elif type_ in _DECIMALS:
            self._decimal(given, field)
        elif type_ in _LENGTHS:
            raise _Wrong(f"a payload has no {given}, as {field} has: use STRING")
        elif type_ not in _PLAIN:
            raise _Wrong(_unknown(given, field))
        elif self._token == "(":
            raise _Wrong(f"{given} of {field} has no length")
        elif type_ == "STRING" and self._take("COLLATE"):
            self._collation(field)

    def _collation(self, field: str) -> None:
        name = self._name("the name of a collation")
        while self._take("."):
            name = self._name("the name of a collation")
        name = name.strip("`")
        if not is_collation(name):
            raise _Wrong(f"there is no collation {name}, as {field} has: use one such as UNICODE")

    def _fields(self) -> None:
        if self._token != ">":
            self._list_of(self._field)

    def _entry(self, field: str) -> None:
        self._type(field)
        self._need(",")
        self._type(field)

    def _in_brackets(self, part: Callable[[], None]) -> None:
        self._need("<")
        part()
        self._need(">")

    def _decimal(self, given: str, field: str) -> None:
        if not self._take("("):
            return
        precision, scale = self._number(), 0
        if self._take(","):
            scale = self._number()
        self._need(")")
        if not 1 <= precision <= MAX_PRECISION or scale > precision:
            raise _Wrong(f"{given}({precision},{scale}) of {field}: {DECIMAL_RULE}")

    # -- tokens ------------------------------------------------------------------------------------

    @property
    def _kind(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    @property
    def _token(self) -> str:
        return self._tokens[self._at][1].strip() if self._at < len(self._tokens) else ""

    def _take(self, wanted: str) -> bool:
        if self._token.upper() != wanted:
            return False
        self._at += 1
        return True

    def _need(self, wanted: str) -> None:
        if not self._take(wanted):
            raise self._expected(repr(wanted))

    def _name(self, what: str) -> str:
        if self._kind != "name":
            raise self._expected(what)
        name = self._token
        self._at += 1
        return name

    def _number(self) -> int:
        if re.fullmatch("[0-9]{1,9}", self._token) is None:
            raise self._expected("a number")
        return int(self._name("a number"))

    def _expected(self, what: str) -> _Wrong:
        return _Wrong(f"expected {what}, not {repr(self._token) if self._token else 'the end'}")


def _unknown(given: str, field: str) -> str:
    near = get_close_matches(given.upper(), _TYPES, n=1, cutoff=0.75)
    if near:
        return f"the type {given} of {field} is unknown: did you mean {near[0]}?"
    return f"a payload has no type {given}, as {field} has: use {', '.join(_TYPES)}"
