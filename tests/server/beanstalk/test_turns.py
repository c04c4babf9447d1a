"""One connection does a bounded amount of work in a turn of the event loop."""

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from penstock.server.beanstalk.connection import Connection
from penstock.server.beanstalk.reserved_jobs import ReservedJobs
from tests.server.beanstalk.fake_transport import FakeTransport, in_loop
from tests.server.beanstalk.wire import Talk, beanstalk_server, listener_of, talk_to
from tests.server.running import RunningServer


async def commands_by_turn(
    server: RunningServer, connection: Connection, data: bytes, name: str
) -> list[int]:
    """Return how many commands were handled in each turn of the loop."""
    counts: Counter[str] = listener_of(server).commands
    found, before = [], counts[name]
    connection.data_received(data)
    while True:
        found.append(counts[name] - before)
        before = counts[name]
        if sum(found) == data.count(name.encode()):
            return found
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("command", "most"),
    [
        (b"reserve-with-timeout 0\r\n", 100),
        (b"list-tube-used\r\n", 100),
        (b"delete 99\r\n", 100),
        (b"put 0 0 60 1\r\nx\r\n", 100),
        (b"put 65536 0 60 1\r\nx\r\n", 1000),
        (b"put 65536 0 60 4000\r\n" + b"x" * 4000 + b"\r\n", 140),  # 512 KiB of bodies
    ],
)
def test_a_turn_handles_a_bounded_number_of_commands(
    server: RunningServer, talk: Talk, tube: bytes, command: bytes, most: int
) -> None:
    for _ in range(3):
        talk.put(b"x")
    name = command.split()[0].decode()
    flooded = command * (3000 if len(command) < 1000 else 500)

    async def flood(connection: Connection, transport: FakeTransport) -> list[int]:
        connection.data_received(b"use %s\r\nwatch %s\r\nignore default\r\n" % (tube, tube))
        await asyncio.sleep(0)
        return await commands_by_turn(server, connection, flooded, name)

    assert max(in_loop(server, flood)) <= most


def test_answers_of_many_turns_are_in_order(server: RunningServer) -> None:
    async def ask(connection: Connection, transport: FakeTransport) -> bytes:
        lines = [b"use t%d\r\n" % number for number in range(1000)]
        await commands_by_turn(server, connection, b"".join(lines), "use")
        await asyncio.sleep(0)
        return transport.written

    expected = b"".join(b"USING t%d\r\n" % number for number in range(1000))
    assert in_loop(server, ask) == expected


def test_a_reserve_without_a_job_does_not_look_at_all_jobs() -> None:
    class Watched(ReservedJobs):
        looks = 0

        def values(self) -> Any:
            type(self).looks += 1
            return super().values()

    class Tube:
        base = 0

    def leased(seq: int) -> Any:
        return ("id", seq), ()

    jobs = Watched()
    for seq in range(100):
        jobs.keep(leased(seq), cast(Any, Tube), 60 + seq, 0.0)
    for _ in range(1000):
        assert not jobs.ends_within(1.0, now=10.0)
        assert jobs.first_end(10.0) == 60.0
    assert jobs.looks == 0
    del jobs[0]
    for _ in range(1000):
        assert not jobs.ends_within(1.0, now=10.0)
    assert jobs.looks == 0
    for _ in range(1000):
        assert jobs.first_end(10.0) == 61.0
    assert jobs.looks == 2
    jobs[1].ends = 500.0  # touched
    assert jobs.first_end(10.0) == 62.0
    assert jobs.ends_within(1.0, now=61.5)
    assert jobs.first_end(70.0) == 71.0
    assert 5 not in jobs
    jobs.clear()
    assert jobs.first_end(70.0) == float("inf")
    assert not jobs.ends_within(1.0, now=70.0)


def test_many_jobs_of_a_closed_connection_are_given_back_a_part_at_a_time(
    server: RunningServer, talk: Talk, tube: bytes
) -> None:
    talk.ask(*[b"put 65536 0 60 1\r\nx"] * 1000)

    async def reserve_all(connection: Connection, transport: FakeTransport) -> int:
        connection.data_received(b"watch %s\r\nignore default\r\n" % tube)
        reserves = b"reserve-with-timeout 0\r\n" * 1000
        await commands_by_turn(server, connection, reserves, "reserve-with-timeout")
        await asyncio.sleep(0)
        return transport.written.count(b"RESERVED")

    broker = server.server.broker
    settle, sizes = broker.settle, []

    def watched(caller: Any, settlements: Any, *more: Any) -> Any:
        sizes.append(len(settlements))
        return settle(caller, settlements, *more)

    broker.settle = watched  # type: ignore[method-assign, assignment]
    try:
        assert in_loop(server, reserve_all) == 1000
        with talk_to(server) as other:
            other.ask(b"watch " + tube, b"ignore default")
            taken = [other.reserve(20) for _ in range(1000)]
    finally:
        del broker.settle
    assert None not in taken
    assert sizes and max(sizes) == 100


# -- HTTP ------------------------------------------------------------------------------------------

REQUESTS = {
    "post": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n",
    "long": b"POST /" + b"x" * 500 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "cut": b"GET /" + b"x" * 500,
    "command as method": b"reserve /x HTTP/1.0\r\n\r\n",
    "put as method": b"put /x HTTP/1.1\r\n\r\n",
    "host": b"x\r\nhOsT: 127.0.0.1:11300\r\n",
    "absolute": b"GET http://x/" + b"y" * 300 + b" HTTP/1.1\r\n",
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_commands_in_an_http_request_are_not_run(
    server: RunningServer, talk: Talk, tube: bytes, kind: str
) -> None:
    refused = listener_of(server).refusals("http")
    with talk_to(server) as http:
        http.send(REQUESTS[kind] + b"use %s\r\nput 0 0 60 4\r\nevil\r\n" % tube)
        assert http.is_closed()
    assert talk.reserve() is None
    assert listener_of(server).refusals("http") == refused + 1


def test_an_http_request_is_logged_once(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    with beanstalk_server(tmp_path_factory.mktemp("http") / "data") as server:
        for _ in range(3):
            with talk_to(server) as http:
                http.send(REQUESTS["post"])
                assert http.is_closed()
    assert caplog.text.count("an HTTP request was sent to the beanstalk port") == 1


def test_a_body_may_be_an_http_request(talk: Talk) -> None:
    body = REQUESTS["post"]
    id_ = talk.put(body)
    assert talk.reserve() == (id_, body)
