"""`GET /` is the dashboard for browsers, and says where to go to programs and people with curl."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.stores import KeyAdmin
from tests.server.running import RunningServer, location_of
from tests.server.wire import Wire


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("root") / "data") as server:
        yield server


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (BROWSER, "text/html; charset=utf-8"),
        ("application/json", "application/json"),
        ("*/*", "text/plain; charset=utf-8"),
    ],
)
def test_each_caller_gets_its_own_form_with_the_places_to_go(
    running: RunningServer, accept: str, content_type: str
) -> None:
    with running.client() as http:
        page = http.get("/", headers={"accept": accept})
    assert (page.status_code, page.headers["content-type"]) == (200, content_type)
    is_dashboard = "<h1>All queues</h1>" in page.text
    assert is_dashboard == (accept == BROWSER)
    for place in ("/docs",) if is_dashboard else ("/docs", "/openapi.json", "/metrics", "/readyz"):
        assert place in page.text


def test_every_place_it_names_is_there(running: RunningServer) -> None:
    with running.client() as http:
        links = http.get("/", headers={"accept": "application/json"}).json()["links"]
        assert [http.get(place).status_code for place in links] == [200] * len(links)


def test_no_key_is_needed(tmp_path: Path) -> None:
    KeyAdmin(location_of(tmp_path / "data")).create("test", ["read"], None)
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        assert http.get("/").status_code == 200
        assert http.get("/metrics").status_code == 401


def test_a_host_that_is_markup_stays_text(running: RunningServer) -> None:
    with Wire(running.port) as wire:
        wire.send(b"GET / HTTP/1.1\r\nhost: <b>x</b>\r\naccept: text/html\r\n\r\n")
        answer = wire.answer()
    assert answer.status in (200, 400)
    assert b"<b>x" not in answer.body
