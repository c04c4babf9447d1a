"""Usual messages are written as JSON without a struct: the same bytes."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import LeasedMessage, Message, Ticket
from penstock.operations import Row
from penstock.server.call import encode
from penstock.server.rest.listed_json import listed_json
from penstock.server.rest.message_out import leased, leased_json, listed
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
    found = leased_json(one)
    if found is not None:
        whole = b'{"messages":[%s]}' % found
        assert whole == encode(LeasedMessages([leased(one, b64=False)]))
    row = Row(message, "ready", attempt)
    found = listed_json(row)
    if found is not None:
        assert found == encode(listed(*row, b64=False))


def test_a_plain_json_message_is_written_directly() -> None:
    message = Message(
        "01HF7YAT00000CNZG00000001A", 1, b"{}", 5, 0, 0, 0, None, {}, "application/json", 0
    )
    ticket = Ticket(5, 0, "main", 1, 7, 0, None)  # type: ignore[arg-type]
    assert leased_json(LeasedMessage(message, ticket)) is not None
    assert listed_json(Row(message, "ready", 0)) is not None
