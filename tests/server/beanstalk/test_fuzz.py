"""Any bytes, cut anywhere: the same answers, no error, nothing left behind."""

import asyncio
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.server.beanstalk.command_reader import CommandReader
from penstock.server.beanstalk.commands import Put, Unreadable, is_http, parse
from penstock.server.beanstalk.connection import Connection
from penstock.server.beanstalk.mapping import queue_name_of, tube_of
from tests.server.beanstalk.fake_transport import FakeTransport, in_loop
from tests.server.beanstalk.wire import listener_of
from tests.server.running import RunningServer


class Recorder:
    """A connection that notes what the reader reads."""

    def __init__(self) -> None:
        self.must_wait = self.is_ending = False
        self.seen: list[Any] = []

    def put_batch(self, bodies: list[bytes], size: int) -> None:
        assert size == sum(map(len, bodies))
        self.seen += [("put", body) for body in bodies]

    def put(self, head: Put, body: bytes) -> None:
        assert len(body) == head.size
        self.seen.append(("put", body))

    def run_line(self, line: bytes) -> None:
        try:
            self.seen.append(parse(line))
        except Unreadable as error:
            self.refuse_line(line, str(error))

    def refuse_line(self, line: bytes, text: str) -> None:
        if is_http(line):
            self.close_http()
        else:
            self.refuse(text)

    def close_http(self) -> None:
        self.is_ending = True
        self.seen.append("http")

    def refuse(self, text: str) -> None:
        assert text in ("BAD_FORMAT", "UNKNOWN_COMMAND", "EXPECTED_CRLF", "JOB_TOO_BIG"), text
        self.seen.append(text)

    def refusal_of_size(self, size: int) -> str | None:
        return "JOB_TOO_BIG" if size > 10_000 else None

    def expect_body(self, size: int) -> None:
        pass

    def yield_turn(self) -> None:
        self.must_wait = True


def read(pieces: list[bytes]) -> tuple[list[Any], int]:
    recorder = Recorder()
    reader = CommandReader(cast(Any, recorder))
    for piece in pieces:
        reader.feed(piece)
        while True:
            reader.read_on()
            if recorder.is_ending:
                return recorder.seen, 0
            if not recorder.must_wait:
                break
            recorder.must_wait = False
            reader.begin_turn()
    return recorder.seen, len(reader.rest) + reader.body_bytes


COMMANDS = st.one_of(
    st.builds(
        lambda body, pri, delta: b"put %d 0 60 %d\r\n%s\r\n" % (pri, len(body) + delta, body),
        st.one_of(st.binary(max_size=40), st.binary(max_size=9).map(lambda body: body * 1500)),
        st.sampled_from([0, 65536]),
        st.sampled_from([0, 0, 0, 0, 1, -1, 20_000]).map(lambda delta: max(delta, 0)),
    ),
    st.sampled_from(
        [
            b"reserve\r\n",
            b"use tube\r\n",
            b"delete 17\r\n",
            b"release 1 2 3\r\n",
            b"x" * 300 + b"\r\n",
            b"\r\n",
            b"\r",
            b"\n",
            b"put 65536 0 60 3\r\nabc\r\n" * 5,
            b"kick 99999999999999999999\r\n",
            b"watch \xff\r\n",
            b"list-tubes\0\r\n",
            b"GET / HTTP/1.1\r\n",
            b"POST /" + b"x" * 300 + b" HTTP/1.1\r\n",
            b"host: x\r\n",
        ]
    ),
    st.binary(max_size=30),
)


@given(st.lists(COMMANDS, max_size=12).map(b"".join), st.lists(st.integers(0, 2000), max_size=12))
def test_any_chunking_reads_the_same_commands(data: bytes, cuts: list[int]) -> None:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert b"".join(pieces) == data
    seen, kept = read([data])
    assert read(pieces)[0] == seen
    assert kept <= max(len(data), 0) and kept <= 10_002 + 222 + 4096


@given(st.binary(max_size=400))
def test_any_line_is_a_command_or_refused(line: bytes) -> None:
    try:
        parse(line.replace(b"\r\n", b""))
    except Unreadable as error:
        assert str(error) in ("BAD_FORMAT", "UNKNOWN_COMMAND")


