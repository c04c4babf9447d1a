"""How a server starts, says whether it is ready, changes its settings, and stops."""

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker import BrokerSettings
from penstock.broker.stores import KeyAdmin
from penstock.errors import InvalidInput, LedgerLocked
from penstock.server.configuration import Configuration
from penstock.server.listening import refuse_public_without_keys
from penstock.server.server import Server
from penstock.server.settings import ServerSettings
from tests.server.running import RunningServer, location_of, queue_path


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as server:
        yield server


# -- starting --------------------------------------------------------------------------------------


def test_while_it_recovers_it_is_live_but_not_ready(tmp_path: Path) -> None:
    """Calls are answered with 503 and when to try again, until they are taken."""

    async def life() -> None:
        server = Server(Configuration(ServerSettings(data=str(tmp_path / "data"), port=0)))
        may_recover = asyncio.Event()
        recover = server.broker.start

        async def start_later() -> None:
            await may_recover.wait()
            await recover()

        server.broker.start = start_later  # type: ignore[method-assign]
        await server.start()
        try:
            await look(server, may_recover)
        finally:
            may_recover.set()
            await server.stop()  # a server that goes on would fail other tests

    async def look(server: Server, may_recover: asyncio.Event) -> None:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
            assert (await http.get("/livez")).status_code == 200
            starting = await http.get("/readyz")
            assert (starting.status_code, starting.json()) == (503, {"status": "starting"})
            for path in (queue_path("orders", "messages"), queue_path("orders", "lease")):
                answer = await http.post(path, json={"payload": 1} if "mess" in path else {})
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert answer.headers["retry-after"] == "1"
            may_recover.set()
            await server.ready()
            assert (await http.get("/readyz")).json()["status"] == "ready"

    asyncio.run(life())


