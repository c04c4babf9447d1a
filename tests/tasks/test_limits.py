"""Limits of tasks: settings of their queues, over all workers."""

from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.queue import Queue
from penstock.tasks import Tasks
from tests.server.running import RunningServer


def test_a_task_with_limits_has_a_queue_of_its_name(tasks: Tasks) -> None:
    @tasks.task(max_in_flight=2, rate_per_s=10, burst=3, tenant_max_in_flight=1, fair=True)
    def mail(to: str) -> None: ...

    @tasks.task
    def other() -> None: ...

    assert (mail.options.queue, other.options.queue) == ("mail", "tasks")
    queue = tasks.queue("mail")
    assert isinstance(queue, Queue)
    settings = queue.settings
    assert (settings.max_in_flight, settings.tenant_max_in_flight, settings.fair) == (2, 1, True)
    assert (settings.delivery_rate_per_s, settings.delivery_burst) == (10, 3)
    plain = tasks.queue("tasks")
    assert isinstance(plain, Queue)
    assert plain.settings.max_in_flight == 0


@pytest.mark.parametrize("limited_first", [True, False])
def test_a_task_with_limits_shares_its_queue_with_no_other(
    tasks: Tasks, limited_first: bool
) -> None:
    both: list[dict[str, Any]] = [{"max_in_flight": 1, "queue": "q"}, {"queue": "q"}]
    first, second = both if limited_first else both[::-1]
    tasks.add(lambda: None, name="first", **first)
    with pytest.raises(InvalidInput, match="a queue of its own"):
        tasks.add(lambda: None, name="second", **second)
    assert [task.name for task in tasks] == ["first"]


@pytest.mark.parametrize(
    "bad", [{"max_in_flight": -1}, {"rate_per_s": "x"}, {"fair": 1}, {"tenant_burst": -2}]
)
def test_a_bad_limit_is_refused(tasks: Tasks, bad: Any) -> None:
    with pytest.raises(InvalidInput):
        tasks.add(lambda: None, name="mail", **bad)
    assert list(tasks) == []


def test_a_rate_of_each_tenant_holds_and_tenants_take_turns(
    tasks: Tasks, clock: ManualClock
) -> None:
    ran: list[str] = []

    @tasks.task(tenant_rate_per_s=0.1, tenant_burst=2, fair=True)
    def mail(to: str) -> None:
        ran.append(to)

    for number in range(3):
        mail.with_options(tenant="acme").enqueue(f"a{number}")
    job = mail.with_options(tenant="bolt").enqueue("b0")
    assert tasks.run_pending() == 3
    assert ran == ["a0", "b0", "a1"]
    assert job.state() == "done"
    clock.advance(10)
    assert tasks.run_pending() == 1


def test_a_directory_and_a_broker_get_the_limits(tmp_path: Path, server: RunningServer) -> None:
    for place in (str(tmp_path / "data"), f"{server.url}/limits"):
        ran: list[int] = []
        with Tasks(place) as tasks:
            task = tasks.add(ran.append, name="count", rate_per_s=0.001, burst=2)
            for number in range(4):
                task.enqueue(number)
            assert tasks.run_pending() == 2
            assert tasks.run_pending() == 0
            why = [task.job(job.id).why().code for job in [task.enqueue(9)]]
        assert (ran, why) == ([0, 1], ["limited"])
