"""A queue's logs read as files, and segments brought in whole."""

import asyncio

import pytest

from penstock import codec
from penstock.broker.segments import MAX_RANGE_BYTES, LogName, SegmentInfo, StagedSegment
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import Settlement, Store, StoreFiles
from penstock.codec import Draft
from penstock.errors import InvalidInput, NoSuchQueue, NoSuchSegment, PayloadTooLarge, TooLarge
from penstock.ledger.segment_header import HEADER_BYTES, SegmentHeader
from penstock.operations import Compact, GetStats, Purge
from penstock.queue.attributes import DEDUP, MAX_ATTEMPTS, SETTLES
from tests.conformance.conftest import ORDERS, StoreLife
from tests.harness.staged_segments import staged_segment

FOLDER, OTHER = "1700000000000000000-0123456789abcdef", "1700000000000000001-0123456789abcdef"


@pytest.fixture(params=["appended", "adopted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small jobs are appended, large ones adopted: both must keep the same promises."""
    if request.param == "adopted":
        monkeypatch.setattr("penstock.ledger.adoption.SMALL_BYTES", 0)
    return str(request.param)


def files_of(store: Store) -> StoreFiles:
    assert store.files is not None
    return store.files


async def whole(store: Store, log: LogName, segment: SegmentInfo) -> bytes:
    found = await files_of(store).read_segment(ORDERS, log, segment.base_seq, 0, segment.size_bytes)
    assert found.header == segment.header
    return found.data


async def payloads_of(store: Store) -> list[bytes]:
    """What the message log holds, read from its files."""
    found: list[bytes] = []
    for segment in (await files_of(store).segments(ORDERS)).messages.segments:
        data = await whole(store, "messages", segment)
        header = SegmentHeader.unpack(data[:HEADER_BYTES])
        entries, end = codec.read_entries(
            data, HEADER_BYTES, len(data), max_count=10_000, seq_base=header.seq_base
        )
        assert end == len(data), "nothing but whole entries"
        assert [e.seq for e in entries] == list(range(segment.base_seq, segment.end_seq))
        found += [entry.payload for entry in entries]
    return found


async def test_segments_hold_what_was_published_and_no_byte_more(life: StoreLife) -> None:
    for sync in ("always", "never"):
        store = await life.open(sync=sync)
        if sync == "never":
            await store.delete(ORDERS)
            settings = BrokerSettings().queue_settings({"sync": "never"})
            await store.create(ORDERS, settings)
        assert (await files_of(store).segments(ORDERS)).messages.segments == []
        for number in range(3):
            await life.publish(*(b"%d" % n for n in range(number * 10, number * 10 + 10)))
            found = await files_of(store).segments(ORDERS)
            assert found.messages.next_seq == (number + 1) * 10 + 1
            assert await payloads_of(store) == [b"%d" % n for n in range(number * 10 + 10)]
        await store.close()


async def test_a_log_has_its_segments_in_order_and_an_index_of_each(life: StoreLife) -> None:
    store = await life.open(segment_bytes=65536)
    for _ in range(40):
        await life.publish(b"x" * 5000)
    log = (await files_of(store).segments(ORDERS)).messages
    assert len(log.segments) > 2
    assert [s.end_seq for s in log.segments[:-1]] == [s.base_seq for s in log.segments[1:]]
    assert log.segments[-1].end_seq == log.next_seq == 41
    for segment in log.segments:
        index = await files_of(store).read_index(ORDERS, "messages", segment.base_seq)
        points = memoryview(index)[12:].cast("Q")
        assert points[0] == segment.base_seq
        assert points[-1] < segment.size_bytes
    await store.close()


async def test_a_time_is_looked_up_in_both_logs(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(b"early")
    await asyncio.sleep(10)
    late_ns = life.clock.now_ns()
    await life.publish(b"late")
    await life.lease(1)
    found = await files_of(store).segments(ORDERS, time_ns=late_ns)
    assert (found.messages.seq_at_time, found.events.seq_at_time) == (2, 1)
    assert (await files_of(store).segments(ORDERS, time_ns=late_ns + 1)).messages.seq_at_time == 3
    assert (await files_of(store).segments(ORDERS)).messages.seq_at_time is None
    await store.close()


async def test_events_and_snapshots_are_files_too(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(b"a", b"b")
    await life.lease(2)
    store = await life.reopen()  # closing saves the state
    found = await files_of(store).segments(ORDERS)
    (events,) = found.events.segments
    assert len(await whole(store, "events", events)) == events.size_bytes
    snapshot = found.snapshots[-1]
    read = await files_of(store).read_segment(ORDERS, "snapshots", snapshot.event_seq, 0, None)
    assert (len(read.data), read.data[:4], read.header) == (snapshot.size_bytes, b"PNSS", b"")
    await store.close()


async def test_bad_ranges_and_removed_segments_are_refused(life: StoreLife) -> None:
    store = await life.open()
    await life.publish(b"x" * 100)
    (segment,) = (await files_of(store).segments(ORDERS)).messages.segments
    size = segment.size_bytes
    for start, end in ((0, size + 1), (5, 4), (-1, 2), (size + 1, None)):
        with pytest.raises(InvalidInput, match="can be read"):
            await files_of(store).read_segment(ORDERS, "messages", 1, start, end)
    assert (await files_of(store).read_segment(ORDERS, "messages", 1, size, None)).data == b""
    for log, base in (("messages", 2), ("events", 1), ("snapshots", 77)):
        with pytest.raises(NoSuchSegment, match="list the segments again"):
            await files_of(store).read_segment(ORDERS, log, base, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(NoSuchSegment):
        await files_of(store).read_index(ORDERS, "messages", 2)
    with pytest.raises(InvalidInput, match="no index"):
        await files_of(store).read_index(ORDERS, "snapshots", 1)
    await life.publish(b"x" * (MAX_RANGE_BYTES // 2), b"x" * (MAX_RANGE_BYTES // 2))
    with pytest.raises(TooLarge, match="several calls"):
        await files_of(store).read_segment(ORDERS, "messages", 1, 0, None)
    with pytest.raises(NoSuchQueue):
        await files_of(store).segments(ORDERS._replace(name="nowhere"))
    await store.close()


async def test_what_must_be_archived_first_goes_when_it_is(life: StoreLife) -> None:
    store = await life.open(archive_required=True, segment_bytes=65536, auto_compact=False)
    for _ in range(30):
        await life.publish(b"x" * 5000)
    await store.run(ORDERS, Purge())
    assert await store.run(ORDERS, Compact()) == 0
    first, *_ = (await files_of(store).segments(ORDERS)).messages.segments
    with pytest.raises(InvalidInput, match="as archived"):
        await files_of(store).note_archived(ORDERS, 32)
    assert (await files_of(store).segments(ORDERS)).archive == ""
    await files_of(store).note_archived(ORDERS, first.end_seq, "s3://archive", "shop/orders")
    listed = await files_of(store).segments(ORDERS)
    assert (listed.archive, listed.archived_as) == ("s3://archive", "shop/orders")
    assert await store.run(ORDERS, Compact()) > 0
    assert (await files_of(store).segments(ORDERS)).messages.low == first.end_seq
    await store.close()


# -- bringing segments in --------------------------------------------------------------------------


async def stage(
    store: Store, items: list[bytes | Draft], *, folder: str = FOLDER, parts: int = 1
) -> StagedSegment:
    info = await files_of(store).staging(ORDERS)
    data = staged_segment(info.identity, items)
    step = -(-len(data) // parts)
    for at in range(0, len(data), step):
        await files_of(store).stage(ORDERS, folder, "0.log", at, data[at : at + step])
    return StagedSegment(folder, "0.log", len(items))


async def test_staged_segments_are_messages_once_they_are_adopted(
    life: StoreLife, way: str
) -> None:
    store = await life.open()
    await life.publish(b"before")
    first = await stage(store, [b"a", Draft(b"urgent", priority=9)], parts=3)
    second = await stage(store, [b"b", Draft(b"later", deliver_at_ns=1 << 62)], folder=OTHER)
    assert await payloads_of(store) == [b"before"]
    adopted = await files_of(store).adopt(ORDERS, [first, second], None, 0)
    assert (adopted.first_seq, adopted.entries, adopted.repeated) == (2, 4, False)
    await life.publish(b"behind")
    assert await payloads_of(store) == [b"before", b"a", b"urgent", b"b", b"later", b"behind"]
    assert (await store.run(ORDERS, GetStats())).scheduled == 1
    assert await life.payloads() == [b"urgent", b"before", b"a", b"b", b"behind"]
    store = await life.reopen()
    assert len(await payloads_of(store)) == 6
    assert (await store.run(ORDERS, GetStats())).leased == 5
    with pytest.raises(InvalidInput, match="no staged segment"):
        await files_of(store).adopt(ORDERS, [first], None, 0)  # its folder is gone
    await store.close()


async def test_a_named_job_is_taken_in_once(life: StoreLife, way: str) -> None:
    store = await life.open()
    for version, data, repeated in ((1, b"a", False), (1, b"x", True), (2, b"b", False)):
        staged = await stage(store, [data])
        adopted = await files_of(store).adopt(ORDERS, [staged], "nightly", version)
        assert adopted.repeated is repeated
    store = await life.reopen()
    again = await files_of(store).adopt(ORDERS, [StagedSegment(FOLDER, "0.log", 1)], "nightly", 2)
    assert (again.first_seq, again.repeated) == (2, True)  # though its segments are long gone
    assert await payloads_of(store) == [b"a", b"b"]
    await store.close()


async def test_who_waits_is_told_of_what_is_adopted(life: StoreLife, way: str) -> None:
    store = await life.open()
    store.watch(ORDERS)
    staged = await stage(store, [b"a"])
    life.ready.clear()
    await files_of(store).adopt(ORDERS, [staged], None, 0)
    assert ORDERS in life.ready
    store.unwatch(ORDERS)
    await store.close()


async def test_what_publishing_would_refuse_is_not_adopted(life: StoreLife, way: str) -> None:
    store = await life.open(max_payload_bytes=1000)
    await life.publish(b"mine")
    (mine,) = await life.lease(1)
    bad: list[tuple[list[bytes | Draft], type[Exception], str]] = [
        ([b"x" * 1001], PayloadTooLarge, "1001 bytes"),
        ([Draft(b"", key=b"k" * 1025)], TooLarge, "key"),
        ([Draft(b"", key=b"\xff")], InvalidInput, "not text"),
        ([Draft(b"", headers={"a": "x" * 65_000, "b": "x" * 65_000})], TooLarge, "headers"),
        ([Draft(b"", headers={str(n): "" for n in range(257)})], TooLarge, "257|headers"),
        ([Draft(b"", headers={"a\r\nc": "d"})], InvalidInput, "line break"),
        ([Draft(b"", attributes={SETTLES: b"anything"})], InvalidInput, "only the queue"),
        ([Draft(b"", attributes={DEDUP: b"anything"})], InvalidInput, "only the queue"),
        ([Draft(b"", attributes={MAX_ATTEMPTS: b"\0\0\0\0"})], InvalidInput, "attribute 2"),
        ([Draft((5).to_bytes(8, "little"), type=2)], InvalidInput, "0 messages"),
    ]
    for items, error, said in bad:
        with pytest.raises(error, match=said):
            await files_of(store).adopt(
                ORDERS, [await stage(store, [b"good", *items][-1:])], "job", 1
            )
        await files_of(store).unstage(ORDERS, FOLDER)
    assert await payloads_of(store) == [b"mine"]
    assert (await store.settle(ORDERS, [Settlement("ack", mine.receipt)]))[0].ok
    good = await stage(store, [b"good"])
    assert not (await files_of(store).adopt(ORDERS, [good], "job", 1)).repeated
    await store.close()


async def test_damaged_or_foreign_segments_are_not_adopted(life: StoreLife, way: str) -> None:
    store = await life.open()
    staged = await stage(store, [b"a" * 50, b"b" * 50])
    await files_of(store).stage(ORDERS, FOLDER, "0.log", 100, b"!")
    with pytest.raises(InvalidInput, match="not what was written|messages, not 2"):
        await files_of(store).adopt(ORDERS, [staged], None, 0)
    await files_of(store).unstage(ORDERS, FOLDER)
    await files_of(store).unstage(ORDERS, FOLDER)  # nothing happens
    await files_of(store).stage(
        ORDERS, FOLDER, "0.log", 0, staged_segment(1, [b"of another queue"])
    )
    with pytest.raises(InvalidInput, match="was not staged for this queue"):
        await files_of(store).adopt(ORDERS, [StagedSegment(FOLDER, "0.log", 1)], None, 0)
    assert (await files_of(store).segments(ORDERS)).messages.next_seq == 1
    await store.close()


async def test_names_and_sizes_of_what_is_staged_are_checked(life: StoreLife) -> None:
    store = await life.open()
    await files_of(store).staging(ORDERS)
    for folder, name in (
        ("..", "0.log"),
        ("../../x", "0.log"),
        (FOLDER, "../0.log"),
        (FOLDER, "LOCK"),
        (FOLDER.upper(), "0.log"),
        ("", ""),
    ):
        with pytest.raises(InvalidInput):
            await files_of(store).stage(ORDERS, folder, name, 0, b"x")
    for offset, data in ((-1, b"x"), (1 << 40, b"x"), (0, bytes(MAX_RANGE_BYTES + 1))):
        with pytest.raises(TooLarge):
            await files_of(store).stage(ORDERS, FOLDER, "0.log", offset, data)
    with pytest.raises(InvalidInput, match="printable"):
        await files_of(store).adopt(ORDERS, [], "line\nbreak", 1)
    await store.close()


async def test_a_queue_with_a_bound_takes_no_segments(life: StoreLife) -> None:
    store = await life.open(max_messages=10)
    with pytest.raises(InvalidInput, match="max_messages is 10"):
        await files_of(store).staging(ORDERS)
    await store.close()
