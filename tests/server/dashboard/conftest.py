"""One broker for all tests of the dashboard, and one browser for each module."""

import re
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.pictures import PICTURES
from tests.server.dashboard.guarded import Guarded
from tests.server.dashboard.seeding import Seeder
from tests.server.running import RunningServer

TakePicture = Callable[[Page, str], None]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium, installed by `scripts/setup-machine test`.

    For a module only: as long as it runs, this thread has a running event loop.
    """
    chromium = shutil.which("chromium")
    assert chromium, "chromium is missing: run scripts/setup-machine test"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield found
        found.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("dashboard") / "data"
    with RunningServer(data, broker={"webhook_allow_private": True}) as running:
        yield running


@pytest.fixture(scope="session")
def seed(broker: RunningServer) -> Iterator[Seeder]:
    with broker.client() as http:
        yield Seeder(http)


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue that no other test uses."""
    name: str = request.node.name
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[-60:].strip("-")


@pytest.fixture
def complaints() -> list[str]:
    """Errors of the page: a test that expects some removes them."""
    return []


@pytest.fixture
def open_page(browser: Browser, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    """Open pages in windows of their own. Any error in the console fails the test."""
    contexts = []

    def open_(url: str, **options: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})  # type: ignore[arg-type]
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console",
            lambda said: (
                complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def visit(broker: RunningServer, open_page: Callable[..., Page]) -> Callable[..., Page]:
    """Open a page of the broker that the tests share."""
    return lambda path="/dashboard", **options: open_page(broker.url + path, **options)


@pytest.fixture
def picture() -> TakePicture:
    """Keep a picture of a page, light and dark, for people to look at."""

    def take(page: Page, name: str) -> None:
        for theme in ("light", "dark"):
            # Without motion, colours do not change slowly.
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            page.screenshot(path=PICTURES / f"{name}-{theme}.png")

    return take


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("guarded") / "data"
    with RunningServer(data, access_log=True) as running:
        found = Guarded(running)
        yield found
        found.http.close()
