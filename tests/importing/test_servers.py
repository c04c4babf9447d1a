"""Import from beanstalkd's binlog and from Redis, written by the real servers and their clients."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import greenstalk
import pytest
from celery import Celery
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisDown
from redis.retry import Retry
from rq import Queue as RqQueue

import penstock
from penstock.importing.beanstalkd import BeanstalkdLog
from penstock.importing.record import ImportFailed
from penstock.importing.redis_keys import RedisKey
from penstock.importing.writing import import_queue
from tests.server.beanstalk.wire import real_beanstalkd


def test_jobs_of_beanstalkd_keep_state_time_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with real_beanstalkd("-b", str(tmp_path / "log"), "-f0") as port:
        client = greenstalk.Client(("127.0.0.1", port), encoding=None, use="mail", watch="mail")
        client.put(b"first", priority=2000)
        client.put(b"urgent", priority=0, ttr=120)
        client.put(b"later", delay=86_400)
        client.put(b"buried")
        client.put(b"deleted")
        client.put(b"released", priority=10)
        held = {one.body: one for one in (client.reserve() for _ in range(5))}
        client.bury(held[b"buried"])
        client.delete(held[b"deleted"])
        for body in (b"released", b"first", b"urgent"):
            client.release(held[body])
        client.use("other")
        client.put(b"in another tube")
        client.close()
    with pytest.raises(ImportFailed, match="mail, other: choose one with --queue"):
        BeanstalkdLog(str(tmp_path / "log"))
    source = BeanstalkdLog(str(tmp_path / "log"), queue="mail")
    made = import_queue(source, str(tmp_path / "new"))
    assert (made.waiting, made.done, made.dead, made.problems) == (4, 0, 1, ())
    with penstock.open(tmp_path / "new") as queue:
        assert [one.message.payload for one in queue.dead()] == [b"buried"]
        assert [one.payload for one in queue.browse(state="scheduled")] == [b"later"]
        leased = queue.lease(10)
        assert {one.payload: (one.message.priority, one.attempt) for one in leased} == {
            b"urgent": (9, 1),  # beanstalkd does not write down a release without a delay
            b"released": (8, 1),
            b"first": (5, 1),
        }
        headers = {one.payload: dict(one.message.headers) for one in leased}
        assert headers[b"urgent"] == {"beanstalk-ttr": "120"}
        assert headers[b"released"] == {"beanstalk-pri": "10"}


def test_a_damaged_binlog_keeps_what_stands_before(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with real_beanstalkd("-b", str(tmp_path / "log"), "-f0") as port:
        client = greenstalk.Client(("127.0.0.1", port), encoding=None)
        for n in range(3):
            client.put(b"job %d" % n)
        client.close()
    [path] = (tmp_path / "log").glob("binlog.*")
    data = bytearray(path.read_bytes())
    at = data.index(b"job 1\r\n") + 7
    data[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    made = import_queue(BeanstalkdLog(str(tmp_path / "log")), str(tmp_path / "new"))
    assert made.waiting == 2
    assert "damaged" in made.problems[0]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    place = str(tmp_path_factory.mktemp("redis"))
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", place]
    with subprocess.Popen([*command, "--save", ""], stdout=subprocess.DEVNULL) as process:
        try:
            patient = Retry(ConstantBackoff(0.05), retries=600)
            Redis(port=port, retry=patient, retry_on_error=[RedisDown]).ping()
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()


def payloads(path: Path) -> list[bytes]:
    with penstock.open(path) as queue:
        return [one.payload for one in queue.browse()]


def test_a_list_is_read_from_the_end_that_is_named(redis_url: str, tmp_path: Path) -> None:
    redis = Redis.from_url(redis_url)
    redis.rpush("plain", *(f"{n}" for n in range(1203)))
    import_queue(RedisKey(redis_url, "plain"), str(tmp_path / "left"))
    assert payloads(tmp_path / "left") == [b"%d" % n for n in range(1203)]
    import_queue(RedisKey(redis_url, "plain", pop="right"), str(tmp_path / "right"))
    assert payloads(tmp_path / "right") == [b"%d" % n for n in reversed(range(1203))]


def test_a_stream_keeps_its_times(redis_url: str, tmp_path: Path) -> None:
    redis = Redis.from_url(redis_url)
    for n in range(700):
        redis.xadd("events", {"data": f"e{n}"}, id=f"{1_760_000_000_000 + n}-0")
    redis.xadd("events", {"user": "7", "kind": "ä"}, id="1760000001000-0")
    made = import_queue(RedisKey(redis_url, "events"), str(tmp_path / "new"))
    assert made.waiting == 701
    with penstock.open(tmp_path / "new") as queue:
        found = list(queue.browse())
    assert [one.payload for one in found[:-1]] == [b"e%d" % n for n in range(700)]
    assert found[3].published_ns == 1_760_000_000_003_000_000
    assert json.loads(found[-1].payload) == {"user": "7", "kind": "ä"}


def test_messages_of_celery_are_taken_apart(redis_url: str, tmp_path: Path) -> None:
    app = Celery("app", broker=redis_url)
    app.conf.broker_connection_retry = False
    for n in range(3):
        app.send_task("mail.welcome", args=[n], kwargs={"locale": "de"}, queue="celery")
    app.close()
    made = import_queue(RedisKey(redis_url, "celery"), str(tmp_path / "new"))
    assert made.waiting == 3
    with penstock.open(tmp_path / "new") as queue:
        found = list(queue.browse())
    assert [json.loads(one.payload)[:2] for one in found] == [
        [[n], {"locale": "de"}] for n in range(3)
    ]
    assert {one.headers["task"] for one in found} == {"mail.welcome"}
    assert {one.content_type for one in found} == {"application/json"}


def test_jobs_of_rq_are_imported_as_stored(redis_url: str, tmp_path: Path) -> None:
    redis = Redis.from_url(redis_url)
    jobs = [RqQueue("default", connection=redis).enqueue("os.getpid") for _ in range(2)]
    redis.rpush("rq:queue:default", "gone")
    made = import_queue(RedisKey(redis_url, "rq:queue:default"), str(tmp_path / "new"))
    assert made.waiting == 2
    assert made.problems == ("job gone has no data: left out",)
    with penstock.open(tmp_path / "new") as queue:
        found = list(queue.browse())
    assert [one.headers["rq-job-id"] for one in found] == [one.id for one in jobs]
    assert [one.payload for one in found] == [
        redis.hget(f"rq:job:{one.id}", "data") for one in jobs
    ]


def test_keys_that_cannot_be_imported_are_named(redis_url: str) -> None:
    Redis.from_url(redis_url).set("text", "x")
    with pytest.raises(ImportFailed, match="'text' is a string"):
        RedisKey(redis_url, "text")
    with pytest.raises(ImportFailed, match="'nothing' is missing"):
        RedisKey(redis_url, "nothing")
    with socket.socket() as unused:  # bound, not listening: the connection is refused
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ImportFailed, match="Redis cannot be asked"):
            RedisKey(f"redis://127.0.0.1:{port}/0", "celery")
