"""Random entries for property tests."""

from hypothesis import strategies as st

from penstock.codec.entry import Draft
from penstock.codec.layout import CONTENT_TYPE_TAG, DATA, MAX_TIMESTAMP_NS, TOMBSTONE

timestamps = st.one_of(st.integers(0, 100), st.integers(0, MAX_TIMESTAMP_NS))
payloads = st.one_of(st.binary(max_size=40), st.binary(min_size=100, max_size=3000))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

drafts = st.builds(
    Draft,
    payload=payloads,
    type=st.sampled_from([DATA, DATA, DATA, 16, 17, 255]),
    priority=st.integers(0, 9),
    expires_at_ns=st.one_of(st.just(0), timestamps),
    deliver_at_ns=st.one_of(st.just(0), timestamps),
    key=st.none() | st.binary(max_size=20),
    headers=st.none() | st.dictionaries(texts, texts, max_size=4),
    attributes=st.none()
    | st.dictionaries(st.integers(0, 255), st.binary(max_size=9), max_size=4)
    | st.builds(lambda kind: {CONTENT_TYPE_TAG: kind}, st.binary(max_size=9)),
    compression=st.sampled_from([0, 0, 1, 2, 255]),
)

tombstones = st.builds(
    lambda last: Draft(last.to_bytes(8, "little"), type=TOMBSTONE), st.integers(0, (1 << 64) - 1)
)

# Mostly what a caller may write, now and then what it may not.
rough_drafts = st.builds(
    Draft,
    payload=payloads,
    type=st.integers(-1, 257),
    priority=st.one_of(st.integers(-2, 12), st.just(1 << 70)),
    expires_at_ns=st.one_of(st.just(0), st.integers(-(1 << 65), 1 << 65)),
    deliver_at_ns=st.one_of(st.just(0), st.integers(-(1 << 65), 1 << 65)),
    key=st.none() | st.binary(max_size=5) | st.just(bytes(0x10000)),
    headers=st.none()
    | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)
    | st.just({"name": "x" * 0x10000}),
    attributes=st.none()
    | st.dictionaries(st.integers(-1, 256), st.binary(max_size=5), max_size=2)
    | st.just({1: bytes(0x10000)}),
    compression=st.integers(-1, 257),
)
