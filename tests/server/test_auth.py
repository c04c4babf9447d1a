"""Keys, for every route: missing, wrong, revoked, of another namespace, of another verb."""

import itertools
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from penstock.broker import Verb
from penstock.broker.stores import KeyAdmin
from penstock.server.rest.all_endpoints import ENDPOINTS
from penstock.server.rest.endpoint import Endpoint
from tests.server.running import RunningServer, queue_path

SETTLES = "settle_messages"
FOLDER = "1-0123456789abcdef"
_addresses = itertools.count(1)

# What a route needs beside its path, for the broker to ask whether the caller may.
BODIES: dict[str, Any] = {
    "put_schedule": {"every_s": 3600, "message": {"payload": 1}},
    "report_reader": {"position": 1},
    "create_namespace": {"name": "shop"},
    "change_namespace": {"max_queues": 7},
    "change_queue": {},
    "put_rate_limit": {"refill_per_s": 0},
    "publish_messages": {"payload": 1},
    "publish_batch": [{"payload": 1}],
    "seek": {"to": "end"},
    "preview_seek": {"to": "end"},
    "create_api_key": {"verbs": ["manage"], "namespaces": ["shop"]},
    "adopt_staged": {"staged": []},
    "note_archived": {"upto": 1},
    "create_webhook": {"url": "https://webhook.invalid/hook"},
    "change_webhook": {},
    "get_endings": {"ids": []},
    "resolve": {"earlier": "", "outcome": 1},
}


class Keys:
    """Keys of every kind, and what the paths name."""

    def __init__(self, server: RunningServer) -> None:
        self.every = server.new_key(*Verb)
        self.elsewhere = server.new_key(*Verb, namespaces=["other"])
        self.revoked = server.new_key(*Verb)
        KeyAdmin(server.location).revoke(self.revoked.split("_")[1])
        server.call(server.server.service.keys.load())
        self.without = {verb: server.new_key(*(set(Verb) - {verb})) for verb in Verb}
        self.only = {verb: server.new_key(verb) for verb in Verb}
        path = queue_path("orders", namespace="shop")
        with server.client(headers={"x-api-key": self.every}) as http:
            http.put(path)
            self.id = http.post(f"{path}/messages", json={"payload": 1}).json()["id"]
            leased = http.post(f"{path}/lease", json={}).json()["messages"]
            self.receipt = leased[0]["receipt"]
            hook = http.post(
                f"{path}/webhooks", json={"url": "https://webhook.invalid/hook"}
            ).json()
            self.webhook = hook["id"]

    def path(self, endpoint: Endpoint) -> str:
        id_ = self.webhook if "webhooks" in endpoint.path else self.id
        return endpoint.path.format(
            namespace="shop",
            queue="orders",
            group="main",
            schedule="nightly",
            reader="spark",
            id=id_,
            log="messages",
            base="1",
            folder=FOLDER,
            name="0.log",
            number="1",
        )

    def body(self, endpoint: Endpoint) -> Any:
        if endpoint.handler.__name__ == SETTLES:
            return {"extend": [{"receipt": self.receipt, "lease_s": 100}]}
        return BODIES.get(endpoint.handler.__name__)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("keys") / "data"
    with RunningServer(data, trusted_proxies=("127.0.0.1",), profiling=True) as running:
        yield running


@pytest.fixture(scope="module")
def keys(server: RunningServer) -> Keys:
    return Keys(server)


def ask(
    server: RunningServer, keys: Keys, endpoint: Endpoint, key: str | None, **options: Any
) -> httpx2.Response:
    """Ask from an address of its own: one that sends wrong keys is soon not listened to."""
    headers = {"x-forwarded-for": f"203.0.113.{next(_addresses) % 250 + 1}"}
    if key is not None:
        headers["x-api-key"] = key
    body = keys.body(endpoint)
    with server.client(headers=headers) as http:
        sent = {} if body is None else {"json": body}
        if endpoint.handler.__name__ == "find_message":
            options = {"params": {"dedup_id": "d"} | options.pop("params", {})} | options
        return http.request(endpoint.method, keys.path(endpoint), **sent, **options)


