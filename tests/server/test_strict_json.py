"""The strict reading of JSON, against a plain but slow one."""

import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.server import strict_json

ANYTHING: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder()

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(':"\\a{}[]\u2028é', max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(json_values, st.booleans(), st.sampled_from([None, 1]))
def test_what_is_json_is_read_as_it_is(value: Any, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert strict_json.decode(body, ANYTHING) == json.loads(body)


@given(st.lists(st.tuples(st.text('ab":\\'), json_values), min_size=1, max_size=6))
def test_keys_given_twice_are_refused_and_others_are_not(pairs: list[tuple[str, Any]]) -> None:
    members = [f"{json.dumps(key)} : {json.dumps(value)}" for key, value in pairs]
    body = ("[{" + ",".join(members) + "}]").encode()
    if len({key for key, _ in pairs}) == len(pairs):
        strict_json.check(body)
    else:
        with pytest.raises(InvalidInput, match="given twice"):
            strict_json.check(body)


@given(st.binary(max_size=60) | st.text('{}[]",:\\u0d8e19.-+eEnulltrfas \n').map(str.encode))
def test_whatever_is_sent_is_read_or_refused(body: bytes) -> None:
    """And what is read, the json of Python reads in the same way."""
    try:
        value = strict_json.decode(body, ANYTHING)
    except InvalidInput as error:
        assert str(error)
    else:
        assert value == json.loads(body)


@pytest.mark.parametrize("depth", [1, 31, 32])
def test_nesting_up_to_the_limit_is_good(depth: int) -> None:
    strict_json.check(b"[" * depth + b"]" * depth)
    strict_json.check(b'{"a":' * depth + b"1" + b"}" * depth)


@pytest.mark.parametrize("depth", [33, 100, 10_000, 500_000])
def test_deeper_nesting_is_refused(depth: int) -> None:
    for body in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        with pytest.raises(InvalidInput, match="deeper than 32"):
            strict_json.check(body)


def test_many_brackets_beside_each_other_are_not_deep() -> None:
    strict_json.check(b"[" + b",".join([b'{"a":[]}'] * 1000) + b"]")


def test_brackets_and_colons_in_text_do_not_count() -> None:
    strict_json.check(json.dumps({"a": "[" * 100 + '{"a":1,"a":2}', "b": ":::"}).encode())


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("digits", ["9" * 309, "1" + "0" * 309, "7" * 5_000, "7" * 100_000])
@pytest.mark.parametrize("before", ["", "x" * 1_000])
def test_whole_numbers_that_no_double_holds_are_refused(
    sign: str, digits: str, before: str
) -> None:
    body = f'{{"a": "{before}", "b": [1, {sign}{digits}]}}'.encode()
    with pytest.raises(InvalidInput, match=r"the number is too large - at `\$\.b\[1\]`"):
        strict_json.check(body)


@pytest.mark.parametrize(
    "value",
    [
        str(int(sys.float_info.max)),
        "-" + str(int(sys.float_info.max)),
        "9" * 308,
        "0." + "3" * 1_000,
        "1" + "0" * 400 + "e-300",
        '"' + "9" * 1_000 + '"',
        '"a\\"' + "9" * 1_000 + '"',
    ],
)
def test_other_long_numbers_and_texts_are_taken(value: str) -> None:
    strict_json.check(f'{{"a": 1, "b": [{value}]}}'.encode())
