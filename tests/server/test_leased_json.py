"""Usual messages are written as JSON without a struct: the same bytes."""

import calendar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import LeasedMessage, Message, Receipt, Ticket
from penstock.server.call import encode
from penstock.server.rest.message_out import leased, leased_json, plain_leased_json
from penstock.server.rest.settle import plain_read_ack, read_ack
from penstock.server.rest.structs import LeasedMessages

_json = st.sampled_from(
    [b"1", b'{"a":[1,2.5,"x"]}', b'"\xc3\xa9"', b" [] ", b"{", b'{"a":1,"a":2}', b""]
)


@given(
    payload=_json,
    seq=st.integers(1, 2**40),
    priority=st.integers(0, 9),
    times=st.lists(st.integers(0, 2**62), min_size=2, max_size=2),
    due=st.sampled_from([0, 0, 0, 1_700_000_000_000_000_000]),
    expires=st.sampled_from([0, 0, 0, 1_700_000_000_000_000_000]),
    key=st.sampled_from([None, None, None, "", "k"]),
    headers=st.sampled_from([{}, {}, {"a": "b"}]),
    content_type=st.sampled_from(["application/json", "application/json", None, "text/plain"]),
    most=st.sampled_from([0, 0, 3]),
    attempt=st.integers(1, 65535),
)
def test_a_leased_message_has_the_same_json_both_ways(
    payload: bytes,
    seq: int,
    priority: int,
    times: list[int],
    due: int,
    expires: int,
    key: str | None,
    headers: dict[str, str],
    content_type: str | None,
    most: int,
    attempt: int,
) -> None:
    message = Message(
        id="01HF7YAT00000CNZG00000001A",
        seq=seq,
        payload=payload,
        priority=priority,
        published_ns=times[0],
        deliver_at_ns=due,
        expires_at_ns=expires,
        key=key,
        headers=headers,
        content_type=content_type,
        max_attempts=most,
    )
    ticket = Ticket(5, 0, "main", attempt, 2**63 + 7, times[1], None)  # type: ignore[arg-type]
    one = LeasedMessage(message, ticket)
    whole = leased_json(one)
    assert whole == plain_leased_json(one)
    if whole is not None:
        assert whole == encode(LeasedMessages([leased(one, b64=False)]))


def test_a_plain_json_message_is_written_directly() -> None:
    message = Message(
        "01HF7YAT00000CNZG00000001A", 1, b"{}", 5, 0, 0, 0, None, {}, "application/json", 0
    )
    ticket = Ticket(5, 0, "main", 1, 7, 0, None)  # type: ignore[arg-type]
    assert leased_json(LeasedMessage(message, ticket)) is not None


def _leased(**fields: Any) -> LeasedMessage:
    message = Message(
        "01HF7YAT00000CNZG00000001A", 1, b"{}", 5, 0, 0, 0, None, {}, "application/json", 0
    )
    ticket = Ticket(2**32 - 1, 65535, "main", 1, 2**64 - 1, 0, None)  # type: ignore[arg-type]
    of_ticket = {name: fields.pop(name) for name in Ticket._fields if name in fields}
    return LeasedMessage(message._replace(**fields), ticket._replace(**of_ticket))


@pytest.mark.parametrize("year", [1970, 1999, 2000, 2024, 2100, 2254])
@pytest.mark.parametrize("date", [(1, 1), (2, 28), (2, 29), (3, 1), (12, 31)])
def test_dates_are_the_same_both_ways(year: int, date: tuple[int, int]) -> None:
    if date == (2, 29) and not calendar.isleap(year):
        return
    for second in (0, 86_399):
        at_s = calendar.timegm((year, *date, 0, 0, 0)) + second
        for nanos in (0, 499, 500, 999_999_499, 999_999_500):
            at_ns = at_s * 10**9 + nanos
            one = _leased(published_ns=at_ns, deadline_ns=at_ns)
            assert leased_json(one) == plain_leased_json(one) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"seq": 2**64 - 1, "nonce": 0, "attempt": 65535},
        {"payload": b'"' + b"x" * 100_000 + b'"'},
        {"payload": '"ü"'.encode()},
    ],
)
def test_the_largest_fields_are_the_same_both_ways(fields: dict[str, Any]) -> None:
    one = _leased(**fields)
    assert leased_json(one) == plain_leased_json(one)


def test_a_time_beyond_the_usual_is_written_by_the_struct() -> None:
    one = _leased(deadline_ns=2**64 - 1)
    written = leased_json(one)
    assert written is None or written == plain_leased_json(one)
    assert b"2554" in encode(leased(one, b64=False))


_RECEIPT = Receipt(2**32 - 1, 65535, 65535, 2**64 - 1, 2**64 - 2)
_BODY = b'{"ack":["%s"]}' % _RECEIPT.pack().encode()


@given(
    numbers=st.tuples(
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
    ),
    spaces=st.lists(st.text(" \t\r\n", max_size=3), min_size=8, max_size=8),
)
def test_an_ack_in_any_valid_form_is_read(
    numbers: tuple[int, int, int, int, int], spaces: list[str]
) -> None:
    receipt = Receipt(*numbers)
    tokens = ["", "{", '"ack"', ":", "[", f'"{receipt.pack()}"', "]", "}"]
    body = "".join(token + space for token, space in zip(tokens, spaces, strict=True)).encode()
    assert read_ack(body) == plain_read_ack(body) == (receipt.pack(), receipt)


@given(
    at=st.integers(0, len(_BODY)),
    removed=st.integers(0, 3),
    added=st.binary(max_size=3) | st.sampled_from([b" ", b"\x0b", b"=", b"+", b",", b'"', b"]}"]),
)
def test_any_other_body_is_read_the_same_both_ways(at: int, removed: int, added: bytes) -> None:
    for body in (_BODY[:at] + added + _BODY[at + removed :], _BODY[:at]):
        assert read_ack(body) == plain_read_ack(body)
