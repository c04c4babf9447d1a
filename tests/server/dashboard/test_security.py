"""Sessions, forged forms, policies, roles, and what must never be shown or logged."""

import logging
import re

import pytest

from tests.server.dashboard.guarded import HTML, Guarded, token
from tests.server.dashboard.seeding import Seeder
from tests.server.running import RunningServer, queue_path

pytestmark = pytest.mark.xdist_group("dashboard")

# -- without a session -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/", "/dashboard", "/dashboard/queues/shop/guarded", "/dashboard/find"],
)
def test_without_a_session_there_is_only_the_login(guarded: Guarded, path: str) -> None:
    with guarded.client() as client:
        answer = client.get(path)
    assert answer.status_code == 401
    assert "Log in" in answer.text and "guarded</a>" not in answer.text


def test_a_form_without_a_session_is_refused(guarded: Guarded) -> None:
    with guarded.client() as client:
        answer = client.post("/dashboard/queues/shop/guarded/pause", data={"csrf": token(client)})
    assert answer.status_code == 401
    assert guarded.seed.stats("guarded")["paused"] is False


def test_a_stream_without_a_session_is_refused(guarded: Guarded) -> None:
    with guarded.client() as client:
        answer = client.get("/dashboard", headers={"accept": "text/event-stream"})
    assert answer.status_code == 401


def test_a_wrong_key_is_refused_and_counted(guarded: Guarded) -> None:
    with guarded.client() as client:
        fields = {"csrf": token(client), "key": "psk_000000000000_" + "x" * 43}
        answer = client.post("/dashboard/login", data=fields)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert "wrong or was revoked" in answer.text


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/dashboard/../../evil",
        "/\\evil.example",
        "/dashboard//x",
        "javascript:0",
    ],
)
def test_the_login_leads_to_pages_of_the_dashboard_only(guarded: Guarded, target: str) -> None:
    with guarded.client() as client:
        fields = {"csrf": token(client), "key": guarded.reader, "next": target}
        answer = client.post("/dashboard/login", data=fields)
    assert answer.headers["location"] == "/dashboard"


def test_the_login_leads_to_the_page_that_was_asked_for(guarded: Guarded) -> None:
    with guarded.client() as client:
        target = "/dashboard/queues/shop/guarded?range=24h"
        fields = {"csrf": token(client), "key": guarded.reader, "next": target}
        answer = client.post("/dashboard/login", data=fields)
    assert answer.headers["location"] == target


# -- the session -----------------------------------------------------------------------------------


def test_the_cookie_is_strict_and_does_not_have_the_key(guarded: Guarded) -> None:
    with guarded.client() as client:
        fields = {"csrf": token(client), "key": guarded.manager}
        answer = client.post("/dashboard/login", data=fields)
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    secret = guarded.manager[-16:]
    assert secret not in cookie and guarded.manager not in answer.text


@pytest.mark.parametrize("change", ["key", "expiry", "signature"])
def test_a_changed_cookie_is_no_session(guarded: Guarded, change: str) -> None:
    with guarded.logged_in(guarded.reader) as client:
        key, expires, nonce, tag = client.cookies["penstock_session"].split(".")
        client.cookies.clear()
        parts = {
            "key": ["0" * 12, expires, nonce, tag],
            "expiry": [key, str(int(expires) + 9), nonce, tag],
            "signature": [key, expires, nonce, tag[::-1]],
        }
        client.cookies.set("penstock_session", ".".join(parts[change]))
        assert client.get("/dashboard").status_code == 401


def test_a_session_ends_when_its_key_is_revoked_also_while_streaming(guarded: Guarded) -> None:
    key = guarded.new_key("read")
    with guarded.logged_in(key) as client:
        stream = client.stream("GET", "/dashboard", headers={"accept": "text/event-stream"})
        with stream as events:
            lines = events.iter_lines()
            assert next(line for line in lines if line.startswith("event: live_"))
            guarded.revoke(key)
            assert "event: login" in list(lines)  # the stream ends with it
        assert client.get("/dashboard").status_code == 401


