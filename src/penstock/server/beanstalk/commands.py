"""Command lines of the protocol: which command it is, and its arguments. Pure functions.

Numbers are read as beanstalkd reads them: spaces before a number are skipped.
"""

import re
from typing import NamedTuple

from penstock.server.beanstalk.mapping import (
    MAX_DELAY_S,
    MAX_TTR_S,
    MAX_U32,
    headers_of,
    priority_of,
)

MAX_LINE_BYTES = 222  # without CR LF
MAX_U64 = (1 << 64) - 1

_PUT = re.compile(rb"put +([0-9]+) +([0-9]+) +([0-9]+) +([0-9]+)")
_LONGEST_FIRST = (  # those with arguments end with a space
    (b"reserve-with-timeout", " int"),
    (b"reserve-job ", "id"),
    (b"reserve", ""),
    (b"delete ", "id"),
    (b"release ", "id pri delay"),
    (b"bury ", "id pri"),
    (b"kick-job ", "id"),
    (b"kick ", "int"),
    (b"touch ", "id"),
    (b"stats-job ", "id"),
    (b"stats-tube ", "tube"),
    (b"stats", ""),
    (b"use ", "tube"),
    (b"watch ", "tube"),
    (b"ignore ", "tube"),
    (b"peek-ready", ""),
    (b"peek-delayed", ""),
    (b"peek-buried", ""),
    (b"peek ", "id"),
    (b"list-tubes-watched", ""),
    (b"list-tube-used", ""),
    (b"list-tubes", ""),
    (b"pause-tube ", "tube delay"),
    (b"quit", ""),
)
_NUMBER = {"id": MAX_U64, "pri": MAX_U32, "delay": MAX_U32}
NAMES = ("put", *(word.decode().strip() for word, _ in _LONGEST_FIRST))
"""All commands."""


_HTTP = re.compile(rb"host:|[^ ]+ [^ ]+ http/[0-9]", re.IGNORECASE)
_LONG_HTTP = re.compile(rb"[A-Z]+ (?:/|\*|https?:)")


def is_http(line: bytes) -> bool:
    """Return whether a line, or the beginning of a long one, is of an HTTP request.

    >>> is_http(b"POST /x HTTP/1.1"), is_http(b"Host: x"), is_http(b"GET /long"), is_http(b"get x")
    (True, True, True, False)
    """
    return _HTTP.match(line) is not None or _LONG_HTTP.match(line) is not None


class Put(NamedTuple):
    """The line of a put, as the broker needs it."""

    size: int  # of the body in bytes
    priority: int  # of the queue
    headers: dict[str, str] | None
    delay_s: int
    ttr_s: int
    is_plain: bool  # the message has no option


class Command(NamedTuple):
    """A command without a body: its name and its arguments."""

    name: str
    arguments: tuple[int | str, ...]


class Unreadable(Exception):
    """A line that is no command. Its text is the answer."""


def parse_put(line: bytes) -> Put:
    """Read a line that begins with `put `. Raise Unreadable if it is not well-formed."""
    found = _PUT.fullmatch(line)
    if found is None:
        raise Unreadable("BAD_FORMAT")
    pri, delay_s, ttr_s, size = (int(digits) for digits in found.groups())
    if max(pri, delay_s, ttr_s, size) > MAX_U32:
        raise Unreadable("BAD_FORMAT")
    ttr_s = min(max(ttr_s, 1), MAX_TTR_S)
    priority, headers = priority_of(pri), headers_of(pri, ttr_s)
    is_plain = priority == 5 and headers is None and not delay_s
    return Put(size, priority, headers, min(delay_s, MAX_DELAY_S), ttr_s, is_plain)


def parse(line: bytes) -> Command:
    """Read any other line. Raise Unreadable, with the answer, if it is no command.

    >>> parse(b"release 7 1024 0")
    Command(name='release', arguments=(7, 1024, 0))
    """
    known = _KNOWN.get(line)
    if known is not None:
        return known
    word, space, rest = line.partition(b" ")
    usual = _USUAL.get(word)
    if usual is not None and rest.isdigit() == usual[1] and bool(space) == usual[1]:
        if not space:
            return usual[0]
        number = int(rest)
        if number <= MAX_U64:
            return Command(usual[0].name, (number,))
    if b"\0" in line:
        raise Unreadable("BAD_FORMAT")
    for word, kinds in _LONGEST_FIRST:
        if line.startswith(word):
            name = word.decode().strip()
            return Command(name, _arguments(line[len(word) :], kinds))
    raise Unreadable("UNKNOWN_COMMAND")


def _arguments(rest: bytes, kinds: str) -> tuple[int | str, ...]:
    found: list[int | str] = []
    if kinds.startswith(" ") and not rest.startswith(b" "):
        raise Unreadable("BAD_FORMAT")
    for kind in kinds.split():
        match = (_WORD if kind == "tube" else _SIGNED if kind == "int" else _DIGITS).match(rest)
        if match is None:
            raise Unreadable("BAD_FORMAT")
        rest = rest[match.end() :]
        if kind == "tube":
            found.append(match[0].decode("ascii"))
            continue
        number = int(match[1])
        if abs(number) > _NUMBER.get(kind, MAX_U64):
            raise Unreadable("BAD_FORMAT")
        found.append(number)
    if rest:
        raise Unreadable("BAD_FORMAT")
    return tuple(found)


_WORD = re.compile(rb"[!-~]+")
_DIGITS = re.compile(rb" *([0-9]+)")
_SIGNED = re.compile(rb" *(-?[0-9]+)")

# Commands with one number or none, and whether they have one: the usual ones need no search.
_USUAL = {
    word.strip(): (Command(word.decode().strip(), ()), bool(kinds))
    for word, kinds in _LONGEST_FIRST
    if kinds.strip() in ("", "id", "int")
}
# Lines that workers send again and again.
_KNOWN = {
    b"reserve": Command("reserve", ()),
    **{
        b"reserve-with-timeout %d" % seconds: Command("reserve-with-timeout", (seconds,))
        for seconds in range(61)
    },
}
