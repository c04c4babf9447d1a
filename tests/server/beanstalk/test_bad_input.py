"""Hostile clients: malformed, huge, slow and half-sent. The server goes on, and keeps no memory."""

import socket
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.server.listeners import parse_address
from tests.server.beanstalk.wire import Talk, beanstalk_server, listener_of, talk_to
from tests.server.running import RunningServer


def held_bytes(server: RunningServer) -> int:
    return server.server.service.held.bytes


def test_a_body_that_is_too_large_is_skipped_and_nothing_is_kept(tmp_path: Path) -> None:
    with beanstalk_server(tmp_path / "data", max_body_bytes=10_000) as server:
        with talk_to(server) as talk:
            talk.send(b"put 0 0 60 1000000\r\n")
            for _ in range(100):
                talk.send(b"x" * 10_000)
            talk.send(b"\r\nlist-tube-used\r\n")
            assert [talk.answer(), talk.answer()] == [b"JOB_TOO_BIG", b"USING default"]
            talk.send(b"put 0 0 60 10001\r\n" + b"x" * 10_001 + b"\r\nlist-tube-used\r\n")
            assert [talk.answer(), talk.answer()] == [b"JOB_TOO_BIG", b"USING default"]
            talk.put(b"x" * 10_000)
        assert held_bytes(server) == 0


def test_the_limit_of_the_queue_counts_too(server: RunningServer, talk: Talk, tube: bytes) -> None:
    talk.put(b"x" * 5000)
    with server.client() as http:
        path = f"/api/v1/namespaces/default/queues/{tube.decode()}"
        http.patch(path, json={"max_payload_bytes": 1000}).raise_for_status()
    answers = talk.ask(*[b"put 65536 0 60 1001\r\n" + b"x" * 1001, b"put 65536 0 60 1\r\nx"] * 3)
    assert answers[::2] == [b"JOB_TOO_BIG"] * 3
    assert all(answer.startswith(b"INSERTED") for answer in answers[1::2])


def test_a_large_body_in_small_pieces_arrives_whole(talk: Talk) -> None:
    body = bytes(range(256)) * 400
    talk.send(b"put 1 0 60 %d\r\n" % len(body))
    for at in range(0, len(body), 1000):
        talk.send(body[at : at + 1000])
    talk.send(b"\r\n")
    assert talk.answer().startswith(b"INSERTED")
    taken = talk.reserve()
    assert taken is not None and taken[1] == body


@pytest.mark.parametrize(
    "half", [b"put 0 0 60 5", b"put 0 0 60 5\r\nab", b"put 0 0 60 90000\r\nab", b"x" * 500]
)
def test_a_half_sent_command_is_closed_after_its_time(tmp_path: Path, half: bytes) -> None:
    limits = {"header_timeout_s": 0.2, "body_timeout_s": 0.2}
    with beanstalk_server(tmp_path / "data", **limits) as server:
        with talk_to(server) as slow, talk_to(server) as idle:
            slow.send(b"list-tube-used\r\n" + half)
            assert slow.answer() == b"USING default"
            if b"90000" not in half:  # that one has a second more for each 64 KiB
                assert slow.is_closed()
            assert idle.one(b"list-tube-used") == b"USING default"
        server.until(lambda: not server.server.service.connections)
        assert held_bytes(server) == 0


def test_a_client_that_reads_nothing_is_closed_and_its_job_given_back(tmp_path: Path) -> None:
    with beanstalk_server(tmp_path / "data", idle_timeout_s=0.3) as server:
        with talk_to(server) as talk, talk_to(server, receive_buffer_bytes=4096) as deaf:
            id_ = talk.put(b"x" * 1_000_000)
            assert deaf.reserve() == (id_, b"x" * 1_000_000)
            deaf.socket.setblocking(False)
            try:
                while True:
                    deaf.socket.send(b"peek %d\r\n" % id_ * 100)
            except BlockingIOError:
                pass
            assert talk.one(b"reserve-with-timeout 20").startswith(b"RESERVED %d " % id_)
        server.until(lambda: not server.server.service.connections)
        assert held_bytes(server) == 0


def test_a_flood_of_commands_does_not_keep_others_waiting(server: RunningServer) -> None:
    with talk_to(server) as flood, talk_to(server) as other:
        flood.send(b"list-tube-used\r\n" * 5000)
        assert other.one(b"list-tube-used") == b"USING default"
        assert [flood.answer() for _ in range(5000)] == [b"USING default"] * 5000


def test_too_many_connections_are_refused(tmp_path: Path) -> None:
    with (
        beanstalk_server(tmp_path / "data", max_connections=2) as server,
        talk_to(server) as one,
        talk_to(server) as two,
    ):
        assert one.ask(b"list-tube-used") == two.ask(b"list-tube-used")
        with talk_to(server) as three:
            assert three.answer() == b"OUT_OF_MEMORY"
            assert three.is_closed()


def test_too_many_watched_tubes_are_refused(server: RunningServer) -> None:
    with talk_to(server) as talk:
        answers = talk.ask(*(b"watch many-%d" % number for number in range(1005)))
        assert answers[998] == b"WATCHING 1000"
        assert set(answers[999:]) == {b"OUT_OF_MEMORY"}
    tubes = listener_of(server).tubes
    server.until(lambda: not any(name.startswith("many-") for name in tubes.names()))


def test_a_full_queue_is_out_of_memory(server: RunningServer, talk: Talk, tube: bytes) -> None:
    talk.put(b"x")
    with server.client() as http:
        path = f"/api/v1/namespaces/default/queues/{tube.decode()}"
        http.patch(path, json={"max_messages": 2}).raise_for_status()
    answers = talk.ask(*[b"put 65536 0 60 1\r\nx"] * 3)
    assert [answer.split()[0] for answer in answers] == [
        b"INSERTED",
        b"OUT_OF_MEMORY",
        b"OUT_OF_MEMORY",
    ]


def test_a_half_closed_connection_gets_its_answers(server: RunningServer, talk: Talk) -> None:
    talk.send(b"put 65536 0 60 1\r\nx\r\nreserve\r\nreserve\r\n")
    talk.socket.shutdown(socket.SHUT_WR)
    assert talk.answer().startswith(b"INSERTED")
    assert talk.answer().startswith(b"RESERVED")
    assert talk.answer() == b"TIMED_OUT"
    assert talk.is_closed()


def test_names_are_told_apart_by_listeners() -> None:
    assert parse_address("beanstalk", "[::1]:11300") == ("::1", 11300)
    for wrong in ("11300", "host", "host:port", "host:70000", "a:b:1", ""):
        with pytest.raises(InvalidInput, match="beanstalk is"):
            parse_address("beanstalk", wrong)
