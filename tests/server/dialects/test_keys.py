"""The dialects ask for keys as the native interface does, and say it in their own words."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from penstock.broker import Verb
from penstock.broker.access import INSIDE
from penstock.broker.stores import KeyAdmin
from penstock.server.dialects import epochqueue, rivetq
from tests.server.running import RunningServer

OPEN = {"/health", "/healthz"}
ROUTES = [
    (method, route.path)
    for route in (*rivetq.ROUTES, *epochqueue.ROUTES)
    for method in sorted((route.methods or set()) - {"HEAD"})
]
GUARDED = [one for one in ROUTES if one[1] not in OPEN]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that has a key, and believes what proxies on this machine say."""
    data = tmp_path_factory.mktemp("locked") / "data"
    with RunningServer(data, trusted_proxies=("127.0.0.1",)) as server:
        server.new_key("read")
        yield server


def ask(server: RunningServer, method: str, path: str, key: str | None) -> httpx2.Response:
    names = {"namespace": "default", "queue": "orders", "receipt": "none", "id": "none"}
    # Many wrong keys from one address are answered with 429; each of these is from another.
    headers = {"X-Forwarded-For": f"192.0.2.{GUARDED.index((method, path))}"}
    if key is not None:
        headers["X-Api-Key"] = key
    with server.client(headers=headers) as http:
        return http.request(method, path.format(**names))


@pytest.mark.parametrize(("method", "path"), GUARDED, ids=str)
@pytest.mark.parametrize("key", [None, "psk_000000000000_" + "x" * 43], ids=["none", "wrong"])
def test_without_a_good_key_every_route_is_401(
    locked: RunningServer, method: str, path: str, key: str | None
) -> None:
    answer = ask(locked, method, path, key)
    assert (answer.status_code, set(answer.json())) == (401, {"error"})


@pytest.mark.parametrize("path", sorted(OPEN))
def test_health_is_for_everyone(locked: RunningServer, path: str) -> None:
    with locked.client() as http:
        assert http.get(path).status_code == 200


def test_a_key_of_another_namespace_or_verb_is_403(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        elsewhere = server.new_key("publish", "consume", "read", "manage", namespaces=["other"])
        reader = server.new_key("read")
        for key in (elsewhere, reader):
            with server.client(headers={"X-Api-Key": key}) as http:
                for path, body in (
                    ("/v1/queues/orders/enqueue", {"payload": 1}),
                    ("/namespaces/default/queues/orders/messages", {"body": ""}),
                    ("/namespaces/default/queues/orders/messages/batch", []),
                ):
                    answer = http.post(path, json=body)
                    assert (answer.status_code, set(answer.json())) == (403, {"error"})
                assert not server.server.broker.queues(INSIDE)


def test_clients_keep_the_key_that_they_have(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        KeyAdmin(server.location).create("old", list(Verb), None, "my-epochqueue-key")
        server.call(server.server.service.keys.load())
        at = "/namespaces/shop/queues/orders/messages"
        for headers, status in (
            ({"X-Api-Key": "my-epochqueue-key"}, 201),
            ({"Authorization": "Bearer my-epochqueue-key"}, 201),
            ({"X-Api-Key": "my-epochqueue-kex"}, 401),
            ({}, 401),
        ):
            with server.client(headers=headers) as http:
                assert http.post(at, json={"body": ""}).status_code == status
                native = http.post(f"/api/v1{at}", json={"payload": 1})
                assert native.status_code == status