def test_a_session_is_valid_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("restart") / "data"
    with RunningServer(data) as running:
        first = Guarded(running)
        with first.logged_in(first.reader) as client:
            cookie = client.cookies["penstock_session"]
        first.http.close()
    with RunningServer(data) as running, running.client(headers=HTML) as client:
        client.cookies.set("penstock_session", cookie)
        assert client.get("/dashboard").status_code == 200


def test_logging_out_ends_the_session_and_every_copy_of_its_cookie(guarded: Guarded) -> None:
    with guarded.logged_in(guarded.reader) as client, guarded.client() as copy:
        cookie = client.cookies["penstock_session"]
        copy.cookies.set("penstock_session", cookie)
        stream = copy.stream("GET", "/dashboard", headers={"accept": "text/event-stream"})
        with stream as events:
            lines = events.iter_lines()
            assert next(line for line in lines if line.startswith("event: live_"))
            client.post("/dashboard/logout", data={"csrf": token(client)})
            assert "event: login" in list(lines)
        assert client.get("/dashboard").status_code == 401
        copy.cookies.set("penstock_session", cookie)
        answer = copy.get("/dashboard")
        assert (answer.status_code, "this session has ended" in answer.text) == (401, True)


def test_logging_out_leaves_other_sessions_of_the_key(guarded: Guarded) -> None:
    with guarded.logged_in(guarded.reader) as one, guarded.logged_in(guarded.reader) as other:
        one.post("/dashboard/logout", data={"csrf": token(one)})
        assert other.get("/dashboard").status_code == 200


def test_a_session_stays_ended_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("restart") / "data"
    with RunningServer(data) as running:
        first = Guarded(running)
        with first.logged_in(first.reader) as client:
            cookie = client.cookies["penstock_session"]
            client.post("/dashboard/logout", data={"csrf": token(client)})
        first.http.close()
    with RunningServer(data) as running, running.client(headers=HTML) as client:
        client.cookies.set("penstock_session", cookie)
        assert client.get("/dashboard").status_code == 401


def test_an_unknown_message_does_not_tell_where_the_data_is(guarded: Guarded) -> None:
    (id_,) = guarded.seed.publish("guarded", 1)
    answer = guarded.http.get(f"/api/v1/messages/{id_[:-4]}ZZZZ")
    assert answer.status_code == 404
    assert "/" not in answer.json()["detail"]


# -- forged forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "", "0" * 40, "ä"])
def test_a_form_without_the_token_of_its_session_is_refused(
    guarded: Guarded, given: str | None
) -> None:
    with guarded.logged_in(guarded.manager) as client:
        fields = {} if given is None else {"csrf": given}
        answer = client.post("/dashboard/queues/shop/guarded/pause", data=fields)
    assert answer.status_code == 400
    assert guarded.seed.stats("guarded")["paused"] is False


def test_the_token_of_another_session_is_refused(guarded: Guarded) -> None:
    with guarded.logged_in(guarded.manager) as mine, guarded.logged_in(guarded.manager) as other:
        fields = {"csrf": token(other)}
        assert mine.post("/dashboard/queues/shop/guarded/pause", data=fields).status_code == 400


def test_a_form_of_another_origin_is_refused(guarded: Guarded) -> None:
    with guarded.logged_in(guarded.manager) as client:
        answer = client.post(
            "/dashboard/queues/shop/guarded/pause",
            data={"csrf": token(client)},
            headers={"origin": "https://evil.example"},
        )
    assert answer.status_code == 403


def test_purge_and_delete_need_the_typed_name_also_by_hand(guarded: Guarded) -> None:
    before = guarded.seed.stats("guarded")["ready"]
    assert before
    with guarded.logged_in(guarded.manager) as client:
        for verb in ("purge", "delete"):
            fields = {"csrf": token(client), "confirm": "guard"}
            answer = client.post(f"/dashboard/queues/shop/guarded/{verb}", data=fields)
            assert answer.status_code == 400, answer.text
    assert guarded.seed.stats("guarded")["ready"] == before