def test_what_was_published_is_there_after_a_restart(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        http.post(queue_path("orders", "messages"), json={"payload": 1})
        leased = http.post(queue_path("orders", "lease"), json={}).json()["messages"]
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        settled = http.post("/api/v1/settle", json={"ack": [leased[0]["receipt"]]})
        assert settled.json()["results"][0]["status"] == "done"


def test_one_server_owns_the_data(running: RunningServer) -> None:
    with pytest.raises(LedgerLocked), RunningServer(running.data):
        pass


def test_a_port_that_is_taken_is_said(running: RunningServer, tmp_path: Path) -> None:
    async def start() -> None:
        settings = ServerSettings(data=str(tmp_path / "other"), port=running.port)
        await Server(Configuration(settings)).start()

    with pytest.raises(InvalidInput, match=f"port {running.port}"):
        asyncio.run(start())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", ""])
def test_it_refuses_to_be_reached_by_strangers_without_keys(tmp_path: Path, host: str) -> None:
    settings = ServerSettings(host=host)
    with pytest.raises(InvalidInput, match="penstock keys create"):
        refuse_public_without_keys(settings, keys_required=False)
    refuse_public_without_keys(settings, keys_required=True)
    refuse_public_without_keys(ServerSettings(host=host, insecure=True), keys_required=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.9.10"])
def test_loopback_needs_no_keys(host: str) -> None:
    refuse_public_without_keys(ServerSettings(host=host), keys_required=False)


def test_keys_are_asked_for_from_the_first_moment(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningServer(data):
        pass
    KeyAdmin(location_of(data)).create("one", ["read"], None)
    with RunningServer(data) as server, server.client() as http:
        assert http.get("/metrics").status_code == 401
        assert http.get("/readyz").status_code == 200


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    asked = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    asked += " -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = [*asked.split(), "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_a_tls_handshake_that_does_not_finish_is_ended(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    tls: dict[str, Any] = {"tls_cert": str(certificate[0]), "tls_key": str(certificate[1])}
    with (
        RunningServer(tmp_path / "data", header_timeout_s=0.1, **tls) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as idle,
    ):
        assert idle.recv(1) == b""  # closed by the server


def test_tls_handshakes_count_as_connections(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    trusting = ssl.create_default_context(cafile=str(cert))
    tls: dict[str, Any] = {"tls_cert": str(cert), "tls_key": str(key), "header_timeout_s": 3600.0}
    with RunningServer(tmp_path / "data", max_connections=2, **tls) as server:
        service, where = server.server.service, ("127.0.0.1", server.port)
        with socket.create_connection(where, timeout=30) as one:
            with socket.create_connection(where, timeout=30):
                server.until(lambda: service.connection_count == 2)
                with socket.create_connection(where, timeout=30) as third:
                    assert third.recv(1) == b""
                    assert service.connection_count == 2
            server.until(lambda: service.connection_count == 1)
            url = f"https://127.0.0.1:{server.port}"
            with server.client(base_url=url, verify=trusting) as http:
                assert http.get("/livez").status_code == 200
            one.sendall(b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n")  # no TLS
            while one.recv(100):  # an alert
                pass
        server.until(lambda: not service.connection_count)
        settings = replace(server.settings, header_timeout_s=0.05)
        server.call(server.server.reload(Configuration(settings)))
        with socket.create_connection(where, timeout=30) as late:
            assert late.recv(1) == b""


def test_stopping_does_not_wait_for_a_tls_handshake(
    tmp_path: Path, certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    tls: dict[str, Any] = {"tls_cert": str(certificate[0]), "tls_key": str(certificate[1])}
    with (
        RunningServer(tmp_path / "data", header_timeout_s=3600, shutdown_s=3600, **tls) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30),
    ):
        server.until(lambda: server.server.service.connection_count == 1)
        server.stop()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_request_sent_with_the_end_of_the_handshake_is_answered(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    """With TLS 1.3 both may arrive in one packet."""
    cert, key = certificate
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=str(cert))
    client = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with (
        RunningServer(tmp_path / "data", tls_cert=str(cert), tls_key=str(key)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as wire,
    ):
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                wire.sendall(outgoing.read())
                incoming.write(wire.recv(1 << 16))
        client.write(b"GET /livez HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        wire.sendall(outgoing.read())
        while True:
            try:
                assert client.read(15) == b"HTTP/1.1 200 OK"
                break
            except ssl.SSLWantReadError:
                incoming.write(wire.recv(1 << 16))


def test_tls_by_settings(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    trusting = ssl.create_default_context(cafile=str(cert))
    with RunningServer(tmp_path / "data", tls_cert=str(cert), tls_key=str(key)) as server:
        url = f"https://127.0.0.1:{server.port}"
        with server.client(base_url=url, verify=trusting) as http:
            assert http.get("/livez").status_code == 200
            path = queue_path("orders", "messages")
            assert http.post(path, json={"payload": 1}).status_code == 201
            large = http.post(path, content=b"x" * (33 << 20), headers={"content-type": "x/y"})
            assert large.status_code == 413
        server.call(server.server.reload(Configuration(server.settings)))  # reads it again
        with server.client(base_url=url, verify=trusting) as http:
            assert http.get("/livez").status_code == 200


def test_a_certificate_that_is_none_is_said(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, _ = certificate
    for wrong in (tmp_path / "nowhere.pem", cert):
        server = RunningServer(tmp_path, tls_cert=str(cert), tls_key=str(wrong))
        with pytest.raises(InvalidInput, match="tls_cert"), server:
            pass


# -- changing --------------------------------------------------------------------------------------


def test_reloading_changes_what_can_be_changed(running: RunningServer) -> None:
    server = running.server
    new = ServerSettings(
        data=running.settings.data, port=1, max_body_bytes=100, cors_origins=("https://a.example",)
    )
    broker = BrokerSettings(create_on_use=False)
    running.call(server.reload(Configuration(new, broker)))
    assert server.service.settings.max_body_bytes == 100
    assert server.service.settings.port == 0  # needs a restart
    with running.client() as http:
        path = queue_path("orders", "messages")
        assert http.post(path, json={"payload": "x" * 100}).status_code == 413
        assert http.post(path, json={"payload": 1}).status_code == 404  # not created on use
        answer = http.get("/livez", headers={"origin": "https://a.example"})
        assert answer.headers["access-control-allow-origin"] == "https://a.example"


def test_reloading_finds_new_keys(running: RunningServer) -> None:
    with running.client() as http:
        assert http.get("/metrics").status_code == 200
        KeyAdmin(running.location).create("one", ["read"], None)
        running.call(running.server.reload(Configuration(running.settings)))
        assert http.get("/metrics").status_code == 401


# -- stopping --------------------------------------------------------------------------------------


def test_stopping_answers_who_waits_and_closes_who_is_idle(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        waiting, idle = server.wire(), server.wire()
        with waiting, idle:
            idle.request("GET", "/livez")
            assert idle.answer().status == 200
            waiting.json_request("POST", queue_path("orders", "lease"), {"wait_s": 60})
            server.until(lambda: len(server.server.broker.waiting) == 1)
            server.stop()
            answer = waiting.answer()
            assert (answer.status, answer.json) == (200, {"messages": []})
            assert answer.headers["connection"] == "close"
            assert waiting.is_closed_by_server()
            assert idle.is_closed_by_server()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_stopping_finishes_a_request_that_is_under_way(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", shutdown_s=600) as server, server.wire() as wire:
        body = b'{"payload": 1}'
        head = f"POST {queue_path('orders', 'messages')} HTTP/1.1\r\nHost: t\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        wire.send(head.encode() + body[:5])
        server.until(lambda: server.server.service.held.bytes == 5)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        server.until(lambda: server.server.service.is_stopping)
        wire.send(body[5:])
        assert wire.answer().status == 201
        stopping.join(30)
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        assert http.get(queue_path("orders")).json()["stats"]["ready"] == 1


@pytest.mark.parametrize("unix", [False, True])
def test_a_connection_that_is_made_while_the_server_stops_is_closed_at_once(
    tmp_path: Path, unix: bool
) -> None:
    """A listener that is closed may have accepted it before."""
    path = tmp_path / "s"
    settings: dict[str, Any] = {"unix": str(path)} if unix else {}
    with RunningServer(tmp_path / "data", idle_timeout_s=3600, **settings) as server:
        server.server.service.is_stopping = True
        with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as client:
            client.settimeout(60)
            client.connect(str(path) if unix else ("127.0.0.1", server.port))
            assert client.recv(1) == b""


@pytest.mark.parametrize(
    "part",
    [
        b"GET /livez HT",
        b"GET /livez HTTP/1.1\r\nHo",
        b"POST /api/v1/settle HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{",
    ],
)
def test_stopping_refuses_a_request_of_which_no_more_arrives(tmp_path: Path, part: bytes) -> None:
    """It is not waited for until all the time for the stop is over, when it would be aborted."""
    with RunningServer(tmp_path / "data", header_timeout_s=3600) as server, server.wire() as wire:
        wire.send(part)
        server.until(
            lambda: any(
                not getattr(one, "is_idle", True) for one in server.server.service.connections
            )
        )
        server.stop()
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert wire.is_closed_by_server()


def test_stopping_does_not_wait_longer_than_it_may(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", shutdown_s=0.5) as server, server.wire() as wire:
        wire.request("GET", "/livez")
        assert wire.answer().status == 200

        async def never_end() -> None:
            endless = asyncio.create_task(asyncio.Event().wait())
            server.server.service.tasks.add(endless)
            endless.add_done_callback(server.server.service.tasks.discard)

        server.call(never_end())
        server.stop()
        assert wire.is_closed_by_server()
