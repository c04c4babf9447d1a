"""Messages of a listing are written as JSON without structs: the same bytes."""

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import Message
from penstock.operations import Row
from penstock.server import strict_json
from penstock.server.call import encode
from penstock.server.rest.listed_json import plain_rows_json, rows_json
from penstock.server.rest.message_out import listed

_json = st.sampled_from(
    [b"1", b'{"a":[1,2.5,"x"]}', b'"\xc3\xa9"', b" [] ", b"{", b'{"a":1,"a":2}', b""]
)
_SOURCE = Path(strict_json.__file__).parent / "rest" / "listed_json.py"


def _plain_rows_json() -> Callable[..., bytes]:
    """Return the function without the compiled module."""
    found = spec_from_file_location("plain_listed_json", _SOURCE)
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    plain: Callable[..., bytes] = module.plain_rows_json
    return plain


_PLAIN_ROWS_JSON = _plain_rows_json()
_times = st.integers(0, 2**62) | st.integers(1_700_000_000_000_000_000, 1_700_000_002_000_000_000)
_options = st.sampled_from([0, 0, 0, 1_700_000_000_000_000_000])
_messages = st.builds(
    Message,
    id=st.just("01HF7YAT00000CNZG00000001A"),
    seq=st.integers(1, 2**40),
    payload=_json | st.binary(max_size=20),
    priority=st.integers(0, 9),
    published_ns=_times,
    deliver_at_ns=_options,
    expires_at_ns=_options,
    key=st.none() | st.text(max_size=5),
    headers=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    content_type=st.sampled_from(
        ["application/json", "application/json", "application/json; a=b", None, "text/\u00e9"]
    ),
    max_attempts=st.sampled_from([0, 0, 3]),
)
_rows = st.lists(
    st.builds(Row, _messages, st.sampled_from(["ready", "leased", "dead"]), st.integers(0, 70_000)),
    max_size=4,
)
_MADE = (rows_json, plain_rows_json, _PLAIN_ROWS_JSON)
_usual_rows = _rows.map(
    lambda rows: [row._replace(message=usual(row.message)) for row in rows if row.message.payload]
)


def usual(message: Message) -> Message:
    """Return the message without options, so that a compiled function writes it."""
    return message._replace(
        payload=b'{"a":[%d,"x"]}' % len(message.payload),
        deliver_at_ns=0,
        expires_at_ns=0,
        key=None,
        headers={},
        content_type="application/json",
        max_attempts=0,
    )


@given(rows=_rows | _usual_rows, b64=st.booleans())
def test_a_listing_has_the_same_json_compiled_plain_and_of_structs(
    rows: list[Row], b64: bool
) -> None:
    structs = b",".join([encode(listed(*row, b64=b64)) for row in rows])
    for made in _MADE:
        assert made(rows, b64, b"<", b">") == b"<" + structs + b">"
    size = sum(len(row.message.payload) for row in rows)
    for most in (size, size - 1):
        expected = rows_json(rows, b64, b"<", b">") if most == size or not rows else b""
        for made in _MADE:
            assert made(rows, b64, b"<", b">", most) == expected


def test_payloads_that_are_not_surely_strict_json_are_written_as_well() -> None:
    message = Message(
        id="01HF7YAT00000CNZG00000001A",
        seq=1,
        payload=b"1",
        priority=5,
        published_ns=1_700_000_000_000_000_000,
        deliver_at_ns=0,
        expires_at_ns=0,
        key=None,
        headers={},
        content_type="application/json",
        max_attempts=0,
    )
    long = b'"%s"' % (b"x" * (strict_json.SCANNED_BYTES + 1))
    for payload in (b'"\xc3\xa9"', b"[1e3]", long, b"{"):
        rows = [Row(message, "ready", 0), Row(message._replace(payload=payload), "leased", 1)]
        structs = b",".join([encode(listed(*row, b64=False)) for row in rows])
        assert all(made(rows, False, b"", b"") == structs for made in _MADE)
