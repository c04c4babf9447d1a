"""Take the pictures of the dashboard in docs/images: a broker with traffic, in a real browser.

    .venv/bin/python scripts/dashboard_screenshots.py [DIRECTORY] [--seconds 90]

It needs what `make test` installs: playwright, and Debian's chromium. The broker is started for it,
with its data in memory. The charts show as much traffic as `--seconds` gives them.
"""

import argparse
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
THEMES = ("light", "dark")
SHOWN = "overview,queue,message,dead-letters"  # in the pages of docs
QUEUES = ("orders", "emails", "payments", "thumbnails", "search-index", "invoices")
REASONS = (
    "TimeoutError: the card gateway did not answer in {} s",
    "ValueError: the amount of order {} is negative",
    "ConnectionError: 10.0.0.{}:443 refused the connection",
)


@contextmanager
def broker() -> Iterator[str]:
    """Run a broker in memory, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "penstock", "serve", "memory:", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(100):
                try:
                    if httpx2.get(f"{url}/readyz", trust_env=False).status_code == 200:
                        break
                except httpx2.HTTPError:
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(30)


class Shop:
    """Some queues of a shop, and what happens there."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http
        self._random = random.Random(7)
        self._orders = 0

    def post(self, path: str, body: Any) -> Any:
        return self._http.post(f"/api/v1{path}", json=body).json()

    def queue(self, name: str) -> str:
        return f"/namespaces/shop/queues/{name}"

    def open(self) -> None:
        """Create the queues, with dead letters, long names and large numbers."""
        long = "a-queue-with-a-name-that-is-much-too-long-for-its-column"
        for name in (*QUEUES, "nightly-reports", long):
            self._http.put(f"/api/v1{self.queue(name)}", json={})
        self._http.patch(f"/api/v1{self.queue('orders')}", json={"max_messages": 4000})
        self._http.put(f"/api/v1{self.queue('orders')}/groups/audit", json={"at": "end"})
        body = {"url": "https://example.com/hooks/orders"}
        self.post(self.queue("invoices") + "/webhooks", body)
        later = [{"payload": {"mail": n}, "delay_s": 60 * n} for n in range(1, 400)]
        self.post(self.queue("emails") + "/messages", later)
        for start in range(0, 120_000, 5000):
            rows = [{"payload": {"document": start + n}} for n in range(5000)]
            self.post(self.queue("search-index") + "/messages", rows)

    def second(self) -> None:
        """Publish, lease and settle, as in a second of an ordinary day."""
        chance = self._random
        for name in QUEUES[:4]:
            messages = [self._order() for _ in range(chance.randint(4, 30))]
            self.post(self.queue(name) + "/messages", messages)
            asked = {"max": chance.randint(3, 28), "holder": f"{name}-{chance.randint(1, 3)}@host"}
            leased = self.post(self.queue(name) + "/lease", asked)["messages"]
            fails = leased[: len(leased) // 8] if name in ("payments", "orders") else []
            held = leased[-1:] if chance.random() < 0.4 else []
            acks = [one["receipt"] for one in leased if one not in fails and one not in held]
            nacks = [self._failure(one["receipt"]) for one in fails]
            self.post("/settle", {"ack": acks, "nack": nacks})

    def _order(self) -> dict[str, Any]:
        self._orders += 1
        chance = self._random
        item = {"sku": f"S-{chance.randint(100, 999)}", "n": chance.randint(1, 4)}
        return {
            "payload": {"order": self._orders, "total": chance.randint(5, 900), "items": [item]},
            "priority": chance.choice((5, 5, 5, 7, 9)),
            "key": f"customer-{int(chance.expovariate(0.2))}" if chance.random() < 0.3 else None,
            "headers": {"tenant": "acme", "trace": f"{chance.getrandbits(64):016x}"},
            "max_attempts": 1 if chance.random() < 0.6 else 4,
        }

    def _failure(self, receipt: str) -> dict[str, Any]:
        reason = self._random.choice(REASONS).format(self._random.randint(2, 90))
        return {"receipt": receipt, "reason": reason}


def pages(http: httpx2.Client) -> dict[str, str]:
    """Return the pages to show."""
    queue = "/dashboard/queues/shop/orders"
    dead = http.get("/api/v1/namespaces/shop/queues/orders/dead?limit=1").json()["messages"]
    return {
        "overview": "/dashboard?sort=ready&down=1",
        "queue": queue,
        "messages": f"{queue}/messages",
        "message": f"/dashboard/messages/{dead[0]['id']}",
        "dead-letters": f"{queue}/dead",
        "replay": f"{queue}/replay?way=beginning",
        "webhooks": "/dashboard/webhooks",
        "storage": "/dashboard/storage?queue=shop/orders",
        "access": "/dashboard/access",
        "playground": "/dashboard/playground?namespace=shop&queue=orders",
        "empty": "/dashboard/queues/shop/nightly-reports/dead",
        "error": "/dashboard/queues/shop/no-such-queue",
    }


def take(browser: Browser, url: str, name: str, theme: str, folder: Path, width: int) -> None:
    """Take one picture: what fits on a screen of that width."""
    size = {"width": width, "height": 860}
    context = browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(url)
    if page.locator(".live").count():
        page.locator(".live.on").wait_for()
    page.screenshot(path=folder / f"{name}-{theme}.png")
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--seconds", type=int, default=90, help="of traffic")
    parser.add_argument("--only", default=SHOWN, help="names of pages, with commas; empty: all")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    with broker() as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
        shop = Shop(http)
        shop.open()
        until = time.monotonic() + asked.seconds
        while time.monotonic() < until:
            began = time.monotonic()
            shop.second()
            time.sleep(max(0.0, 1 - (time.monotonic() - began)))
        wanted = {
            name: path
            for name, path in pages(http).items()
            if not asked.only or name in asked.only.split(",")
        }
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for theme in THEMES:
                for name, path in wanted.items():
                    take(browser, url + path, name, theme, asked.folder, 1280)
                if not asked.only:
                    take(browser, url + wanted["overview"], "narrow", theme, asked.folder, 400)
            browser.close()


if __name__ == "__main__":
    main()