def test_a_deletion_is_confirmed_and_no_link_can_pretend_one(guarded: Guarded) -> None:
    guarded.seed.publish("doomed", 1)
    with guarded.logged_in(guarded.manager) as client:
        fields = {"csrf": token(client), "confirm": "doomed"}
        answer = client.post("/dashboard/queues/shop/doomed/delete", data=fields)
        assert answer.status_code == 303
        there = answer.headers["location"]
        assert "Deleted shop/doomed." in client.get(there).text
        for forged in (there[:-1], there + "A", "/dashboard?done=Your+key+has+expired"):
            page = client.get(forged)
            assert page.status_code == 200
            assert "doomed" not in page.text and "expired" not in page.text


@pytest.mark.parametrize("path", ["nowhere", "queues/shop", "queues/shop/guarded/a/b/c"])
def test_a_wrong_address_is_answered_with_a_page(guarded: Guarded, path: str) -> None:
    with guarded.logged_in(guarded.reader) as client:
        answer = client.get(f"/dashboard/{path}")
    assert (answer.status_code, answer.headers["content-type"][:9]) == (404, "text/html")
    assert "no such page" in answer.text and 'href="/dashboard"' in answer.text
    with guarded.client() as client:
        assert client.get(f"/dashboard/{path}").status_code == 401


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/login-", "/dashboard/queues/x/y"])
def test_every_page_has_its_policies(guarded: Guarded, path: str) -> None:
    with guarded.logged_in(guarded.reader) as client:
        answer = client.get(path)
        if answer.status_code == 404 and "json" in answer.headers["content-type"]:
            return  # not a page
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';") and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"


def test_files_are_cached_for_ever_by_their_version(guarded: Guarded) -> None:
    with guarded.client() as client:
        paths = re.findall(r'(?:src|href)="(/dashboard/static/[^"]+)"', client.get("/").text)
        assert len(paths) == 8
        for path in paths:
            assert "?v=" in path
            assert "immutable" in client.get(path).headers["cache-control"]
        assert client.get("/dashboard/static/..%2fserving.py").status_code == 404
        assert client.get("/dashboard/static/vendor/vendored.toml").status_code == 404


# -- roles -----------------------------------------------------------------------------------------

_CHANGES = {
    "queues/shop/guarded/pause": {},
    "queues/shop/guarded/compact": {},
    "queues/shop/guarded/purge": {"confirm": "guarded"},
    "queues/shop/guarded/delete": {"confirm": "guarded"},
    "queues/shop/guarded/settings": {"set.max_attempts": "3"},
    "queues/shop/guarded/new-group": {"name": "audit"},
    "queues/shop/guarded/redrive": {},
    "queues/shop/guarded/discard": {"confirm": "guarded"},
    "queues/shop/guarded/seek": {"way": "end"},
    "access/create": {"label": "x", "verbs": "manage"},
    "webhooks": {"queue": "shop/guarded", "url": "https://example.com/"},
    "new-queue": {"namespace": "shop", "name": "other"},
    "playground/publish": {"namespace": "shop", "queue": "guarded", "payload": "1"},
    "playground/lease": {"namespace": "shop", "queue": "guarded"},
}


@pytest.mark.parametrize("place", _CHANGES)
def test_a_key_that_may_only_read_changes_nothing(guarded: Guarded, place: str) -> None:
    before = guarded.seed.stats("guarded")
    with guarded.logged_in(guarded.reader) as client:
        fields = {"csrf": token(client), **_CHANGES[place]}
        answer = client.post(f"/dashboard/{place}", data=fields)
    assert answer.status_code == 403, answer.text
    assert "may not" in answer.text
    after = guarded.seed.stats("guarded")
    before.pop("oldest_ready_age_s"), after.pop("oldest_ready_age_s")
    before.pop("groups"), after.pop("groups")
    assert after == before


