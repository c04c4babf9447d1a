"""https: the certificate is judged, and a wrong one is not talked to."""

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import Unreachable
from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """One that nobody but us has signed, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    asked = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    asked += " -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*asked.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[str, str]) -> Iterator[str]:
    cert, key = certificate
    data: Path = tmp_path_factory.mktemp("server") / "data"
    with RunningServer(data, tls_cert=cert, tls_key=key) as server:
        yield f"https://127.0.0.1:{server.port}/shop/orders"


def test_a_certificate_that_is_trusted(url: str, certificate: tuple[str, str]) -> None:
    trusting = ssl.create_default_context(cafile=certificate[0])
    with penstock.open(url, verify=trusting) as queue:
        queue.enqueue(b"x")
        message = queue.dequeue()
        assert message is not None and message.payload == b"x"


def test_a_certificate_of_a_stranger_is_refused_and_nothing_is_sent(url: str) -> None:
    with (
        penstock.open(url, key="psk_secret", retry_s=86400) as queue,
        pytest.raises(Unreachable, match="nothing was changed"),
    ):
        queue.enqueue(b"x")


def test_who_wants_may_trust_anyone(url: str) -> None:
    with penstock.open(url, verify=False) as queue:
        assert queue.enqueue(b"x")