@given(st.text(st.sampled_from("abzAZ09-+/;.$_()é b"), min_size=1, max_size=70))
def test_tubes_and_queues_map_exactly(name: str) -> None:
    queue = queue_name_of(name)
    if queue is not None:
        assert tube_of(queue) == name
    tube = tube_of(name)
    if tube is not None:
        assert queue_name_of(tube) == name


def test_commands_are_read_in_order() -> None:
    assert read([b"reserve\r\nput 0 0 1 1\r\na\r\n"])[0] == [("reserve", ()), ("put", b"a")]


def test_the_fuzz_of_the_reader_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def feed(reader: CommandReader, data: bytes) -> None:
        reader.rest += data.removesuffix(b"\r")  # a CR at the end of a packet is lost

    monkeypatch.setattr(CommandReader, "feed", feed)
    with pytest.raises(AssertionError):
        test_any_chunking_reads_the_same_commands()


# -- a whole connection ----------------------------------------------------------------------------

PATIENCE_S = 20.0

ANSWERED = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"put 65536 0 60 1\r\nx",
                b"put 0 0 1 2\r\nxy",
                b"put 7 100 5 0\r\n",
                b"reserve-with-timeout 0",
                b"reserve-job 1",
                b"peek-ready",
                b"peek-delayed",
                b"peek-buried",
                b"kick 3",
                b"stats",
                b"stats-tube fuzz",
                b"list-tubes",
                b"list-tubes-watched",
                b"list-tube-used",
                b"use fuzz",
                b"watch fuzz",
                b"watch other",
                b"ignore fuzz",
                b"ignore default",
                b"pause-tube fuzz 0",
                b"",
                b"put 1 1",
                b"release 99999999999999999999 1 1",
            ]
        ),
        st.builds(
            lambda word, number: b"%s %d" % (word, number),
            st.sampled_from([b"delete", b"touch", b"kick-job", b"peek", b"stats-job", b"bury 1"]),
            st.integers(0, 40),
        ),
        st.builds(lambda number: b"release %d 0 0" % number, st.integers(0, 40)),
    ),
    min_size=1,
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(commands=ANSWERED, cuts=st.lists(st.integers(0, 500), max_size=6))
def test_every_command_has_one_answer_and_none_is_a_fault(
    server: RunningServer, commands: list[bytes], cuts: list[int]
) -> None:
    assert answers_of(server, b"".join(one + b"\r\n" for one in commands), cuts, len(commands))


def answers_of(server: RunningServer, data: bytes, cuts: list[int], count: int) -> bool:
    """Send bytes in pieces. Return whether so many answers come, and no internal error."""
    service = server.server.service

    async def send(connection: Connection, transport: FakeTransport) -> bool:
        ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
        for start, end in zip([0, *ends], ends, strict=False):
            connection.data_received(data[start:end])
        async with asyncio.timeout(PATIENCE_S):
            while len(found := split(transport.written)) < count:
                await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        return split(transport.written) == found and b"INTERNAL_ERROR" not in found

    held = service.held.bytes
    is_right: bool = in_loop(server, send)
    server.until(lambda: service.held.bytes == held)
    assert not listener_of(server).connections
    return is_right


def split(data: bytes) -> list[bytes]:
    """Return the first words of complete answers."""
    found = []
    while data:
        line, end, data = data.partition(b"\r\n")
        words = line.split()
        if not end:
            break
        if words[0] in (b"OK", b"FOUND", b"RESERVED"):
            size = int(words[-1]) + 2
            if len(data) < size:
                break
            data = data[size:]
        found.append(words[0])
    return found


def test_the_fuzz_of_a_connection_finds_a_planted_bug(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(connection: Connection, data: bytes) -> None:
        if data != b"NOT_IGNORED\r\n":
            original(connection, data)

    original = Connection.answer
    assert answers_of(server, b"ignore default\r\nuse x\r\n", [], 2)
    monkeypatch.setattr(Connection, "answer", answer)
    monkeypatch.setattr(f"{__name__}.PATIENCE_S", 0.2)
    with pytest.raises(TimeoutError):
        answers_of(server, b"ignore default\r\nuse x\r\n", [], 2)
