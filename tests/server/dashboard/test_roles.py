"""Logging in, and what a key that may only read is shown."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.server.dashboard.guarded import Guarded

pytestmark = pytest.mark.xdist_group("dashboard")


def test_a_reader_is_shown_no_buttons(
    guarded: Guarded, open_page: Callable[..., Page], complaints: list[str]
) -> None:
    page = open_page(guarded.running.url + "/dashboard/queues/shop/guarded")
    page.get_by_label("API key").fill(guarded.reader)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("guarded")  # the page that was asked for
    expect(page.get_by_text("read-only").first).to_be_visible()
    for path in ("", "/dead", "/messages", "/replay?way=beginning", "/schedules"):
        page.goto(guarded.running.url + "/dashboard/queues/shop/guarded" + path)
        expect(page.locator(".act, button.main[hx-post], button.danger")).to_have_count(0)
    page.goto(guarded.running.url + "/dashboard/access")
    expect(page.get_by_text("Only for keys that may manage the whole broker")).to_be_visible()
    assert guarded.reader not in page.url
    complaints[:] = [one for one in complaints if "401" not in one]  # the login itself
