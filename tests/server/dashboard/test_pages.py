"""Every page: without errors, with labels, wide and narrow; search, themes, empty states."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.server.dashboard.conftest import TakePicture
from tests.server.dashboard.seeding import Seeder
from tests.server.running import RunningServer, queue_path

pytestmark = pytest.mark.xdist_group("dashboard")
Visit = Callable[..., Page]

LONG = "a-very-long-name-that-does-not-fit-into-any-column-of-the-table"
SPACE = "n" * 64
PAGES = {
    "overview": "/dashboard",
    "root": "/",
    "sorted": "/dashboard?sort=dead&down=1&text=pages",
    "queue": "/dashboard/queues/shop/pages",
    "day": "/dashboard/queues/shop/pages?range=24h",
    "long name": f"/dashboard/queues/shop/{LONG}",
    "messages": "/dashboard/queues/shop/pages/messages",
    "no messages": "/dashboard/queues/shop/pages-empty/messages?text=nothing",
    "dead": "/dashboard/queues/shop/pages/dead",
    "no dead": "/dashboard/queues/shop/pages-empty/dead",
    "replay": "/dashboard/queues/shop/pages/replay",
    "replay preview": "/dashboard/queues/shop/pages/replay?way=beginning",
    "schedules": "/dashboard/queues/shop/pages/schedules",
    "schedule": "/dashboard/queues/shop/pages/schedules?schedule=nightly",
    "no schedules": "/dashboard/queues/shop/pages-empty/schedules",
    "webhooks": "/dashboard/webhooks",
    "storage": "/dashboard/storage",
    "storage of a queue": "/dashboard/storage?queue=shop/pages",
    "access": "/dashboard/access",
    "playground": "/dashboard/playground?namespace=shop&queue=pages",
    "message": "/dashboard/messages/{id}",
    "odd queue": f"/dashboard/queues/{SPACE}/{LONG}",
    "odd messages": f"/dashboard/queues/{SPACE}/{LONG}/messages",
    "odd dead letters": f"/dashboard/queues/{SPACE}/{LONG}/dead",
    "odd storage": f"/dashboard/storage?queue={SPACE}/{LONG}",
    "odd playground": f"/dashboard/playground?namespace={SPACE}&queue={LONG}",
    "odd message": "/dashboard/messages/{odd}",
    "message as hex": "/dashboard/messages/{id}?as=hex",
}
# What assistive technology and the content policy need, checked in the page itself.
CHECKS = """() => {
  const found = [];
  for (const one of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (!one.labels.length && !one.ariaLabel) found.push("no label: " + one.name);
  }
  for (const one of document.querySelectorAll("button, a, summary")) {
    if (!one.textContent.trim() && !one.ariaLabel) found.push("no name: " + one.outerHTML);
  }
  for (const one of document.querySelectorAll("svg:not([aria-hidden]), progress")) {
    if (!one.getAttribute("aria-label")) found.push("no name: " + one.outerHTML.slice(0, 80));
  }
  const ids = [...document.querySelectorAll("[id]")].map(one => one.id);
  if (new Set(ids).size !== ids.length) found.push("an id is used twice");
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  if (document.documentElement.scrollWidth > innerWidth) {
    found.push("wider than the window: " + document.documentElement.scrollWidth);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def odd_id(seed: Seeder) -> str:
    """A message that is leased, where everything is as long as it may be."""
    path = f"/api/v1/namespaces/{SPACE}/queues/{LONG}"
    message = {
        "payload": "W" * 5000,
        "key": "k" * 200,
        "headers": {"h" * 60: "v" * 900, "rtl": "\u202e\u05e9\u05dc\u05d5\u05dd" * 30},
    }
    answer = seed.http.post(f"{path}/messages", json=[message, {"payload": 1, "max_attempts": 1}])
    leased = seed.http.post(f"{path}/lease", json={"max": 2, "holder": "x" * 200}).json()
    nack = {"receipt": leased["messages"][1]["receipt"], "reason": "E" * 900}
    assert seed.http.post("/api/v1/settle", json={"nack": [nack]}).status_code == 200
    return str(answer.json()["messages"][0]["id"])


@pytest.fixture(scope="module")
def message_id(seed: Seeder) -> str:
    seed.kill("pages", 1, 2, 3, 4)
    seed.publish(LONG, "x")
    seed.schedule("pages", "nightly", cron="30 2 * * *", time_zone="Europe/Berlin")
    seed.schedule("pages", LONG, every_s=86400, misfire="all", paused=True)
    seed.publish("pages-empty", "x")
    receipts = seed.lease("pages-empty")
    seed.http.post("/api/v1/settle", json={"ack": receipts})
    ids = seed.publish("pages", *range(60), key="tenant-1", headers={"trace": "abc"})
    seed.lease("pages", 5)
    return ids[0]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_errors_has_labels_and_fits(
    visit: Visit, message_id: str, odd_id: str, name: str, picture: TakePicture
) -> None:
    page = visit(PAGES[name].format(id=message_id, odd=odd_id))
    expect(page.locator("h1")).to_be_visible()
    if page.locator(".live").count():
        expect(page.locator(".live")).to_have_text("live")
    assert page.evaluate(CHECKS) == []
    picture(page, name.replace(" ", "-"))
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate(CHECKS) == []
    picture(page, f"{name.replace(' ', '-')}-narrow")


@pytest.mark.parametrize("name", PAGES)
def test_no_page_has_inline_code_or_style(
    seed: Seeder, message_id: str, odd_id: str, name: str
) -> None:
    path = PAGES[name].format(id=message_id, odd=odd_id)
    html = seed.http.get(path, headers={"accept": "text/html"}).text
    assert "<!doctype html>" in html
    assert re.findall(r"<[^>]*\s(on\w+|style|hx-on[\w:-]*)\s*=", html) == []
    assert re.findall(r"<style|javascript:|<script(?![^>]*\bsrc=)", html) == []
    assert re.findall(r"<script[^>]*>[^<]", html) == []


def test_the_slash_key_focuses_the_search_which_finds_queues_and_messages(
    visit: Visit, message_id: str
) -> None:
    page = visit("/dashboard")
    page.keyboard.press("/")
    expect(page.get_by_label("Find a queue, or a message by its id")).to_be_focused()
    page.keyboard.type("shop/pages")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("pages")
    page.keyboard.press("/")
    page.keyboard.type(message_id)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(message_id)
    page.keyboard.press("/")
    page.keyboard.type("pages-em")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_the_theme_follows_the_system_until_it_is_chosen(visit: Visit) -> None:
    page = visit("/dashboard", color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_label("Switch between light and dark").click()
    light = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == light
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_the_table_of_queues_is_sorted_filtered_and_paged_by_url(
    visit: Visit, seed: Seeder
) -> None:
    for number in range(55):
        seed.publish(f"paged-{number:02}", *range(1 + number % 3))
    page = visit("/dashboard?text=paged-")
    names = page.locator("tbody tr td:first-child a")
    expect(names).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(names).to_have_count(5)
    page.get_by_role("link", name="Ready", exact=True).first.click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Ready")
    ready = page.locator("tbody tr td:nth-child(2)").all_inner_texts()
    assert ready == sorted(ready, reverse=True)


def test_a_large_message_is_shown_in_part_and_bytes_as_hex(visit: Visit, seed: Seeder) -> None:
    large = seed.publish_bytes("large", b"{" + b"x" * 600_000)
    page = visit(f"/dashboard/messages/{large}")
    expect(page.get_by_text("Only the beginning is shown")).to_be_visible()
    raw = seed.publish_bytes("large", bytes(range(256)))
    page.goto(page.url.replace(large, raw))
    expect(page.locator("pre.payload")).to_contain_text("00000010  10 11 12 13")


def test_what_does_not_exist_is_said_with_a_way_back(
    broker: RunningServer, visit: Visit, complaints: list[str]
) -> None:
    page = visit("/dashboard/queues/shop/no-such-queue")
    expect(page.locator("h1")).to_contain_text("There is no queue shop/no-such-queue")
    expect(page.get_by_role("link", name="Go to the overview")).to_be_visible()
    assert [one for one in complaints if "404" in one]
    complaints.clear()


def test_the_history_shows_every_event_of_a_message(visit: Visit, seed: Seeder) -> None:
    (id_,) = seed.publish("history", {"n": 1})
    (receipt,) = seed.lease("history", holder="packer@host-1")
    nack = [{"receipt": receipt, "reason": "out of paper", "delay_s": 3600}]
    seed.http.post("/api/v1/settle", json={"nack": nack})
    page = visit(f"/dashboard/messages/{id_}")
    events = page.locator(".events li")
    expect(events).to_have_count(3)
    expect(events.nth(1)).to_contain_text("packer@host-1")
    expect(events.nth(2)).to_contain_text("out of paper")
    expect(page.locator("svg.timeline rect")).to_have_count(3)
    expect(page.locator("#live_state")).to_contain_text("Why is it waiting?")


def test_a_lease_that_ran_out_is_an_attempt_that_failed(visit: Visit, seed: Seeder) -> None:
    (id_,) = seed.publish("ran-out", 1)
    body = {"max": 1, "lease_s": 0.1}
    seed.http.post(queue_path("ran-out", "lease", namespace="shop"), json=body)
    page = visit(f"/dashboard/messages/{id_}")
    failures = page.locator("#live_failures tbody tr")
    expect(failures).to_contain_text("lease ran out")
    expect(page.locator("svg.timeline rect")).to_have_count(4)  # retried later, then waiting


def test_a_payload_that_is_too_large_is_not_offered_in_part(visit: Visit, seed: Seeder) -> None:
    (id_,) = seed.publish("large", "x" * 200_000)
    page = visit(f"/dashboard/messages/{id_}")
    expect(page.get_by_text("too large to be copied or edited")).to_be_visible()
    expect(page.get_by_text("Publish the same with")).to_have_count(0)


def test_a_search_shows_progress_and_can_be_stopped(
    visit: Visit, seed: Seeder, complaints: list[str]
) -> None:
    for _ in range(6):
        seed.publish("search", *range(5000))
    seed.publish("search", "needle")
    page = visit("/dashboard/queues/shop/search/messages?text=needle")
    expect(page.locator("tbody tr", has_text="needle")).to_have_count(1)
    expect(page.get_by_text("The end of the queue: looked at 30,001 messages")).to_be_visible()
    page.route("**/messages/part?**", lambda route: None)  # the next part never comes
    page.reload()
    expect(page.get_by_text("Searching: looked at 10,000 messages")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped after 10,000 messages")).to_be_visible()
    complaints[:] = [one for one in complaints if not one.startswith("htmx:")]  # the end of it


def test_the_export_is_one_json_object_a_line(seed: Seeder) -> None:
    seed.publish("export", *range(300))
    answer = seed.http.get("/dashboard/queues/shop/export/messages/export")
    lines = answer.text.splitlines()
    assert len(lines) == 300
    assert [one["payload"] for one in map(json.loads, lines)] == list(range(300))
