"""Bodies are read as Go reads them into a struct; JSON is judged the same at any depth."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from penstock.errors import InvalidInput
from penstock.server.dialects.json_bodies import (
    MAX_DEPTH,
    MAX_FIELDS,
    MAX_MAPPING_BYTES,
    Shape,
    is_json,
)
from penstock.server.strict_json import MAX_VALUES


class Body(Struct):
    payload: Raw = Raw(b"null")
    count: int | None = None
    labels: dict[str, str] = {}


OPEN, CLOSED = Shape(Body), Shape(Body, closed=True)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def deep(inner: bytes, depth: int) -> bytes:
    return b'[{"a":' * (depth // 2) + inner + b"}]" * (depth // 2)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_a_payload_is_kept_as_it_was_sent(value: Any, ascii: bool, indent: int | None) -> None:
    sent = json.dumps(value, ensure_ascii=ascii, indent=indent).encode("utf-8", "replace")
    if sent.strip() != b"null":
        assert bytes(OPEN.read(b'{"payload": ' + sent + b"}").payload) == sent.strip()
    assert is_json(sent)


@pytest.mark.parametrize(
    "sent",
    [
        b"12345678901234567890123456789012345678901234567890",
        b"1e999",
        b"-0",
        b"0.1000000000000000055511151231257827",
        b'{"b":1,"a":2,"b":3}',
        b'"\\ud800"',
        b'"<&>\\u2028"',
    ],
)
def test_numbers_keys_and_escapes_of_any_kind_are_kept(sent: bytes) -> None:
    assert bytes(OPEN.read(b'{"payload":' + sent + b"}").payload) == sent
    assert is_json(sent)


def test_nesting_is_taken_up_to_the_depth_of_go() -> None:
    sent = deep(b"1", MAX_DEPTH - 2)
    assert bytes(OPEN.read(b'{"count":7,"payload":' + sent + b',"COUNT":8}').payload) == sent
    assert OPEN.read(b'{"payload":' + sent + b',"COUNT":8}').count == 8
    assert is_json(sent)
    with pytest.raises(InvalidInput, match="nested deeper than 10000"):
        OPEN.read(b'{"payload":' + deep(b"1", MAX_DEPTH + 2) + b"}")
    assert not is_json(deep(b"1", MAX_DEPTH + 2))


@given(
    st.lists(
        st.sampled_from(
            [*'[]{},:"\\ \n', "1", "-", "0", ".", "e", "true", "null", '"a"', "\\u12aF"]
        ),
        max_size=12,
    ).map("".join)
)
def test_what_is_deep_is_judged_as_what_is_not(text: str) -> None:
    """The two readers agree: the quick one, and the one for depth."""
    try:
        json.loads(text)
        expected = True
    except ValueError:
        expected = False
    assert is_json(text.encode()) == expected
    assert is_json(deep(text.encode(), 2000)) == expected


def test_fields_match_in_any_case_and_the_last_counts() -> None:
    assert OPEN.read(b'{"PayLoad":1,"COUNT":2}') == Body(Raw(b"1"), 2)
    assert OPEN.read(b'{"count":1,"Count":2}').count == 2
    assert OPEN.read(b'{"count":1,"count":3}').count == 3
    assert OPEN.read(b'{"count":1,"COUNT":2,"count":3}').count == 3
    assert OPEN.read(b'{"labels":{"a":"x","a":"y","A":"z"}}').labels == {"a": "y", "A": "z"}
    assert OPEN.read(b'{"count":null,"labels":null}') == Body()


def test_a_field_that_is_not_known_is_passed_over_or_refused() -> None:
    assert OPEN.read(b'{"other":1}') == Body()
    with pytest.raises(InvalidInput, match="there is no field 'other'; the fields are payload"):
        CLOSED.read(b'{"payload":1,"other":1}')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"null", "at `[$]`"),
        (b"[]", "at `[$]`"),
        (b'{"count":"1"}', r"at `\$.count`"),
        (b'{"count":1.5}', r"at `\$.count`"),
        (b'{"labels":{"a":1}}', r"at `\$.labels`"),
        (b'{"count":1} x', "malformed at byte 12"),
        (b'{"count":1', "malformed"),
        (b'{"payload":"\xff"}', "not UTF-8"),
    ],
)
def test_what_is_wrong_is_told(body: bytes, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        OPEN.read(body)


def test_an_array_says_which_of_its_items_is_wrong() -> None:
    assert CLOSED.read_array(b'[{"count":1},{"COUNT":2}]') == [Body(count=1), Body(count=2)]
    assert CLOSED.read_array(b"[]") == []
    with pytest.raises(InvalidInput, match=r"at `\$\[1\].count`"):
        CLOSED.read_array(b'[{"count":1},{"count":"2"}]')
    with pytest.raises(InvalidInput, match="not a JSON array"):
        CLOSED.read_array(b"{}")


def fields(count: int) -> bytes:
    return b",".join(b'"f%d":1' % number for number in range(count))


def test_an_object_has_a_limited_number_of_fields() -> None:
    assert OPEN.read(b'{"payload":7,%b}' % fields(MAX_FIELDS - 1)).payload == Raw(b"7")
    for body in (b'{"payload":7,%b}', b'{%b,"payload":7}', b'{"PAYLOAD":7,%b}'):
        with pytest.raises(InvalidInput, match="at most 10000 fields"):
            OPEN.read(body % fields(MAX_FIELDS))


@pytest.mark.parametrize("name", [b"payload", b"other"])
def test_a_field_that_is_given_often_counts_each_time(name: bytes) -> None:
    field = b'"%b":1' % name
    assert OPEN.read(b"{%b}" % b",".join([b'"payload":1', *[field] * (MAX_FIELDS - 1)])).payload
    with pytest.raises(InvalidInput, match="at most 10000 fields"):
        OPEN.read(b"{%b}" % b",".join([b'"payload":1', *[field] * MAX_FIELDS]))


@pytest.mark.parametrize("name", [b"payload", b"PayLoad"])
def test_a_payload_may_have_more_keys_than_that(name: bytes) -> None:
    payload = b"{%b}" % fields(MAX_FIELDS + 1)
    body = b'{"count":1,"%b":%b}' % (name, payload)
    assert bytes(OPEN.read(body).payload) == payload


def test_a_field_that_is_passed_over_may_have_more_keys_than_that() -> None:
    body = b'{"payload":7,"other":{%b}}' % fields(MAX_FIELDS + 1)
    assert bytes(OPEN.read(body).payload) == b"7"


def test_a_mapping_has_a_limited_number_of_bytes() -> None:
    body = b'{"labels":{"a":"%b"}}'
    longest = b"x" * (MAX_MAPPING_BYTES - len(b'{"a":""}'))
    assert OPEN.read(body % longest).labels == {"a": longest.decode()}
    with pytest.raises(InvalidInput, match=r"the maximum is 1048576 - at `\$\.labels`"):
        OPEN.read(body % (longest + b"x"))


@pytest.mark.parametrize("item", [b"1", b"[]", b'{"count":1}'])
def test_an_array_with_too_many_values_is_refused_before_it_is_read(item: bytes) -> None:
    body = b"[" + b",".join([item] * (MAX_VALUES + 1)) + b"]"
    with pytest.raises(InvalidInput, match="more than 600000 values"):
        OPEN.read_array(body)
