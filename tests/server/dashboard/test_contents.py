"""What the pages say: limits, groups, consumers, keys, filters, segments."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.server.dashboard.seeding import Seeder
from tests.server.running import queue_path

pytestmark = pytest.mark.xdist_group("dashboard")
Visit = Callable[..., Page]


def test_a_queue_shows_its_limits_groups_consumers_and_keys(
    visit: Visit, seed: Seeder, queue: str
) -> None:
    path = queue_path(queue, namespace="shop")
    assert seed.http.put(path, json={"max_messages": 10}).status_code < 300
    seed.publish(queue, 1, 2, 3, key="tenant-1")
    seed.publish(queue, 4, 5, key="tenant-2")
    seed.publish(queue, 6, 7, 8, 9)
    seed.lease(queue, 2, holder="packer@host-1")
    page = visit(f"/dashboard/queues/shop/{queue}")
    limits = page.locator("#live_limits")
    expect(limits).to_contain_text("max_messages")
    expect(limits).to_contain_text("9 of 10")
    expect(limits.locator("progress.near")).to_have_count(1)
    expect(page.locator("#live_groups tbody tr")).to_contain_text("main")
    consumers = page.locator("#live_consumers")
    expect(consumers).to_contain_text("packer@host-1")
    expect(consumers.locator("summary")).to_have_text("2 leases")
    keys = page.locator("#live_keys tbody tr")
    expect(keys.nth(0)).to_contain_text("tenant-1")
    expect(keys.nth(1)).to_contain_text("tenant-2")
    keys.nth(1).get_by_role("link").click()
    expect(page.locator("tbody tr")).to_have_count(2)


def test_messages_are_filtered_by_state_key_priority_and_time(
    visit: Visit, seed: Seeder, queue: str
) -> None:
    seed.publish(queue, "low", priority=1)
    seed.publish(queue, "high", "higher", priority=8, key="tenant-7")
    seed.publish(queue, "later", delay_s=3600)
    page = visit(f"/dashboard/queues/shop/{queue}/messages")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(4)
    page.get_by_label("State").select_option("scheduled")
    page.get_by_role("button", name="Search").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("later")
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Priority").select_option("8")
    page.get_by_label("Key").fill("tenant-7")
    page.get_by_role("button", name="Search").click()
    expect(rows).to_have_count(2)
    assert "priority=8" in page.url
    page.get_by_label("Until (UTC)").fill("2020-01-31T12:00")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("No message matches")).to_be_visible()


def test_storage_shows_segments_syncs_damage_and_quarantine(
    visit: Visit, seed: Seeder, queue: str
) -> None:
    seed.publish(queue, 1, 2, 3)
    page = visit(f"/dashboard/storage?queue=shop/{queue}")
    expect(page.locator("#live_cards")).to_contain_text("Longest sync")
    messages = page.locator("#live_queue tbody tr").nth(0)
    expect(messages).to_contain_text("messages")
    expect(messages).to_contain_text("being written")
    expect(messages).to_contain_text("100 %")
    expect(page.locator("#live_queue")).to_contain_text("No damage")
    expect(page.locator("#live_queue")).to_contain_text("Quarantine")


def test_the_overview_has_a_card_for_each_total_and_a_sparkline_for_each_queue(
    visit: Visit, seed: Seeder, queue: str
) -> None:
    seed.publish(queue, 1, 2)
    page = visit(f"/dashboard?text={queue}")
    names = page.locator("#live_cards .card .name")
    expect(names).to_have_text(
        [
            *("Queues", "Ready", "Scheduled", "Leased", "Dead", "Oldest waits"),
            *("Published", "Acked", "Disk"),
        ]
    )
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator("svg.spark")).to_have_count(1)
