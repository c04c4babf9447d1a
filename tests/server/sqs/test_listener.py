"""SQS on an address of its own."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from botocore.exceptions import SSLError

from penstock.errors import InvalidInput
from penstock.server.configuration import Configuration
from penstock.server.sqs.listener import SqsListener
from tests.server.running import RunningServer
from tests.server.sqs.clients import receive, sqs_client


def listener_of(server: RunningServer) -> SqsListener:
    (found,) = server.server.listeners
    assert isinstance(found, SqsListener)
    return found


def test_it_serves_sqs_and_nothing_else(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", sqs="127.0.0.1:0") as server:
        own = listener_of(server)
        assert server.server.urls == [server.url, own.url]
        sqs = sqs_client(own.url)
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        assert url == f"{own.url}/default/orders"
        sqs.send_message(QueueUrl=url, MessageBody="x")
        with httpx2.Client(base_url=own.url, verify=False, trust_env=False) as http:
            # Some clients call the URL of the queue.
            target = {"X-Amz-Target": "AmazonSQS.ReceiveMessage"}
            answer = http.post("/default/orders", headers=target, json={"QueueUrl": url})
            assert answer.json()["Messages"][0]["Body"] == "x"
            for path in ("/metrics", "/livez", "/api/v1/namespaces"):
                assert http.get(path).status_code == 404
            assert http.get("/").status_code == 405
            upgrade = {
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            }
            stream = "/api/v1/namespaces/default/queues/orders/stream"
            assert http.get(stream, headers=upgrade).status_code == 404
        on_http = sqs_client(server.url)  # the same queue
        assert receive(on_http, url) == []
        sqs.close()
        on_http.close()


def test_a_stop_answers_a_receive_that_waits(tmp_path: Path) -> None:
    with (
        RunningServer(tmp_path / "data", sqs="127.0.0.1:0") as server,
        ThreadPoolExecutor() as pool,
    ):
        sqs = sqs_client(listener_of(server).url)
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        call = pool.submit(receive, sqs, url, WaitTimeSeconds=20)
        server.until(lambda: len(server.server.broker.waiting) == 1)
        server.stop()
        assert call.result(30) == []
        sqs.close()


def test_an_address_that_other_machines_reach_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="sqs: 0.0.0.0 can be reached from other machines"):
        RunningServer(tmp_path / "data", sqs="0.0.0.0:0").__enter__()
    with RunningServer(tmp_path / "data", sqs="0.0.0.0:0", insecure=True):
        pass


def test_tls_and_a_certificate_that_is_replaced(tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    make_certificate(cert, key)
    old = str(tmp_path / "old.pem")
    shutil.copy(cert, old)
    tls: dict[str, Any] = {"tls_cert": cert, "tls_key": key}
    with RunningServer(tmp_path / "data", sqs="127.0.0.1:0", **tls) as server:
        own = listener_of(server)
        sqs = sqs_client(own.url, verify=old)
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        assert url == f"{own.url}/default/orders"
        assert url.startswith("https://")
        sqs.close()
        make_certificate(cert, key)
        server.call(server.server.reload(Configuration(server.settings)))
        sqs = sqs_client(own.url, verify=old)
        with pytest.raises(SSLError):
            sqs.list_queues()
        sqs.close()


def make_certificate(cert: str, key: str) -> None:
    asked = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    asked += " -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*asked.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "one", sqs="127.0.0.1:0") as server:
        taken = f"127.0.0.1:{listener_of(server).port}"
        with pytest.raises(InvalidInput, match="sqs: cannot listen"):
            RunningServer(tmp_path / "two", sqs=taken).__enter__()