def test_a_key_of_one_namespace_sees_only_that(guarded: Guarded) -> None:
    guarded.http.put(queue_path("private", namespace="secret"), json={})
    key = guarded.new_key("read", namespaces=["shop"])
    with guarded.logged_in(key) as client:
        assert "private" not in client.get("/dashboard").text
        assert "guarded" in client.get("/dashboard").text
        assert client.get("/dashboard/queues/secret/private").status_code == 403


def test_a_key_that_may_not_read_is_told_so(guarded: Guarded) -> None:
    with guarded.logged_in(guarded.new_key("publish")) as client:
        answer = client.get("/dashboard")
    assert answer.status_code == 403
    assert "his key may not read" in answer.text


# -- what must not leak ----------------------------------------------------------------------------


def test_keys_are_neither_in_urls_nor_in_the_log(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    secret = guarded.manager[-16:]  # not by its last "_": a secret may have one near its end
    with caplog.at_level(logging.DEBUG), guarded.logged_in(guarded.manager) as client:
        assert client.get(f"/dashboard?api_key={guarded.manager}").status_code == 400
        pages = [client.get(path).text for path in ("/dashboard", "/dashboard/queues/shop/guarded")]
    assert all(secret not in page for page in pages)
    ours = [one for one in caplog.records if one.name.startswith("penstock")]
    logged = [f"{one.getMessage()} {one.__dict__}" for one in ours]
    assert logged and all(secret not in line for line in logged)
    assert all(client.cookies["penstock_session"] not in line for line in logged)


def test_the_dashboard_can_be_switched_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("off") / "data"
    with RunningServer(data, dashboard=False) as running, running.client(headers=HTML) as client:
        assert client.get("/dashboard").status_code == 404
        assert client.get("/").headers["content-type"] == "text/plain; charset=utf-8"
        links = client.get("/", headers={"accept": "application/json"}).json()["links"]
        assert "/dashboard" not in links and "/docs" in links


# -- behind a proxy --------------------------------------------------------------------------------


def test_every_link_has_the_prefix_of_the_setting(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = tmp_path_factory.mktemp("prefix") / "data"
    with (
        RunningServer(data, dashboard_prefix="/ops/penstock") as running,
        running.client(headers=HTML) as client,
    ):
        Seeder(client).publish("prefixed", 1)
        for path in ("/dashboard", "/dashboard/queues/shop/prefixed"):
            html = client.get(path).text
            links = re.findall(r'(?:href|src|action|hx-post|hx-get|sse-connect)="(/[^"]*)"', html)
            assert links and all(link.startswith("/ops/penstock/") for link in links)
            assert "/ops/penstock/api/v1" in html
        client.cookies.clear()
        assert "Path=/ops/penstock/" in client.get("/dashboard").headers["set-cookie"]


@pytest.mark.parametrize(
    ("trusted", "sent", "used"),
    [
        (["127.0.0.0/8"], "/ops", "/ops"),
        (["127.0.0.0/8"], "/ops/", "/ops"),
        (["127.0.0.0/8"], '/"><script>', ""),
        (["127.0.0.0/8"], "//evil.example", ""),
        ([], "/ops", ""),
    ],
)
def test_the_prefix_of_a_trusted_proxy_is_used(
    tmp_path_factory: pytest.TempPathFactory, trusted: list[str], sent: str, used: str
) -> None:
    data = tmp_path_factory.mktemp("proxied") / "data"
    with (
        RunningServer(data, trusted_proxies=tuple(trusted)) as running,
        running.client(headers={**HTML, "x-forwarded-prefix": sent}) as client,
    ):
        html = client.get("/dashboard").text
        assert f'href="{used}/dashboard/playground"' in html


def test_the_cookie_is_secure_behind_a_proxy_with_tls(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = tmp_path_factory.mktemp("tls") / "data"
    headers = {**HTML, "x-forwarded-proto": "https", "x-forwarded-host": "ops.example"}
    with (
        RunningServer(data, trusted_proxies=("127.0.0.0/8",)) as running,
        running.client(headers=headers) as client,
    ):
        answer = client.get("/dashboard")
    assert "Secure" in answer.headers["set-cookie"]
    assert "https://ops.example/api/v1" in answer.text
