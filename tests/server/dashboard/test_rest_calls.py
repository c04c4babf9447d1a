"""The REST call that an action shows is the one that does it: it is sent as it is shown."""

import html
import json
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx2
import pytest

from tests.server.dashboard.seeding import Seeder
from tests.server.running import RunningServer

pytestmark = pytest.mark.xdist_group("dashboard")


class Forms(HTMLParser):
    """The forms of a page that do something: where they go, their fields, the call they show."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []
        self._form: dict[str, Any] | None = None
        self._in_curl = False
        self._select = self._area = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form" and "hx-post" in given:
            self._form = {"to": given["hx-post"], "fields": {}, "curl": ""}
        if self._form is None:
            return
        fields = self._form["fields"]
        if tag == "pre" and given.get("class") == "curl":
            self._in_curl = True
        elif tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
            name = given.get("name", "")
            value = given.get("value", "on" if given.get("type") == "checkbox" else "")
            fields[name] = f"{fields[name]},{value}" if fields.get(name) else value
        elif tag == "select":
            self._select = given.get("name", "")
        elif tag == "textarea":
            self._area = given.get("name", "")
            fields[self._area] = ""
        elif (
            tag == "option" and self._select and ("selected" in given or self._select not in fields)
        ):
            fields[self._select] = given.get("value")  # None: its text

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._form is not None:
            self.found.append(self._form)
            self._form = None
        elif tag == "pre":
            self._in_curl = False
        elif tag == "select":
            self._select = ""
        elif tag == "textarea":
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._form is None:
            return
        if self._in_curl:
            self._form["curl"] += data
        elif self._area:
            self._form["fields"][self._area] += data
        elif self._select and self._form["fields"].get(self._select, "") is None:
            self._form["fields"][self._select] = data


def request_of(curl: str) -> tuple[str, str, Any]:
    """Return method, URL and body of a command."""
    words = shlex.split(curl.replace("\\\n", " "))
    assert words[0] == "curl"
    method, url, body = "", "", None
    at = 1
    while at < len(words):
        if words[at] in ("-X", "-H", "-d"):
            option, value = words[at], words[at + 1]
            method = value if option == "-X" else method
            body = json.loads(value) if option == "-d" else body
            at += 2
        else:
            url = words[at]
            at += 1
    return method or ("GET" if body is None else "POST"), url, body


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    data = tmp_path_factory.mktemp("calls") / "data"
    with (
        RunningServer(data, broker={"webhook_allow_private": True}) as running,
        running.client(headers={"accept": "text/html"}) as http,
    ):
        seed = Seeder(http)
        seed.kill("calls", 1, 2, 3)
        seed.publish("calls", {"n": 1}, key="k", headers={"a": "b"})
        http.post(
            "/api/v1/namespaces/shop/queues/calls/webhooks", json={"url": "http://127.0.0.1:9/"}
        )
        seed.schedule("calls", "nightly", cron="30 2 * * *")
        yield http


def pages(http: httpx2.Client) -> list[str]:
    dead = http.get("/api/v1/namespaces/shop/queues/calls/dead").json()["messages"][0]["id"]
    hook = http.get("/api/v1/namespaces/shop/queues/calls/webhooks").json()["webhooks"][0]["id"]
    queue = "/dashboard/queues/shop/calls"
    return [
        f"/dashboard/messages/{dead}",
        f"{queue}/dead",
        f"{queue}/replay?way=beginning",
        f"{queue}/schedules?schedule=nightly",
        f"/dashboard/webhooks/{hook}",
        "/dashboard/playground?namespace=shop&queue=calls",
        queue,
    ]


def test_the_call_of_an_untouched_form_is_what_the_form_would_send(filled: httpx2.Client) -> None:
    checked = 0
    for path in pages(filled):
        for form in Forms(filled.get(path).text).found:
            headers = {"hx-request": "true"}
            fields = {**form["fields"], "preview": "1"}
            answer = filled.post(form["to"], data=fields, headers=headers)
            assert answer.status_code == 200, (form["to"], answer.text)
            assert html.unescape(answer.text) == form["curl"], form["to"]
            checked += 1
    assert checked > 20


def test_every_call_that_is_shown_succeeds(filled: httpx2.Client) -> None:
    """Destructive ones last; those of Replay and Playground included."""
    sent = set()
    for path in pages(filled):
        for form in sorted(
            Forms(filled.get(path).text).found, key=lambda one: "delete" in one["to"]
        ):
            method, url, body = request_of(form["curl"])
            name = (method, re.sub(r"[0-9A-Z]{26}|wh-\w+", "…", url.partition("/api")[2]))
            if name in sent:
                continue
            sent.add(name)
            answer = filled.request(method, url, json=body)
            assert answer.status_code < 300, (form["curl"], answer.text)
    assert len(sent) > 12
