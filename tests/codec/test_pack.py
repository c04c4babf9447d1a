"""One entry to bytes and back, and everything that is refused."""

import doctest
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from penstock.codec import buffer_py, pack_py
from penstock.codec.entry import Draft, Entry
from penstock.codec.layout import MAX_SEQ, MAX_TIMESTAMP_NS, TOMBSTONE
from penstock.errors import InvalidInput, TooLarge
from tests.codec.bodies import Body, each_body

FULL = Draft(
    b"payload",
    type=1,
    priority=9,
    expires_at_ns=5,
    deliver_at_ns=MAX_TIMESTAMP_NS,
    key=b"order-7",
    headers={"größe": "€", "": ""},
    attributes={0: b"", 255: b"x"},
    compression=2,
)


def entry_of(draft: Draft, size: int, seq: int = 7, timestamp_ns: int = 9) -> Entry:
    headers = None if not draft.headers else dict(draft.headers)
    attributes = None if not draft.attributes else dict(draft.attributes)
    return Entry(
        seq,
        timestamp_ns,
        draft.type,
        draft.payload,
        draft.priority,
        draft.expires_at_ns,
        draft.deliver_at_ns,
        draft.key,
        headers,
        attributes,
        draft.compression,
        0,
        size,
    )


@each_body
def test_bytes_of_an_entry_are_those_of_the_format(body: Body) -> None:
    fixed = "1d 00 00 00  01  00  02 01 00 00 00 00 00 00  ff 00 00 00 00 00 00 00"
    found = body.pack(0x102, 0xFF, Draft(b"penstck"))
    assert found[:-4] == bytes.fromhex(fixed) + b"penstck"
    assert found[-4:] == body.crc32c(found[:-4]).to_bytes(4, "little")


@each_body
def test_optional_fields_stand_in_the_order_of_their_bits(body: Body) -> None:
    draft = Draft(b"!", 1, 3, 1, 2, b"k", {"n": "v"}, {7: b"a"}, 2)
    found = body.pack(1, 0, draft)
    assert found[5] == 0x7F
    assert found[22:-4] == (
        b"\1\0\0\0\0\0\0\0"  # expires_at
        b"\1\0\1\0n\1\0v"  # headers
        b"\2"  # compression
        b"\3"  # priority
        b"\2\0\0\0\0\0\0\0"  # deliver_at
        b"\1\0k"  # key
        b"\1\7\1\0a"  # attributes
        b"!"
    )


@each_body
@pytest.mark.parametrize(
    "draft",
    [
        Draft(b""),
        Draft(b"x" * 5000),
        FULL,
        Draft(b"", key=b""),
        Draft(b"event", type=16),
        Draft(b"event", type=255),
        Draft(b"12345678", type=TOMBSTONE),
        Draft(b"", headers={str(i): "v" for i in range(0xFFFF)}),
        Draft(b"", headers={"n" * 0xFFFF: "v" * 0xFFFF}),
        Draft(b"", attributes={i: bytes([i]) * i for i in range(0xFF)}),
        Draft(b"", key=b"k" * 0xFFFF),
    ],
    ids=lambda draft: f"type {draft.type}",
)
def test_what_is_packed_is_unpacked(body: Body, draft: Draft) -> None:
    data = body.pack(7, 9, draft)
    assert body.unpack(data, 0, len(data)) == entry_of(draft, len(data))


@each_body
def test_a_message_without_options_costs_no_byte_for_them(body: Body) -> None:
    assert len(body.pack(1, 1, Draft(b"x" * 100))) == 126
    assert len(body.pack(1, 1, Draft(b"x" * 100, headers={}, attributes={}))) == 126


@each_body
def test_other_kinds_of_bytes_are_taken(body: Body) -> None:
    plain = body.pack(1, 1, Draft(b"abc", key=b"k", attributes={1: b"a"}))
    kinds: list[Any] = [bytearray, memoryview]
    for kind in kinds:
        draft = Draft(kind(b"abc"), key=kind(b"k"), attributes={1: kind(b"a")})
        assert body.pack(1, 1, draft) == plain


def _draft(**fields: Any) -> Draft:
    return Draft(b"", **fields)


@each_body
@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (_draft(headers={"n": "v" * 0x10000}), "header value has 65536 bytes"),
        (_draft(headers={"n": "ü" * 0x8000}), "header value has 65536 bytes"),
        (_draft(headers={"n" * 0x10000: ""}), "header name has 65536 bytes"),
        (_draft(headers={str(i): "" for i in range(0x10000)}), "65536 headers"),
        (_draft(key=bytes(0x10000)), "key has 65536 bytes"),
        (_draft(attributes={1: bytes(0x10000)}), "attribute has 65536 bytes"),
        (_draft(attributes=dict.fromkeys(range(256), b"")), "256 attributes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_over_its_limit_is_refused(body: Body, draft: Draft, message: str) -> None:
    with pytest.raises(TooLarge, match=message):
        body.pack(1, 1, draft)


@each_body
@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (_draft(type=0), "entry type 0"),
        (_draft(type=3), "entry type 3"),
        (_draft(type=15), "entry type 15"),
        (_draft(type=256), "entry type 256"),
        (_draft(type=1 << 70), "entry type 1180591620717411303424"),
        (_draft(priority=-1), "priority -1"),
        (_draft(priority=10), "priority 10"),
        (_draft(expires_at_ns=-1), "expires_at -1"),
        (_draft(expires_at_ns=1 << 63), "expires_at 9223372036854775808"),
        (_draft(deliver_at_ns=1 << 64), "deliver_at 18446744073709551616"),
        (_draft(compression=256), "compression 256"),
        (_draft(compression=-1), "compression -1"),
        (_draft(attributes={256: b""}), "attribute tag 256"),
        (_draft(attributes={-1: b""}), "attribute tag -1"),
        (_draft(headers={"\ud800": ""}), "header name is not valid text"),
        (_draft(headers={"": "\udfff"}), "header value is not valid text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_format_cannot_hold_is_refused(body: Body, draft: Draft, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        body.pack(1, 1, draft)


@each_body
@pytest.mark.parametrize(
    ("seq", "timestamp_ns"),
    [(-1, 0), (MAX_SEQ + 1, 0), (1 << 70, 0), (0, -1), (0, MAX_TIMESTAMP_NS + 1)],
)
def test_seq_and_time_stay_below_2_to_the_63(body: Body, seq: int, timestamp_ns: int) -> None:
    with pytest.raises(InvalidInput):
        body.pack(seq, timestamp_ns, Draft(b""))


@each_body
def test_a_number_is_not_taken_for_bytes(body: Body) -> None:
    for draft in (Draft(10**9), Draft(b"", key=5), Draft(b"", attributes={1: 5})):  # type: ignore[arg-type,dict-item]
        with pytest.raises(TypeError):
            body.pack(1, 1, draft)


class _Lying(Mapping[Any, Any]):
    """A mapping that says it is shorter than it is."""

    def __init__(self, items: dict[Any, Any]) -> None:
        self._items = items

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return 1


@each_body
def test_a_mapping_that_lies_about_its_length_spoils_no_entry(body: Body) -> None:
    headers, attributes = {"a": "1", "b": "2"}, {1: b"x", 2: b"y"}
    lying = Draft(b"p", headers=_Lying(headers), attributes=_Lying(attributes))
    honest = Draft(b"p", headers=headers, attributes=attributes)
    assert body.pack(1, 1, lying) == body.pack(1, 1, honest)


def test_the_examples_in_the_docstrings_run() -> None:
    for module, examples in ((buffer_py, 1), (pack_py, 2)):
        assert doctest.testmod(module) == (0, examples)
