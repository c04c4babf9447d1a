"""What an operator has to see: the broker's trouble, and the database behind it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Page, expect

from penstock.broker.store import DatabaseState, StandbyState, TableState
from tests.harness.postgres_server import PostgresServer
from tests.server.dashboard.conftest import TakePicture
from tests.server.dashboard.seeding import Seeder
from tests.server.running import RunningServer, queue_path

pytestmark = pytest.mark.xdist_group("dashboard")
Visit = Callable[..., Page]
REASON = "shop/orders: syncing failed ([Errno 5] Input/output error)"
LIVE = {"timeout": 10_000}  # a page follows within 2 s; other tests measure that


class OnDatabase(RunningServer):
    """A server whose store is a database."""

    def __init__(self, data: Path, url: str) -> None:
        super().__init__(data)
        self._url = url

    @property
    def location(self) -> str:
        return self._url


@pytest.fixture(scope="module")
def on_database(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("create database dashboard")
    url = postgres_server.url.replace("/postgres", "/dashboard")
    with OnDatabase(tmp_path_factory.mktemp("on-database") / "data", url) as running:
        yield running


def test_the_overview_shows_trouble_as_it_comes_and_goes(
    visit: Visit,
    broker: RunningServer,
    seed: Seeder,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    picture: TakePicture,
) -> None:
    seed.publish(queue, 1)
    page = visit("/dashboard")
    note = page.locator("#live_health [role=alert]")
    expect(page.locator(".live")).to_have_text("live")
    expect(note).to_have_count(0)
    with monkeypatch.context() as patch:
        patch.setattr(type(broker.server.broker.store), "trouble", property(lambda _: REASON))
        expect(note).to_contain_text(f"The broker is in trouble. {REASON}", **LIVE)  # type: ignore[arg-type]
        picture(page, "trouble")
        storage = visit("/dashboard/storage")
        expect(storage.locator("#live_cards .bad")).to_contain_text("syncing failed")
    expect(note).to_have_count(0, **LIVE)


def test_storage_shows_the_database_its_tables_and_that_it_has_no_standby(
    on_database: RunningServer, open_page: Callable[..., Page], picture: TakePicture
) -> None:
    with on_database.client() as http:
        path = queue_path("orders", "messages", namespace="shop")
        assert http.post(path, json=[{"payload": n} for n in range(50)]).status_code == 201
    page = open_page(f"{on_database.url}/dashboard/storage")
    panel = page.locator("#live_database")
    expect(panel.get_by_role("heading", name="PostgreSQL")).to_be_visible()
    expect(panel).to_contain_text("primary")
    expect(panel).to_contain_text("/dashboard")  # the name of the database
    expect(panel).to_contain_text("No standby")
    expect(panel.locator("tbody tr", has_text="queue").first).to_be_visible()
    expect(page.locator("#live_largest")).to_contain_text("shop/orders")
    picture(page, "storage-postgres")
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_storage_shows_standbys_bloat_and_what_keeps_the_database_from_writing(
    on_database: RunningServer,
    open_page: Callable[..., Page],
    monkeypatch: pytest.MonkeyPatch,
    picture: TakePicture,
) -> None:
    state = DatabaseState(
        "db1:5432,db2:5432/shop",
        is_primary=True,
        needs_standby=True,
        standbys=(
            StandbyState("db2", "streaming", "sync", 0.0, 0),
            StandbyState("", "catchup", "async", 75.0, 300 << 20),
        ),
        commits_waiting=3,
        oldest_snapshot_s=4000.0,
        outbox_waiting=1200,
        outbox_refused=2,
        tables=(TableState("segment", 3_000, 1_000, 5 << 30), TableState("empty", 0, 0, 0)),
        problem="no synchronous standby confirms commits: start one",
    )

    async def database_state() -> DatabaseState:
        return state

    monkeypatch.setattr(on_database.server.broker.store, "database_state", database_state)
    page = open_page(f"{on_database.url}/dashboard/storage")
    panel = page.locator("#live_database")
    expect(panel.get_by_role("alert")).to_contain_text("no synchronous standby")
    expect(panel).to_contain_text("yes, 3 wait now")
    expect(panel).to_contain_text("1,200 wait, 2 refused")
    rows = panel.locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("db2")
    expect(rows.nth(1)).to_contain_text("(no name)")
    expect(rows.nth(1)).to_contain_text("300 MiB")
    expect(rows.nth(2)).to_contain_text("25 %")
    expect(rows.nth(3)).to_contain_text("–")
    picture(page, "storage-postgres-trouble")
