"""Numbers, sizes and times for people: short, with the exact value in the title."""

import json
from datetime import UTC, datetime

from markupsafe import Markup, escape

NS = 1_000_000_000
_MOST_JSON_BYTES = 256 << 10  # larger payloads are shown as they are
_HEX_ROW = 16


def count(value: float | None) -> Markup:
    """Return a whole number: exact below 100,000, else with three digits.

    >>> str(count(1_234_567))
    '<span class="n" title="1,234,567">1.23M</span>'
    """
    if value is None:
        return _NONE
    exact = f"{int(value):,}"
    if abs(value) < 100_000:
        return Markup('<span class="n">{}</span>').format(exact)
    return _titled(short(value), exact)


def short(value: float) -> str:
    """Return a number with three digits and a letter.

    >>> [short(number) for number in (0, 0.034, 7.25, 99_950, 1e6, 123_456_789, 4.2e18)]
    ['0', '0.034', '7.25', '100k', '1M', '123M', '4.2e+18']
    """
    if value == 0:
        return "0"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")):
        if abs(value) >= size * 0.9995 or size == 1:
            text = f"{value / size:.3g}"
            return f"{text}{letter}" if abs(value) < 1e15 else f"{value:.3g}"
    raise AssertionError


def many(value: int, noun: str) -> str:
    """Return a number and its noun.

    >>> many(1, "lease"), many(2_500_000, "lease")
    ('1 lease', '2.5M leases')
    """
    exact = f"{value:,}" if value < 100_000 else short(value)
    return f"{exact} {noun}" if value == 1 else f"{exact} {noun}s"


def rate(value: float | None) -> Markup:
    """Return a rate per second."""
    if value is None:
        return _NONE
    return _titled(f"{short(round(value, 2))}/s", f"{value:,.3f} per second")


def size(value: float | None) -> Markup:
    """Return a number of bytes.

    >>> str(size(1536)), str(size(1000))
    ('<span class="n" title="1,536 bytes">1.5 KiB</span>', '<span class="n">1000 B</span>')
    """
    if value is None:
        return _NONE
    if abs(value) < 1024:
        return Markup('<span class="n">{} B</span>').format(int(value))
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(amount) < 999.5 or unit == "PiB":
            break
        amount /= 1024
    return _titled(f"{amount:.3g} {unit}", f"{int(value):,} bytes")


def span(seconds: float | None) -> Markup:
    """Return a duration.

    >>> str(span(200))
    '<span class="n" title="200 s">3 min 20 s</span>'
    """
    if seconds is None:
        return _NONE
    return _titled(span_text(seconds), f"{seconds:,.6g} s")


def span_text(seconds: float) -> str:
    """Return a duration with at most two units.

    >>> [span_text(s) for s in (0, 0.0004, 0.25, 4.24, 59.99, 60, 7500, 200_000, 1e9)]
    ['0 s', '400 µs', '250 ms', '4.2 s', '60 s', '1 min', '2 h 5 min', '2 d 7 h', '31 y 259 d']
    """
    if seconds < 0:
        return f"−{span_text(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    units = (("y", 365 * 86400), ("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    whole = int(seconds)
    for number, (name, length) in enumerate(units):
        if whole >= length:
            first, rest = divmod(whole, length)
            if length == 1:
                return f"{first} s"
            next_name, next_length = units[number + 1]
            second = rest // next_length
            return f"{first} {name} {second} {next_name}" if second else f"{first} {name}"
    raise AssertionError


def moment(at_ns: int, now_ns: int) -> Markup:
    """Return a time as its distance from now, with the time itself in the title."""
    if not at_ns:
        return _NONE
    distance = (now_ns - at_ns) / NS
    if abs(distance) < 1:
        text = "now"
    elif distance > 0:
        text = f"{_coarse(distance)} ago"
    else:
        text = f"in {_coarse(-distance)}"
    exact = absolute(at_ns)
    return Markup('<time class="n" datetime="{}" title="{}">{}</time>').format(exact, exact, text)


def _coarse(seconds: float) -> str:
    return span_text(seconds) if seconds >= 60 else f"{int(seconds)} s"


def absolute(at_ns: int) -> str:
    """Return a time in UTC, to the millisecond.

    >>> absolute(1_700_000_000_250_000_000)
    '2023-11-14T22:13:20.250Z'
    """
    second, rest = divmod(at_ns, NS)
    try:
        time = datetime.fromtimestamp(second, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at_ns} ns"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03d}Z"


def percent(part: float) -> str:
    """Return a share; only what is nothing is 0 %, only what is all is 100 %.

    >>> percent(0), percent(0.00004), percent(0.125), percent(0.99999), percent(1)
    ('0 %', '<0.1 %', '12.5 %', '>99.9 %', '100 %')
    """
    if 0 < part < 0.001:
        return "<0.1 %"
    if 0.999 < part < 1:
        return ">99.9 %"
    return f"{part * 100:.3g} %"


def _titled(text: str, title: str) -> Markup:
    return Markup('<span class="n" title="{}">{}</span>').format(title, text)


_NONE = Markup('<span class="n none" title="not known">–</span>')


# -- payloads: text only, never markup -------------------------------------------------------------


def pretty_json(payload: bytes) -> str | None:
    """Return a payload as indented JSON; None if it is not JSON, or large.

    >>> pretty_json(b'{"a":1}')
    '{\\n  "a": 1\\n}'
    """
    if len(payload) > _MOST_JSON_BYTES or payload[:1] not in _STARTS_OF_JSON:
        return None
    try:
        return json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


_STARTS_OF_JSON = frozenset(bytes([byte]) for byte in b'{["-0123456789tfn \t\r\n')


def as_text(payload: bytes) -> str | None:
    """Return a payload as text; None if it is not UTF-8 or has control characters."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return None if any(ord(one) < 32 and one not in "\t\r\n" for one in text) else text


def hex_dump(payload: bytes) -> str:
    """Return a payload as rows of hexadecimal digits and ASCII.

    >>> print(hex_dump(b"hello"))
    00000000  68 65 6c 6c 6f                                    |hello|
    """
    rows = []
    for at in range(0, len(payload), _HEX_ROW):
        part = payload[at : at + _HEX_ROW]
        left, right = part[:8].hex(" "), part[8:].hex(" ")
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{at:08x}  {left:<23}  {right:<23}  |{shown}|")
    return "\n".join(rows)


def preview(payload: bytes, most: int = 160) -> str:
    """Return the beginning of a payload on one line."""
    part = payload[:most]
    text = part.decode(errors="ignore") if len(payload) > most else as_text(part)
    if text is None or (len(payload) > most and as_text(text.encode()) is None):
        text = part[:32].hex(" ")
    line = " ".join(text.split())
    return line + ("…" if len(payload) > most else "")


def html_escape(text: str) -> str:
    """Return text as markup, for places that are not templates."""
    return str(escape(text))
