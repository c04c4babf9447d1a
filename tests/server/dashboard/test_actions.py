"""Every action, by its buttons: the REST call is shown first, then it is done."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.server.dashboard.seeding import Seeder
from tests.server.running import RunningServer

pytestmark = pytest.mark.xdist_group("dashboard")
Visit = Callable[..., Page]


def opened(page: Page, name: str, within: str = "main") -> Locator:
    """Open the panel of an action. It shows the REST call."""
    act = page.locator(f"{within} details.act", has=page.locator(f"summary:text-is('{name}')"))
    act.locator("summary").first.click()
    panel = act.locator(".pop")
    expect(panel.locator("pre.curl")).to_contain_text("curl")
    return panel


def done(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.locator("#notice .note.good")).to_contain_text(text)


@pytest.mark.parametrize("height", [400, 900])
def test_the_result_is_shown_below_the_bar(
    visit: Visit, seed: Seeder, queue: str, height: int
) -> None:
    seed.publish(queue, 1)
    page = visit(f"/dashboard/queues/shop/{queue}", viewport={"width": 1280, "height": height})
    page.locator("#settings > summary").click()
    page.locator("#settings").get_by_label("max_attempts").fill("7")
    page.locator("#settings").get_by_role("button", name="Save settings").click()
    done(page, "Changed max_attempts.")
    bar, notice = page.locator("header.bar").bounding_box(), page.locator("#notice").bounding_box()
    assert bar is not None
    assert notice is not None
    assert notice["y"] >= bar["y"] + bar["height"]
    assert notice["y"] + notice["height"] <= height


def test_an_unfinished_form_says_what_is_missing_instead_of_the_call(visit: Visit) -> None:
    page = visit("/dashboard/playground?namespace=shop&queue=unfinished")
    page.locator("textarea[name=payload]").fill("{not json")
    expect(page.locator("pre.curl").first).to_contain_text("# the payload is not JSON")
    page.locator("textarea[name=payload]").fill("{}")
    expect(page.locator("pre.curl").first).to_contain_text("curl http")


def test_copying_works_without_tls_where_browsers_have_no_clipboard(visit: Visit) -> None:
    page = visit("/dashboard/playground?namespace=shop&queue=copying")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("getSelection().toString()").startswith("curl http")


def test_the_first_key_can_be_revoked_at_once(tmp_path: Path, open_page: Visit) -> None:
    with RunningServer(tmp_path) as running:
        page = open_page(f"{running.url}/dashboard/access")
        expect(page.get_by_text("There is no key")).to_be_visible()
        panel = opened(page, "New key")
        panel.get_by_role("button", name="Create").click()
        done(page, "Created key")
        expect(page.get_by_text("There is no key")).to_have_count(0)
        expect(page.get_by_text("1 key", exact=True)).to_be_visible()
        page.get_by_role("link", name="Revoke…").click()
        expect(page.get_by_label("The same again")).to_be_focused()


# -- a queue ---------------------------------------------------------------------------------------


def test_create_a_queue(visit: Visit, seed: Seeder, queue: str) -> None:
    panel = opened(page := visit("/dashboard"), "New queue")
    panel.get_by_label("Namespace").fill("shop")
    panel.get_by_label("Name", exact=True).fill(queue)
    expect(panel.locator("pre.curl")).to_contain_text("-X PUT")
    expect(panel.locator("pre.curl")).to_contain_text(f"/namespaces/shop/queues/{queue}")
    panel.get_by_role("button", name="Create").click()
    expect(page.locator("h1")).to_have_text(queue)
    assert seed.stats(queue)["ready"] == 0


def test_pause_and_resume(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.publish(queue, 1)
    page = visit(f"/dashboard/queues/shop/{queue}")
    opened(page, "Pause").get_by_role("button", name="Pause").click()
    done(page, "Paused")
    assert seed.stats(queue)["paused"]
    opened(page, "Resume").get_by_role("button", name="Resume").click()  # the button followed
    done(page, "Resumed")
    assert not seed.stats(queue)["paused"]


def test_compact(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.publish(queue, 1)
    page = visit(f"/dashboard/queues/shop/{queue}")
    opened(page, "Compact").get_by_role("button", name="Compact").click()
    done(page, "Compacted")


def test_purge_needs_the_name(
    visit: Visit, seed: Seeder, queue: str, complaints: list[str]
) -> None:
    seed.publish(queue, 1, 2, 3)
    page = visit(f"/dashboard/queues/shop/{queue}")
    panel = opened(page, "Purge")
    panel.get_by_label("Type").fill("something else")
    panel.get_by_role("button", name="Purge").click()
    expect(page.locator("#notice .note.bad")).to_contain_text(f"type {queue} to confirm")
    assert seed.stats(queue)["ready"] == 3
    complaints.clear()  # the browser reports the 400
    panel = opened(page, "Purge")
    panel.get_by_label("Type").fill(queue)
    panel.get_by_role("button", name="Purge").click()
    done(page, "Purged: 3 deliveries")
    assert seed.stats(queue)["ready"] == 0


def test_delete_needs_the_name(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.publish(queue, 1)
    page = visit(f"/dashboard/queues/shop/{queue}")
    panel = opened(page, "Delete")
    panel.get_by_label("Type").fill(queue)
    panel.get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("All queues")
    done(page, f"Deleted shop/{queue}.")
    assert seed.http.get(f"/api/v1/namespaces/shop/queues/{queue}").status_code == 404
    page.get_by_role("link", name="Ready").first.click()
    expect(page.locator("#notice")).to_be_empty()


def test_settings_are_edited_with_units_and_only_changes_are_sent(
    visit: Visit, seed: Seeder, queue: str
) -> None:
    seed.publish(queue, 1)
    page = visit(f"/dashboard/queues/shop/{queue}")
    page.locator("#settings > summary").click()
    settings = page.locator("#settings")
    settings.get_by_label("lease_s").fill("2m")
    settings.get_by_label("when_full").select_option("block")
    expected = '{"lease_s": 120.0, "when_full": "block"}'
    expect(settings.locator("pre.curl")).to_contain_text(expected)
    settings.get_by_role("button", name="Save settings").click()
    done(page, "Changed lease_s, when_full.")
    found = seed.http.get(f"/api/v1/namespaces/shop/queues/{queue}").json()["settings"]
    assert (found["lease_s"], found["when_full"]) == (120.0, "block")


def test_groups_are_created_and_deleted(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.publish(queue, 1, 2)
    page = visit(f"/dashboard/queues/shop/{queue}")
    panel = opened(page, "New group")
    panel.get_by_label("Name").fill("reports")
    panel.get_by_role("button", name="Create").click()
    done(page, "Created group reports.")
    page.get_by_role("link", name="reports").click()  # appeared by itself
    panel = opened(page, "Delete group reports")
    panel.get_by_label("Type").fill("reports")
    panel.get_by_role("button", name="Delete").click()
    done(page, "Deleted group reports.")
    assert list(seed.stats(queue)["groups"]) == ["main"]


# -- a message -------------------------------------------------------------------------------------


def test_cancel_a_message(visit: Visit, seed: Seeder, queue: str) -> None:
    (id_,) = seed.publish(queue, 1)
    page = visit(f"/dashboard/messages/{id_}")
    opened(page, "Cancel").get_by_role("button", name="Cancel it").click()
    done(page, "Cancelled in every group.")
    expect(page.locator(".events")).to_contain_text("cancelled")  # by itself


def test_redrive_a_message(visit: Visit, seed: Seeder, queue: str) -> None:
    (id_,) = seed.kill(queue, 1)
    page = visit(f"/dashboard/messages/{id_}")
    opened(page, "Redrive").get_by_role("button", name="Redrive").click()
    done(page, "Ready again")
    assert seed.stats(queue)["ready"] == 1


def test_publish_a_message_again_with_edits(visit: Visit, seed: Seeder, queue: str) -> None:
    (id_,) = seed.publish(queue, {"order": 7}, key="k", headers={"trace": "abc"}, priority=3)
    page = visit(f"/dashboard/messages/{id_}")
    page.locator("#again > summary").click()
    form = page.locator("#again")
    form.locator("textarea[name=payload]").fill('{"order": 8}')
    form.get_by_label("Headers").fill("trace: xyz\nnew: 1")
    expect(form.locator("pre.curl")).to_contain_text('"headers": {"trace": "xyz", "new": "1"}')
    form.get_by_role("button", name="Publish").click()
    done(page, "Published as")
    page.get_by_role("link", name="Show it").click()
    expect(page.locator("pre.payload")).to_contain_text('"order": 8')
    expect(page.locator("main")).to_contain_text("xyz")


def test_a_message_is_copied_as_curl_and_python_that_work(
    visit: Visit, seed: Seeder, queue: str
) -> None:
    (id_,) = seed.publish(queue, {"order": 7}, key="k", priority=3)
    page = visit(f"/dashboard/messages/{id_}")
    page.get_by_text("Publish the same with Python").click()
    code = page.locator("details", has_text="Publish the same with Python").locator("pre")
    exec(compile(code.last.inner_text(), "copied", "exec"), {})
    assert seed.stats(queue)["ready"] + seed.stats(queue)["parked"] == 2


# -- dead letters ----------------------------------------------------------------------------------


def test_redrive_all_first_as_a_dry_run(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.kill(queue, 1, 2, 3, 4)
    page = visit(f"/dashboard/queues/shop/{queue}/dead")
    panel = opened(page, "Redrive all")
    expect(panel.locator("pre.curl")).to_contain_text('"dry_run": true')
    panel.get_by_role("button", name="Redrive").click()
    done(page, "would make 4 dead letters ready")
    assert seed.stats(queue)["dead"] == 4
    panel = opened(page, "Redrive all")
    panel.get_by_label("Dry run").uncheck()
    panel.get_by_role("button", name="Redrive").click()
    done(page, "Made 4 dead letters ready again.")
    assert seed.stats(queue)["dead"] == 0


def test_redrive_those_of_one_reason(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.kill(queue, 1, 2, 3, 4)
    page = visit(f"/dashboard/queues/shop/{queue}/dead")
    expect(page.locator("#live_reasons tbody tr")).to_have_count(3)
    page.get_by_role("link", name="TimeoutError").click()
    expect(page.locator("#live_letters tbody tr")).to_have_count(2)
    panel = opened(page, "Redrive those of this reason")
    panel.get_by_label("Dry run").uncheck()
    panel.get_by_role("button", name="Redrive").click()
    done(page, "Made 2 dead letters ready again.")
    assert seed.stats(queue)["dead"] == 2


def test_redrive_at_a_rate_and_stop_it(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.kill(queue, *range(20))
    page = visit(f"/dashboard/queues/shop/{queue}/dead")
    panel = opened(page, "Redrive all")
    panel.get_by_label("At most a second").fill("0.01")
    panel.get_by_label("Dry run").uncheck()
    panel.get_by_role("button", name="Redrive").click()
    done(page, "at most 0.01 a second")
    opened(page, "Stop", "#live_redrives").get_by_role("button", name="Stop").click()
    done(page, "Stopped.")
    expect(page.locator("#live_redrives .note")).to_have_count(0)
    assert seed.stats(queue)["dead"] >= 19


def test_redrive_and_discard_one(visit: Visit, seed: Seeder, queue: str) -> None:
    first, second = seed.kill(queue, 1, 2)
    page = visit(f"/dashboard/queues/shop/{queue}/dead")
    opened(page, "Redrive", f"#d-{first}").get_by_role("button", name="Redrive").click()
    done(page, "Made 1 dead letter ready again.")
    opened(page, "Discard", f"#d-{second}").get_by_role("button", name="Discard").click()
    done(page, "Discarded 1 dead letter.")
    assert (seed.stats(queue)["ready"], seed.stats(queue)["dead"]) == (1, 0)


def test_discard_all_needs_the_name(visit: Visit, seed: Seeder, queue: str) -> None:
    seed.kill(queue, 1, 2)
    page = visit(f"/dashboard/queues/shop/{queue}/dead")
    panel = opened(page, "Discard all")
    panel.get_by_label("Type").fill(queue)
    panel.get_by_role("button", name="Discard").click()
    done(page, "Discarded 2 dead letters.")
    assert seed.stats(queue)["dead"] == 0


# -- schedules -------------------------------------------------------------------------------------


def test_a_schedule_is_shown_with_its_times_paused_resumed_and_removed(
    visit: Visit, seed: Seeder, queue: str
) -> None:
    seed.publish(queue, 1)
    seed.schedule(queue, "nightly", cron="30 2 * * *", time_zone="Europe/Berlin")
    seed.schedule(queue, "beat", every_s=1)
    page = visit(f"/dashboard/queues/shop/{queue}")
    page.get_by_role("link", name="Schedules").click()
    row = page.locator("tr", has_text="nightly")
    expect(row).to_contain_text("30 2 * * *")
    expect(row).to_contain_text("in ")
    expect(page.locator("tr", has_text="beat").locator("a.mono")).to_be_visible()  # it has fired
    row.get_by_role("link", name="nightly").click()
    expect(page.locator("#live_one li")).to_have_count(10)
    expect(page.get_by_text("<script>document.title")).to_be_visible()  # the payload, as text
    opened(page, "Pause").get_by_role("button", name="Pause").click()
    done(page, "Paused nightly")
    expect(page.locator("#live_one")).to_contain_text("Paused.")
    page = visit(f"/dashboard/queues/shop/{queue}/schedules?schedule=nightly")
    opened(page, "Resume").get_by_role("button", name="Resume").click()
    done(page, "Resumed nightly")
    panel = opened(page, "Remove")
    panel.get_by_label("Type nightly to confirm").fill("nightly")
    panel.get_by_role("button", name="Remove").click()
    expect(page.locator("tr", has_text="nightly")).to_have_count(0)
    expect(page.locator("tr", has_text="beat")).to_have_count(1)


# -- replay, keys, the playground ------------------------------------------------------------------


def test_replay_says_how_many_before_it_is_done(visit: Visit, seed: Seeder, queue: str) -> None:
    ids = seed.publish(queue, *range(5))
    seed.http.post("/api/v1/settle", json={"ack": seed.lease(queue, 5)})
    page = visit(f"/dashboard/queues/shop/{queue}/replay")
    page.get_by_label("This message").check()
    page.get_by_label("Message id").fill(ids[2])
    page.get_by_role("button", name="How many is that?").click()
    expect(page.locator(".card.ready .value")).to_have_text("3")
    expect(page.locator("pre.curl")).to_contain_text(f'{{"to": {{"id": "{ids[2]}"}}}}')
    page.get_by_role("button", name="Replay 3 messages").click()
    done(page, "continues with message 3")
    assert seed.stats(queue)["ready"] == 3


def test_publish_lease_and_settle_by_hand(visit: Visit, seed: Seeder, queue: str) -> None:
    page = visit(f"/dashboard/playground?namespace=shop&queue={queue}")
    for _ in range(4):
        page.get_by_role("button", name="Publish").click()
        done(page, "Published as")
    page.get_by_label("Messages").fill("4")
    page.get_by_role("button", name="Lease", exact=True).click()
    leased = page.locator(".leased-message")
    expect(leased).to_have_count(4)
    for number, verdict in enumerate(("Extend", "Ack", "Nack", "Release")):
        leased.nth(number).get_by_role("button", name=verdict, exact=True).click()
        expect(leased.nth(number).locator(".note.good")).to_contain_text(verdict[:3])
    found = seed.stats(queue)
    assert (found["acked"], found["nacked"], found["leased"], found["ready"]) == (1, 1, 1, 1)
