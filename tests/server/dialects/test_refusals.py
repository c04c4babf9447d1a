"""What is refused before a dialect hears of it is refused in the dialect's own shape."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.dialects import epochqueue, rivetq
from penstock.server.problems import is_dialect_path
from penstock.server.rest.all_endpoints import ENDPOINTS
from penstock.server.ws import epochqueue as epochqueue_stream
from tests.server.running import RunningServer

DIALECTS = ["/v1/queues/orders/enqueue", "/namespaces/shop/queues/orders/messages"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("refusing") / "data"
    with RunningServer(
        data, max_body_bytes=1000, max_headers=20, max_url_bytes=300, body_timeout_s=0.2
    ) as running:
        yield running


def request(path: str, *headers: str, body: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", body]
    return "\r\n".join(lines).encode()


REFUSED = {
    413: lambda path: request(path, body="x" * 1001),
    414: lambda path: request(path + "?n=" + "1" * 400),
    415: lambda path: request(path, "Content-Encoding: gzip", body="x"),
    431: lambda path: request(path, *(f"X-{n}: 1" for n in range(30))),
    400: lambda path: request(path, "Content-Length: 5"),
    408: lambda path: request(path, body="xx")[:-1],
    403: lambda path: request(path, "Origin: https://elsewhere.example"),
    404: lambda path: request(path + "/not/there"),
    405: lambda path: request(path).replace(b"POST", b"PATCH"),
}


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("status", REFUSED)
def test_a_refusal_has_the_shape_of_the_dialect(
    server: RunningServer, path: str, status: int
) -> None:
    with server.wire() as wire:
        wire.send(REFUSED[status](path))
        answer = wire.answer()
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    said = json.loads(answer.body)
    assert list(said) == ["error"] and isinstance(said["error"], str) and said["error"]


def test_a_refusal_of_the_native_interface_is_a_problem(server: RunningServer) -> None:
    with server.wire() as wire:
        wire.send(REFUSED[413]("/api/v1/settle"))
        answer = wire.answer()
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.body)["code"] == "body_too_large"


def test_too_many_calls_are_told_so_in_the_dialect(tmp_path: Path) -> None:
    limits = {"client_rate_per_s": 0.001, "client_burst": 1.0}
    with RunningServer(tmp_path / "data", broker=limits) as server, server.client() as http:
        for path in DIALECTS:
            body = {"payload": 1} if path.startswith("/v1/") else {"body": ""}
            answers = [http.post(path, json=body) for _ in range(2)]
            assert answers[-1].status_code == 429
            assert list(answers[-1].json()) == ["error"]
            assert int(answers[-1].headers["retry-after"]) >= 1


def test_every_route_of_a_dialect_is_known_as_one_and_no_native_one_is() -> None:
    for route in (*rivetq.ROUTES, *epochqueue.ROUTES, *epochqueue_stream.ROUTES):
        assert is_dialect_path(route.path.encode()), route.path
    for endpoint in ENDPOINTS:
        assert not is_dialect_path(endpoint.path.encode()), endpoint.path