def by_name(endpoint: Endpoint) -> str:
    return endpoint.handler.__name__


OF_ALL_NAMESPACES = {"list_namespaces", "get_overview", "get_table", "list_all_webhooks"}
PROTECTED = [endpoint for endpoint in ENDPOINTS if endpoint.verb is not None]
OPEN = [endpoint for endpoint in ENDPOINTS if endpoint.verb is None]


@pytest.mark.parametrize("endpoint", PROTECTED, ids=by_name)
def test_without_a_good_key_a_route_is_401(
    server: RunningServer, keys: Keys, endpoint: Endpoint
) -> None:
    made_up = f"psk_{'0' * 12}_{'A' * 43}"
    for key in (None, "", "nonsense", made_up, keys.revoked, keys.every[:-1] + "x"):
        answer = ask(server, keys, endpoint, key)
        assert (answer.status_code, answer.json()["code"]) == (401, "key_refused"), key
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("endpoint", PROTECTED, ids=by_name)
def test_a_key_for_another_verb_or_namespace_is_403(
    server: RunningServer, keys: Keys, endpoint: Endpoint
) -> None:
    assert endpoint.verb is not None
    answer = ask(server, keys, endpoint, keys.without[endpoint.verb])
    assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")
    if by_name(endpoint) in OF_ALL_NAMESPACES:
        # Not refused, but nothing is shown of what the key is not for.
        shown = ask(server, keys, endpoint, keys.elsewhere)
        assert shown.status_code == 200
        assert "shop" not in shown.text and "orders" not in shown.text
        return
    answer = ask(server, keys, endpoint, keys.elsewhere)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")


@pytest.mark.parametrize("endpoint", PROTECTED, ids=by_name)
def test_a_key_in_the_query_string_is_refused(
    server: RunningServer, keys: Keys, endpoint: Endpoint
) -> None:
    for name in ("api_key", "X-Api-Key", "token", "access_token"):
        answer = ask(server, keys, endpoint, None, params={name: keys.every})
        assert answer.status_code == 400
        assert keys.every not in answer.text


@pytest.mark.parametrize("endpoint", OPEN, ids=by_name)
def test_probes_need_no_key(server: RunningServer, keys: Keys, endpoint: Endpoint) -> None:
    assert ask(server, keys, endpoint, None).status_code == 200


def test_a_key_with_the_verb_is_let_in(server: RunningServer, keys: Keys) -> None:
    """Deleting comes last."""
    for endpoint in sorted(PROTECTED, key=lambda one: (one.method == "DELETE", len(one.path))):
        assert endpoint.verb is not None
        if by_name(endpoint) in ("create_webhook", "profile", "delete_namespace"):
            continue  # needs a second verb; takes long; would take the rest away
        answer = ask(server, keys, endpoint, keys.only[endpoint.verb])
        assert answer.status_code not in (401, 403), (by_name(endpoint), answer.text)
        assert answer.status_code < 500, (by_name(endpoint), answer.text)


def test_a_bearer_token_is_as_good_as_the_header(server: RunningServer, keys: Keys) -> None:
    with server.client() as http:
        path = queue_path("bearer", "messages", namespace="shop")
        good = {"authorization": f"Bearer {keys.every}"}
        assert http.post(path, json={"payload": 1}, headers=good).status_code == 201
        basic = {"authorization": f"Basic {keys.every}"}
        assert http.post(path, json={"payload": 1}, headers=basic).status_code == 401


def test_a_key_made_while_the_server_runs_is_good_at_once(
    server: RunningServer, keys: Keys
) -> None:
    """A key that is not known is looked for."""
    _, token = KeyAdmin(server.location).create("new", ["publish"], None)
    server.until(lambda: server.server.service.keys.age_s() > 0.2)
    with server.client(headers={"x-api-key": token}) as http:
        path = queue_path("new-key", "messages", namespace="shop")
        assert http.post(path, json={"payload": 1}).status_code == 201


