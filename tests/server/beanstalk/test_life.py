"""Starting, access, stopping, metrics."""

import threading
from pathlib import Path

import pytest

from penstock.broker.stores import KeyAdmin
from penstock.errors import InvalidInput
from tests.server.beanstalk.wire import beanstalk_server, listener_of, talk_to
from tests.server.running import RunningServer, location_of


def test_an_address_that_others_can_reach_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidInput, match="reached from other machines"),
        RunningServer(tmp_path / "data", beanstalk="0.0.0.0:0"),
    ):
        pass


def test_a_broker_that_requires_keys_is_refused_unless_insecure(tmp_path: Path) -> None:
    with beanstalk_server(tmp_path / "data"):
        pass
    KeyAdmin(location_of(tmp_path / "data")).create("test", ["read"], None)
    with (
        pytest.raises(InvalidInput, match="send no API key"),
        beanstalk_server(tmp_path / "data"),
    ):
        pass
    with beanstalk_server(tmp_path / "data", insecure=True) as server, talk_to(server) as talk:
        talk.put(b"x")


def test_a_port_that_is_taken_is_told(server: RunningServer, tmp_path: Path) -> None:
    port = listener_of(server).port
    with (
        pytest.raises(InvalidInput, match=f"beanstalk: cannot listen on 127.0.0.1 port {port}"),
        RunningServer(tmp_path / "data", beanstalk=f"127.0.0.1:{port}"),
    ):
        pass


def test_a_listener_reaches_its_namespace_only(tmp_path: Path) -> None:
    with (
        beanstalk_server(tmp_path / "data", beanstalk_namespace="jobs") as server,
        server.client() as http,
        talk_to(server) as talk,
    ):
        http.put("/api/v1/namespaces/other/queues/q").raise_for_status()
        talk.put(b"x")
        assert talk.one(b"list-tubes").endswith(b"---\n- default\n")
        queues = http.get("/api/v1/namespaces/jobs/queues").json()["queues"]
        assert [one["name"] for one in queues] == ["default"]


def test_stopping_lets_workers_finish_and_refuses_puts(tmp_path: Path) -> None:
    server = beanstalk_server(tmp_path / "data")
    with server, talk_to(server) as worker, talk_to(server) as waiting, talk_to(server) as idle:
        id_ = worker.put(b"x")
        assert worker.reserve() == (id_, b"x")
        waiting.send(b"reserve\r\n")
        assert idle.one(b"list-tube-used") == b"USING default"
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert waiting.answer() == b"TIMED_OUT"
        assert waiting.is_closed() and idle.is_closed()
        worker.send(b"put 0 0 60 1\r\nx\r\n")
        assert worker.answer() == b"DRAINING"
        assert worker.one(b"delete %d" % id_) == b"DELETED"
        assert worker.is_closed()
        stopping.join()
    with beanstalk_server(tmp_path / "data") as again, talk_to(again) as talk:
        assert talk.reserve() is None


def test_commands_errors_and_connections_are_counted(tmp_path: Path) -> None:
    with beanstalk_server(tmp_path / "data") as server, server.client() as http:
        with talk_to(server) as talk:
            talk.put(b"x")
            talk.reserve()
            talk.one(b"delete x")
            page = http.get("/metrics").text
        assert 'penstock_beanstalk_commands_total{command="put"} 1.0' in page
        assert 'penstock_beanstalk_errors_total{answer="BAD_FORMAT"} 1.0' in page
        assert "penstock_beanstalk_connections 1.0" in page
        assert "penstock_beanstalk_reserved 1.0" in page
