"""Starting, TLS, keys, metrics, and a server that is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from penstock.errors import InvalidInput
from penstock.protobuf.descriptors import METHODS
from penstock.server.configuration import Configuration
from tests.server.grpc.calling import Caller, address_of
from tests.server.running import RunningServer


def start(tmp_path: Path, **settings: Any) -> RunningServer:
    return RunningServer(tmp_path / "data", **settings)


def test_other_machines_need_keys(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there are no API keys"):
        start(tmp_path, grpc="0.0.0.0:0").__enter__()


@pytest.mark.parametrize("address", ["9090", "127.0.0.1", "127.0.0.1:99999", "::1:90", "a:b"])
def test_an_address_that_is_none(tmp_path: Path, address: str) -> None:
    with pytest.raises(InvalidInput, match="grpc is .*such as 127.0.0.1:9090"):
        start(tmp_path, grpc=address).__enter__()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match="grpc: cannot listen on 127.0.0.1"):
            start(tmp_path, grpc=f"127.0.0.1:{port}").__enter__()


def test_a_second_server_cannot_share_the_port(tmp_path: Path) -> None:
    with (
        start(tmp_path, grpc="127.0.0.1:0") as first,
        pytest.raises(InvalidInput, match="cannot listen"),
    ):
        RunningServer(tmp_path / "other", grpc=address_of(first)).__enter__()


def test_without_the_package_the_setting_is_refused_and_nothing_else_fails(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["grpc"] = None
sys.modules["google.protobuf"] = None
from pathlib import Path
from penstock.errors import InvalidInput
from penstock.server.configuration import Configuration
from penstock.server.server import Server
from penstock.server.settings import ServerSettings
import penstock.client, penstock.cli
Server(Configuration(ServerSettings(data=sys.argv[1])))
try:
    Server(Configuration(ServerSettings(data=sys.argv[1], grpc="127.0.0.1:0")))
except InvalidInput as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "pip install '.[grpc]'" in done.stdout


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    make_certificate(cert, key)
    return cert, key


def make_certificate(cert: str, key: str) -> None:
    asked = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    asked += " -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*asked.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)


def publish_securely(server: RunningServer, certificate: bytes) -> Any:
    method = METHODS["Publish"]
    request = method.request(queue="q", messages=[{"payload": b"x"}])
    credentials = grpc.ssl_channel_credentials(certificate)
    with grpc.secure_channel(address_of(server), credentials) as channel:
        call = channel.unary_unary(method.path, response_deserializer=method.response.FromString)
        return call(request.SerializeToString(), timeout=30)


def test_tls_and_a_certificate_that_is_replaced(tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make_certificate(cert, key)
    old = Path(cert).read_bytes()
    with start(tmp_path, grpc="127.0.0.1:0", tls_cert=cert, tls_key=key) as server:
        assert server.server.urls[-1].startswith("grpcs://")
        assert len(publish_securely(server, old).messages) == 1
        with Caller(address_of(server)) as plain, pytest.raises(grpc.RpcError):
            plain.publish("q", b"x")
        make_certificate(cert, key)
        server.call(server.server.reload(Configuration(server.settings)))
        with pytest.raises(grpc.RpcError) as caught:
            publish_securely(server, old)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert len(publish_securely(server, Path(cert).read_bytes()).messages) == 1


def test_calls_are_measured_by_method_and_status(tmp_path: Path) -> None:
    with start(tmp_path, grpc="127.0.0.1:0") as server, Caller(address_of(server)) as caller:
        caller.publish("q", b"x")
        with pytest.raises(grpc.RpcError):
            caller.call("GetStats", queue="missing")
        with pytest.raises(grpc.RpcError):
            caller.channel.unary_unary("/any/Method")(b"", timeout=30)
        caller.lease("q")
        text = httpx2.get(f"{server.url}/metrics", trust_env=False).text
    path = "/penstock.v1.QueueService"
    assert f'penstock_grpc_calls_total{{method="{path}/Publish",status="OK"}} 1.0' in text
    assert f'penstock_grpc_calls_total{{method="{path}/GetStats",status="NOT_FOUND"}} 1.0' in text
    assert 'penstock_grpc_calls_total{method="unknown",status="UNIMPLEMENTED"} 1.0' in text
    assert f'penstock_grpc_call_seconds_count{{method="{path}/Lease"}} 1.0' in text
    assert "penstock_grpc_active_calls 0.0" in text


# -- processes -------------------------------------------------------------------------------------


class Process:
    """`penstock serve --grpc` in a process."""

    def __init__(self, data: Path) -> None:
        command = [sys.executable, "-m", "penstock", "serve", str(data), "--port", "0"]
        command += ["--grpc", "127.0.0.1:0", "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        urls = json.loads(self.process.stdout.readline())["urls"]
        self.address = urls[-1].removeprefix("grpc://")

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    with Process(tmp_path / "data") as server, Caller(server.address) as caller:
        published = caller.publish("q", *[b"%d" % n for n in range(20)])
        leased = caller.lease("q", max=5)
        caller.call("Settle", ack=[{"receipt": one.receipt} for one in leased[:3]])
        os.kill(server.process.pid, signal.SIGKILL)
        with pytest.raises(grpc.RpcError) as caught:
            caller.call("GetStats", queue="q")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with Process(tmp_path / "data") as server, Caller(server.address) as caller:
        stats = caller.call("GetStats", queue="q")
        assert (stats.ready, stats.leased, stats.acked) == (15, 2, 3)
        rows = caller.call("Browse", queue="q").rows
        assert [row.message.id for row in rows] == published[3:]
        settled = caller.call("Settle", ack=[{"receipt": leased[3].receipt}])
        assert settled.results[0].status == 1  # receipts outlive the process
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
