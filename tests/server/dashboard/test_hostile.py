"""What clients send is text: markup in payloads, headers, keys and reasons does nothing."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.server.dashboard.seeding import IMAGE, ODD_KEY, SCRIPT, Seeder

pytestmark = pytest.mark.xdist_group("dashboard")
Visit = Callable[..., Page]


@pytest.fixture
def message_id(seed: Seeder, queue: str) -> str:
    """A hostile message that is leased by a hostile consumer, and a hostile dead letter."""
    seed.kill(queue, SCRIPT, reasons=(IMAGE + "\r\nevent: login\r\n\r\n" + SCRIPT,))
    id_ = seed.hostile(queue)
    seed.hostile(queue)
    seed.lease(queue, 1, holder=IMAGE)
    return id_


def unharmed(page: Page) -> None:
    """Check that nothing of it became a part of the page."""
    assert page.title() != "owned"
    assert page.locator("main img, main script, main b:has-text('k')").count() == 0


@pytest.mark.parametrize(
    "place",
    ["", "/messages", "/messages?text=script&key=" + "%3Cb%3Ek", "/dead", "/replay"],
)
def test_pages_of_a_queue_show_it_as_text(
    visit: Visit, message_id: str, queue: str, place: str
) -> None:
    page = visit(f"/dashboard/queues/shop/{queue}{place}")
    expect(page.locator("h1")).to_have_text(queue)
    if page.locator(".live").count():
        expect(page.locator(".live")).to_have_text("live")
        page.wait_for_function("document.querySelectorAll('[id^=live_]').length > 1")
    unharmed(page)
    if place in ("/messages", "/dead"):
        expect(page.locator("tbody").last).to_contain_text("<script>")


@pytest.mark.parametrize("form", ["json", "text", "hex"])
def test_the_page_of_a_message_shows_it_as_text(visit: Visit, message_id: str, form: str) -> None:
    page = visit(f"/dashboard/messages/{message_id}?as={form}")
    unharmed(page)
    expect(page.locator("main")).to_contain_text(IMAGE)
    expect(page.locator("dd.mono")).to_contain_text(ODD_KEY)
    if form != "hex":
        expect(page.locator("pre.payload")).to_contain_text(SCRIPT)


def test_a_reason_with_line_ends_does_not_end_an_event(
    visit: Visit, seed: Seeder, message_id: str, queue: str
) -> None:
    """A carriage return in a live part would begin a line of the event stream."""
    page = visit(f"/dashboard/queues/shop/{queue}/dead")
    expect(page.locator(".live")).to_have_text("live")
    page.evaluate("window.isTheSame = true")
    seed.kill(queue, 2, reasons=("another",))
    expect(page.locator("#live_reasons tbody tr")).to_have_count(2)
    assert page.evaluate("window.isTheSame")  # no event `login`, which loads it again
    unharmed(page)


def test_searching_for_markup_is_text(visit: Visit) -> None:
    page = visit("/dashboard/find?q=" + "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    expect(page.get_by_text("No queue matches")).to_be_visible()
    unharmed(page)
