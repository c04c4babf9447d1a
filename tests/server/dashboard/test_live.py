"""Pages follow the broker without being loaded again, and end with it."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.server.dashboard.seeding import Seeder
from tests.server.running import RunningServer

pytestmark = pytest.mark.xdist_group("dashboard")
Visit = Callable[..., Page]
WITHIN_MS = 2000


def marked(page: Page) -> Page:
    """Mark the page, to see whether it was loaded again."""
    expect(page.locator(".live")).to_have_text("live")
    page.evaluate("window.isTheSame = true")
    return page


def test_counts_follow_within_two_seconds(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.publish(queue, 1)
    page = marked(visit(f"/dashboard/queues/shop/{queue}"))
    ready = page.locator(".card.ready .value")
    expect(ready).to_have_text("1")
    seed.publish(queue, 2, 3)
    expect(ready).to_have_text("3", timeout=WITHIN_MS)
    seed.lease(queue, 2, holder="someone@somewhere")
    expect(page.locator(".card.leased .value")).to_have_text("2", timeout=WITHIN_MS)
    expect(page.locator("#live_consumers")).to_contain_text("someone@somewhere")
    assert page.evaluate("window.isTheSame")


def test_a_new_queue_appears_in_the_overview(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.publish(queue, 1)
    page = marked(visit(f"/dashboard?text={queue}"))
    expect(page.locator("tbody tr")).to_have_count(1)
    seed.publish(f"{queue}-2", 1)
    expect(page.locator("tbody tr")).to_have_count(2, timeout=2 * WITHIN_MS)
    assert page.evaluate("window.isTheSame")


def test_the_history_of_a_message_follows(visit: Visit, seed: Seeder, queue: str) -> None:
    (id_,) = seed.publish(queue, 1)
    page = marked(visit(f"/dashboard/messages/{id_}"))
    seed.http.post("/api/v1/settle", json={"ack": seed.lease(queue)})
    expect(page.locator(".events li")).to_have_count(3, timeout=WITHIN_MS)
    expect(page.locator("#live_state .state").first).to_have_text("done")
    assert page.evaluate("window.isTheSame")


def test_what_is_open_or_typed_stays(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.publish(queue, 1)
    seed.lease(queue)
    page = marked(visit(f"/dashboard/queues/shop/{queue}"))
    page.locator("#live_consumers details summary").click()
    page.locator("summary", has_text="Purge").click()
    typed = page.locator(".act[open] input[name=confirm]")
    typed.fill("half")
    seed.publish(queue, *range(5))
    expect(page.locator(".card.ready .value")).to_have_text("5", timeout=WITHIN_MS)
    expect(typed).to_have_value("half")
    expect(page.locator("#live_consumers details")).to_have_attribute("open", "")


def test_charts_are_drawn(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.publish(queue, 1)
    page = visit(f"/dashboard/queues/shop/{queue}")
    expect(page.locator(".plot canvas")).to_have_count(4)
    sizes = page.evaluate("[...document.querySelectorAll('.plot canvas')].map(c => c.width)")
    assert min(sizes) > 300


def test_a_server_that_stops_is_shown_and_found_again(
    open_page: Callable[..., Page],
    tmp_path_factory: pytest.TempPathFactory,
    complaints: list[str],
) -> None:
    data = tmp_path_factory.mktemp("stopping") / "data"
    with RunningServer(data) as running:
        port = running.port
        page = open_page(f"{running.url}/dashboard")
        expect(page.locator(".live")).to_have_text("live")
    expect(page.locator(".live")).to_have_text("disconnected")
    with RunningServer(data, port=port):
        expect(page.locator(".live")).to_have_text("live", timeout=10_000)
        page.close()
    complaints.clear()  # connection refused
