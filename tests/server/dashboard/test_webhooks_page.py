"""Webhooks and keys in the dashboard, against a real endpoint."""

import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect

from tests.server.dashboard.seeding import Seeder
from tests.server.dashboard.test_actions import done, opened
from tests.server.running import RunningServer

pytestmark = pytest.mark.xdist_group("dashboard")
Visit = Callable[..., Page]


class _Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b"<i>thanks</i>"
        self.send_response(500 if self.path == "/broken" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def created(page: Page, queue: str, url: str) -> None:
    panel = opened(page, "New webhook")
    panel.get_by_label("Queue").fill(f"shop/{queue}")
    panel.get_by_label("URL").fill(url)
    panel.get_by_role("button", name="Create").click()
    done(page, "It signs with this secret")
    expect(page.locator("#notice pre").first).to_have_text(re.compile("^whsec_"))


def test_a_webhook_from_creation_to_deletion(
    visit: Visit, seed: Seeder, queue: str, endpoint: str
) -> None:
    seed.publish(queue, 0)
    page = visit("/dashboard/webhooks")
    created(page, queue, f"{endpoint}/hook")
    page.locator("tr", has_text=queue).get_by_role("link", name=f"{endpoint}/hook").click()
    expect(page.get_by_text("Nothing was delivered yet")).to_be_visible()
    (id_,) = seed.publish(queue, 1)
    row = page.locator("#live_deliveries tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text(id_)
    expect(row).to_contain_text("<i>thanks</i>")  # as text
    expect(page.locator("#live_cards")).to_contain_text("100 %")

    opened(page, "Resend").get_by_role("button", name="Resend").click()
    done(page, "Sent again: delivered, status 200.")
    expect(row).to_have_count(2)

    opened(page, "Rotate secret").get_by_role("button", name="Rotate").click()
    done(page, "The old secret signs as well for a day")

    panel = opened(page, "Change URL")
    panel.get_by_label("URL").fill(f"{endpoint}/other")
    panel.get_by_role("button", name="Change").click()
    done(page, "Changed url.")

    opened(page, "Disable").get_by_role("button", name="Disable").click()
    done(page, "Changed enabled.")
    expect(page.locator("#live_cards .note.bad")).to_contain_text("Disabled")

    webhook = page.url.rpartition("/")[2]
    panel = opened(page, "Delete")
    panel.get_by_label("Type").fill(webhook)
    panel.get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("Webhooks")
    expect(page.locator("tr", has_text=queue)).to_have_count(0)


def test_a_failing_endpoint_is_shown_with_its_answer(
    visit: Visit, seed: Seeder, queue: str, endpoint: str
) -> None:
    seed.publish(queue, 0)
    page = visit("/dashboard/webhooks")
    created(page, queue, f"{endpoint}/broken")
    seed.publish(queue, *range(6))
    row = page.locator("tr", has_text=queue)
    expect(row.locator(".state")).to_have_text("open")  # the breaker, by itself
    row.get_by_role("link", name=f"{endpoint}/broken").click()
    expect(page.locator("#live_deliveries tbody tr").first).to_contain_text("500")
    expect(page.locator(".card.bad").first).to_contain_text("0 %")


def test_keys_are_created_shown_once_and_revoked(
    open_page: Callable[..., Page],
    tmp_path_factory: pytest.TempPathFactory,
    complaints: list[str],
) -> None:
    with RunningServer(tmp_path_factory.mktemp("keys") / "data") as running:
        page = open_page(f"{running.url}/dashboard/access")
        expect(page.get_by_text("There is no key")).to_be_visible()
        panel = opened(page, "New key")
        panel.get_by_label("Label").fill("the <first>")
        panel.get_by_role("button", name="Create").click()
        done(page, "Created key")
        token = page.locator("#notice pre").first.inner_text()
        page.reload()  # now a key is needed: the visitor has a session of the new one
        expect(page.locator("tbody tr")).to_contain_text("the <first>")
        with running.client(headers={"accept": "text/html"}) as http:
            assert http.get("/dashboard/access").status_code == 401
        assert token not in page.content()

        panel = opened(page, "New key")
        panel.get_by_label("Label").fill("second")
        panel.get_by_role("button", name="Create").click()
        done(page, "Created key")
        second = page.locator("tbody tr", has_text="second")
        id_ = second.locator("td.mono").inner_text()
        second.get_by_role("link", name="Revoke").click()
        expect(page.get_by_label("Id of the key")).to_have_value(id_)
        page.get_by_label("The same again").fill(id_)
        expect(page.locator("#revoke pre.curl")).to_contain_text(f"/api/v1/keys/{id_}")
        page.get_by_role("button", name="Revoke", exact=True).click()
        done(page, "Revoked second")
        expect(second).to_contain_text("revoked")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("API key")).to_be_visible()
        complaints[:] = [one for one in complaints if "401" not in one]
        page.close()
