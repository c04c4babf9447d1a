"""What happens to jobs: connections that close, waiting, other interfaces, restarts."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.server.beanstalk.mapping import SEQ_BITS
from tests.server.beanstalk.wire import Talk, beanstalk_server, talk_to
from tests.server.running import RunningServer, queue_path


def test_a_closed_connection_gives_its_jobs_back_without_counting(
    server: RunningServer, talk: Talk, tube: bytes
) -> None:
    ids = [talk.put(b"%d" % number) for number in range(3)]
    with talk_to(server) as other:
        other.ask(b"watch " + tube, b"ignore default")
        taken = [other.reserve() for _ in range(3)]
        assert [one[0] for one in taken if one is not None] == ids
    again = [talk.reserve(10) for _ in range(3)]  # in the same order
    assert [one[0] for one in again if one is not None] == ids
    assert talk.stats(b"stats-job %d" % ids[0])["timeouts"] == "0"


def test_a_job_whose_client_says_nothing_is_ready_after_its_time(
    server: RunningServer, talk: Talk, tube: bytes
) -> None:
    id_ = talk.put(b"x", ttr=1)
    assert talk.reserve() == (id_, b"x")
    assert talk.one(b"reserve-with-timeout 5") == b"DEADLINE_SOON"
    with talk_to(server) as other:
        other.ask(b"watch " + tube, b"ignore default")
        assert other.reserve(10) == (id_, b"x")
        assert talk.stats(b"stats-job %d" % id_)["timeouts"] == "1"
    assert talk.one(b"touch %d" % id_) == b"NOT_FOUND"


def test_a_touched_job_lives_on(talk: Talk) -> None:
    id_ = talk.put(b"x", ttr=100)
    assert talk.reserve() == (id_, b"x")
    assert talk.one(b"touch %d" % id_) == b"TOUCHED"
    assert int(talk.stats(b"stats-job %d" % id_)["time-left"]) in (99, 100)
    assert talk.one(b"delete %d" % id_) == b"DELETED"


def test_each_job_has_its_own_time_to_run(talk: Talk) -> None:
    """The lease is extended if the last job had another."""
    for ttr in (50, 500, 60, 60, 5000):
        id_ = talk.put(b"x", ttr=ttr)
        assert talk.reserve() == (id_, b"x")
        found = talk.stats(b"stats-job %d" % id_)
        assert found["ttr"] == str(ttr)
        assert int(found["time-left"]) in (ttr - 1, ttr)
        assert talk.one(b"delete %d" % id_) == b"DELETED"


def test_a_reserve_waits_in_all_tubes_and_gets_one_job(server: RunningServer, talk: Talk) -> None:
    with talk_to(server) as worker:
        worker.ask(b"watch wait-1", b"watch wait-2", b"watch wait-3", b"ignore default")
        worker.send(b"reserve\r\n")
        for tube in (b"wait-2", b"wait-3", b"wait-1"):
            talk.one(b"use " + tube)
            talk.put(tube)
        assert worker.answer().endswith(b"wait-2")
        rest = {worker.reserve(10), worker.reserve(10)}
        assert {one[1] for one in rest if one is not None} == {b"wait-1", b"wait-3"}


def test_tubes_take_turns(server: RunningServer, talk: Talk) -> None:
    for tube in (b"turn-1", b"turn-2"):
        talk.one(b"use " + tube)
        for _ in range(3):
            talk.put(tube)
    talk.ask(b"watch turn-1", b"watch turn-2")
    bodies = [one[1] for one in (talk.reserve() for _ in range(6)) if one is not None]
    assert bodies == [b"turn-1", b"turn-2"] * 3


def test_a_pause_holds_a_waiting_reserve_until_it_ends(
    server: RunningServer, talk: Talk, tube: bytes
) -> None:
    with talk_to(server) as worker:
        worker.ask(b"watch " + tube, b"ignore default")
        worker.send(b"reserve-with-timeout 20\r\n")
        talk.one(b"pause-tube " + tube + b" 3600")
        id_ = talk.put(b"x")
        found = talk.stats(b"stats-tube " + tube)
        assert (found["current-jobs-ready"], found["pause"]) == ("1", "3600")
        talk.one(b"pause-tube " + tube + b" 0")
        assert worker.answer() == b"RESERVED %d 1\r\nx" % id_


def test_pipelined_puts_keep_their_order_and_are_answered_in_order(talk: Talk) -> None:
    """The first of them creates the tube; some have options."""
    sent = []
    for number in range(300):
        pri = 65536 if number % 3 else 2000
        sent.append(b"put %d 0 60 %d\r\n%d" % (pri, len(b"%d" % number), number))
    answers = talk.ask(*sent)
    ids = [int(answer.removeprefix(b"INSERTED ")) for answer in answers]
    assert ids == sorted(ids) and len(set(ids)) == 300
    found = [talk.reserve() for _ in range(300)]
    assert [one[0] for one in found if one is not None] == ids
    assert [one[1] for one in found if one is not None] == [b"%d" % n for n in range(300)]
    answers = talk.ask(*(b"delete %d" % id_ for id_ in ids))
    assert answers == [b"DELETED"] * 300


def test_http_and_beanstalk_share_a_queue(server: RunningServer, talk: Talk, tube: bytes) -> None:
    id_ = talk.put(b"from beanstalk", pri=7, ttr=90)
    with server.client() as http:
        leased = http.post(queue_path(tube.decode(), "lease") + "?payload=b64").json()["messages"][
            0
        ]
        assert leased["headers"] == {"beanstalk-pri": "7", "beanstalk-ttr": "90"}
        assert leased["priority"] == 8
        assert talk.one(b"delete %d" % id_) == b"NOT_FOUND"
        http.post("/api/v1/settle", json={"ack": [leased["receipt"]]}).raise_for_status()
        assert talk.one(b"peek %d" % id_) == b"NOT_FOUND"
        http.post(queue_path(tube.decode(), "messages"), json={"payload": {"a": 1}})
    taken = talk.reserve()
    assert taken is not None and taken[1] == b'{"a":1}'
    found = talk.stats(b"stats-job %d" % taken[0])
    assert (found["pri"], found["ttr"]) == ("65536", "60")


def test_ids_are_not_used_again_by_a_tube_that_was_deleted(
    server: RunningServer, talk: Talk, tube: bytes
) -> None:
    first = talk.put(b"x")
    with server.client() as http:
        http.delete(queue_path(tube.decode())).raise_for_status()
    assert talk.one(b"peek %d" % first) == b"NOT_FOUND"
    assert talk.one(b"delete %d" % first) == b"NOT_FOUND"
    second = talk.put(b"y")
    assert second >> SEQ_BITS != first >> SEQ_BITS
    assert talk.one(b"peek %d" % first) == b"NOT_FOUND"
    assert talk.one(b"peek %d" % second).endswith(b"y")


def test_all_is_as_it_was_after_a_restart(tmp_path: Path) -> None:
    with beanstalk_server(tmp_path / "data") as server, talk_to(server) as talk:
        talk.one(b"use a/b")
        buried, delayed, ready = (
            talk.put(b"buried"),
            talk.put(b"delayed", delay=3600),
            talk.put(b"r"),
        )
        talk.ask(b"watch a/b", b"ignore default")
        assert talk.reserve() == (buried, b"buried")
        talk.one(b"bury %d 0" % buried)
    with beanstalk_server(tmp_path / "data") as server, talk_to(server) as talk:
        talk.one(b"use a/b")
        assert talk.one(b"peek-buried") == b"FOUND %d 6\r\nburied" % buried
        assert talk.one(b"peek-delayed") == b"FOUND %d 7\r\ndelayed" % delayed
        assert talk.one(b"peek-ready") == b"FOUND %d 1\r\nr" % ready
        assert talk.stats(b"stats-job %d" % buried)["buries"] == "1"


def _serve(data: Path) -> "tuple[subprocess.Popen[str], int]":
    command = [sys.executable, "-m", "penstock", "serve", str(data), "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--beanstalk", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PENSTOCK_QUEUES_MIN_FREE_BYTES": "0"},
    )
    assert process.stdout is not None
    urls = json.loads(process.stdout.readline())["urls"]
    process.stdout.close()
    return process, int(urls[-1].rpartition(":")[2])


def test_killed_broker_keeps_every_job_that_was_answered(tmp_path: Path) -> None:
    """Reserved jobs are ready when their time to run is over; the others are as they were."""
    process, port = _serve(tmp_path / "data")
    with process, Talk(port) as talk:
        ids = [talk.put(b"%d" % number, ttr=1) for number in range(20)]
        reserved, buried, deleted = (talk.reserve() for _ in range(3))
        assert reserved is not None and buried is not None and deleted is not None
        assert talk.one(b"bury %d 0" % buried[0]) == b"BURIED"
        assert talk.one(b"delete %d" % deleted[0]) == b"DELETED"
        delayed = talk.put(b"delayed", delay=3600)
        talk.send(b"put 0 0 1 5\r\nhalf")
        process.send_signal(signal.SIGKILL)
        process.wait()
    process, port = _serve(tmp_path / "data")
    with process, Talk(port) as talk:
        assert talk.one(b"peek-buried").startswith(b"FOUND %d " % buried[0])
        assert talk.one(b"peek-delayed").startswith(b"FOUND %d " % delayed)
        assert talk.one(b"peek %d" % deleted[0]) == b"NOT_FOUND"
        found = []
        for _ in range(18):  # the reserved one is ready again within a second
            taken = talk.reserve(10)
            assert taken is not None
            found.append(taken[0])
            assert talk.one(b"delete %d" % taken[0]) == b"DELETED"
        assert sorted([*found, buried[0], deleted[0]]) == ids
        process.send_signal(signal.SIGTERM)
        talk.close()
        assert process.wait(30) == 0