def test_an_address_that_guesses_keys_is_told_to_wait(server: RunningServer, keys: Keys) -> None:
    headers = {"x-forwarded-for": "198.51.100.7", "x-api-key": f"psk_{'0' * 12}_{'B' * 43}"}
    with server.client() as http:
        statuses = {http.get("/metrics", headers=headers).status_code: None for _ in range(60)}
        assert list(statuses) == [401, 429]
        refused = http.get("/metrics", headers=headers)
        assert int(refused.headers["retry-after"]) >= 1
        # Others are not held to it.
        assert http.get("/metrics", headers={"x-api-key": keys.every}).status_code == 200


@pytest.mark.parametrize("path", [queue_path("counted", "messages"), "/metrics"])
def test_a_wrong_key_counts_once_on_whatever_route(
    server: RunningServer, keys: Keys, path: str
) -> None:
    """An address has 20 guesses."""

    def counted() -> float:
        page = http.get("/metrics", headers={"x-api-key": keys.every}).text
        (line,) = [one for one in page.splitlines() if 'rejected_total{cause="key_r' in one]
        return float(line.split()[-1])

    wrong = {"x-api-key": f"psk_{'0' * 12}_{'C' * 43}"}
    with server.client(headers={"x-forwarded-for": f"198.51.100.{len(path)}"}) as http:
        method = "GET" if path == "/metrics" else "POST"
        body = None if path == "/metrics" else {"payload": 1}
        assert http.request(method, path, json=body, headers=wrong).status_code == 401
        before = counted()
        for _ in range(18):
            assert http.request(method, path, json=body, headers=wrong).status_code == 401
        assert counted() == before + 18


def test_forwarded_addresses_are_believed_of_trusted_proxies_only(server: RunningServer) -> None:
    address_of = server.server.service.address_of
    forwarded = {b"x-forwarded-for": b"198.51.100.1, 203.0.113.9, 127.0.0.1"}
    assert address_of(forwarded, "127.0.0.1") == "203.0.113.9"
    assert address_of(forwarded, "192.0.2.1") == "192.0.2.1"
    assert address_of({}, "127.0.0.1") == "127.0.0.1"
    assert address_of({b"x-forwarded-for": b"nonsense"}, "127.0.0.1") == "127.0.0.1"
    assert address_of({b"x-forwarded-for": b"<script>, 127.0.0.1"}, "127.0.0.1") == "127.0.0.1"
    assert address_of(forwarded, None) == "unknown"


def test_profiling_is_for_keys_with_manage_and_only_where_it_is_on(
    server: RunningServer, keys: Keys, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with server.client(headers={"x-api-key": keys.every}) as http:
        answer = http.get("/debug/profile", params={"seconds": 1})
        assert answer.status_code == 200
        assert "function calls" in answer.text
    with RunningServer(tmp_path_factory.mktemp("off") / "data") as off, off.client() as http:
        assert http.get("/debug/profile").status_code == 404


def test_an_export_ends_when_its_key_is_revoked(server: RunningServer, keys: Keys) -> None:
    path = queue_path("exported", "messages", namespace="shop")
    key = server.new_key(Verb.READ)
    with server.client(headers={"x-api-key": keys.every}) as http:
        for _ in range(20):
            http.post(path, json=[{"payload": "x" * 10_000}] * 100)
    with (
        server.client(headers={"x-api-key": key}) as http,
        http.stream("GET", f"{path}/export") as answer,
        pytest.raises(httpx2.RemoteProtocolError),  # it ends without the last chunk
    ):
        parts = answer.iter_bytes()
        next(parts)
        KeyAdmin(server.location).revoke(key.split("_")[1])
        server.call(server.server.service.keys.load())
        assert sum(len(part) for part in parts) < 20_000_000


def test_a_query_that_lacks_what_it_needs_is_400(server: RunningServer, keys: Keys) -> None:
    with server.client(headers={"x-api-key": keys.every}) as http:
        answer = http.get(f"{queue_path('orders', namespace='shop')}/find")
    assert answer.status_code == 400, answer.text
    assert "dedup_id is missing" in answer.json()["detail"]
