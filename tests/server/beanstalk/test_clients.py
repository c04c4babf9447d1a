"""Real clients: greenstalk and pystalkd."""

from collections.abc import Iterator

import greenstalk
import pytest
from pystalkd.Beanstalkd import Connection as Pystalkd

from tests.server.beanstalk.wire import listener_of
from tests.server.running import RunningServer


@pytest.fixture
def green(server: RunningServer, tube: bytes) -> Iterator["greenstalk.Client[str]"]:
    name = tube.decode()
    with greenstalk.Client(
        ("127.0.0.1", listener_of(server).port), use=name, watch=[name]
    ) as client:
        yield client


def test_greenstalk_puts_and_works(green: "greenstalk.Client[str]") -> None:
    first = green.put("a", priority=10, ttr=5)
    second = green.put("b", delay=3600)
    assert green.peek(second).body == "b"
    assert green.peek_delayed().id == second
    job = green.reserve(timeout=1)
    assert (job.id, job.body) == (first, "a")
    green.touch(job)
    assert green.stats_job(job)["pri"] == 10
    assert green.stats_job(job)["state"] == "reserved"
    assert green.stats_job(job)["reserves"] == 1  # at once, before the lease is on disk
    green.release(job)
    job = green.reserve(timeout=0)
    green.bury(job)
    assert green.peek_buried().id == first
    assert green.kick(5) == 1
    job = green.reserve_job(first)
    green.delete(job)
    green.kick_job(second)
    assert green.reserve(timeout=0).id == second
    with pytest.raises(greenstalk.NotFoundError):
        green.delete(first)
    with pytest.raises(greenstalk.TimedOutError):
        green.reserve(timeout=0)


def test_greenstalk_looks(green: "greenstalk.Client[str]", tube: bytes) -> None:
    name = tube.decode()
    green.put("x", priority=1)
    assert green.using() == name
    assert green.watching() == [name]
    assert name in green.tubes()
    found = green.stats_tube(name)
    assert (found["current-jobs-ready"], found["current-jobs-urgent"]) == (1, 1)
    assert green.stats()["current-jobs-ready"] >= 1
    green.pause_tube(name, 3600)
    with pytest.raises(greenstalk.TimedOutError):
        green.reserve(timeout=0)
    green.pause_tube(name, 0)
    assert green.reserve(timeout=5).body == "x"


def test_pystalkd_puts_and_works(server: RunningServer, tube: bytes) -> None:
    client = Pystalkd("127.0.0.1", listener_of(server).port)
    try:
        client.use(tube.decode())
        client.watch(tube.decode())
        id_ = client.put("hello", ttr=2)
        job = client.reserve(0)
        assert (job.job_id, job.body) == (id_, "hello")
        assert job.stats()["ttr"] == 2
        job.bury()
        assert client.kick() == 1
        job = client.reserve(0)
        job.delete()
        assert client.reserve(0) is None
    finally:
        client.close()
