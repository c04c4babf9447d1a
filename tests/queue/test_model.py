"""The queue against a reference of a hundred lines: the same commands, the same answers.

Among the commands are clock jumps, compaction, reopening, process death, and power loss.
"""

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.harness.queue_life import Life
from tests.harness.queue_machine import QueueMachine

STEPS_PER_RUN = 50
STEPS_PER_LIFE = 1000
FEW = {"dedup_entries": 1, "result_entries": 2}


class KilledMachine(QueueMachine):
    """No sync at all: process death takes nothing."""


class PowerCutMachine(QueueMachine):
    """Synced before every answer: power loss takes nothing either."""

    recorded = True

    @rule(seed=st.integers(0, 1 << 16))
    def power_fails(self, seed: int) -> None:
        self.store.cut_power(seed)
        self.reopened()


class RejectingMachine(QueueMachine):
    """A bounded queue that refuses, and remembers few dedup ids."""

    bounds: ClassVar = {"max_messages": 8, "when_full": "reject", **FEW}


class DroppingMachine(QueueMachine):
    """A bounded queue that lets the oldest go."""

    bounds: ClassVar = {"max_messages": 8, "when_full": "drop_oldest", **FEW}


class FairMachine(QueueMachine):
    """Tenants take turns, and each has few at a time."""

    bounds: ClassVar = {"fair": True, "tenant_max_in_flight": 2}


class RatedMachine(QueueMachine):
    """Each tenant has a rate, and takes turns; so has the queue."""

    bounds: ClassVar = {
        "fair": True,
        "tenant_rate_per_s": 0.5,
        "tenant_burst": 2,
        "delivery_rate_per_s": 3,
        "max_in_flight": 4,
    }


class FirstComeMachine(QueueMachine):
    """Tenants have limits and take no turns; only so many messages fit."""

    bounds: ClassVar = {
        "tenant_max_in_flight": 1,
        "tenant_rate_per_s": 2,
        "max_messages": 12,
        "when_full": "drop_oldest",
    }


class LimitedMachine(QueueMachine):
    """Limits of the whole queue alone: messages stay in the usual lanes. Power may be cut."""

    recorded = True
    bounds: ClassVar = {"max_in_flight": 3, "delivery_rate_per_s": 0.25, "delivery_burst": 4}


LIMITED = [FairMachine, RatedMachine, FirstComeMachine, LimitedMachine]


def look_wide(machine: type[QueueMachine], steps: int) -> None:
    """Many short runs; a failure is shrunk to the fewest commands."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=steps // STEPS_PER_RUN,
            stateful_step_count=STEPS_PER_RUN,
            suppress_health_check=[HealthCheck.too_slow],  # goes by the clock of a busy machine
        ),
    )


def look_deep(machine: type[QueueMachine], steps: int, seed: str) -> None:
    """A few long lives."""
    for number in range(steps // STEPS_PER_LIFE):
        life = Life(machine(), f"{seed} {number}")
        life.live(STEPS_PER_LIFE)
        life.machine.teardown()


def test_short_runs_with_process_deaths_agree_with_the_reference() -> None:
    look_wide(KilledMachine, 6_000)


def test_short_runs_with_power_cuts_agree_with_the_reference() -> None:
    look_wide(PowerCutMachine, 2_000)


@pytest.mark.parametrize("machine", [RejectingMachine, DroppingMachine])
def test_lives_of_bounded_queues_agree_with_the_reference(machine: type[QueueMachine]) -> None:
    look_wide(machine, 1_000)
    look_deep(machine, 5_000, "e")


@pytest.mark.parametrize("machine", LIMITED)
def test_lives_of_limited_queues_agree_with_the_reference(machine: type[QueueMachine]) -> None:
    look_wide(machine, 1_000)
    look_deep(machine, 5_000, "limited")


@pytest.mark.parametrize("seed", ["a", "b", "c", "f", "g", "h"])
def test_long_lives_with_process_deaths_agree_with_the_reference(seed: str) -> None:
    look_deep(KilledMachine, 5_000, seed)


@pytest.mark.parametrize("seed", ["d", "e"])
def test_long_lives_with_power_cuts_agree_with_the_reference(seed: str) -> None:
    look_deep(PowerCutMachine, 5_000, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", [f"long {number}" for number in range(8)])
def test_two_million_steps_agree_with_the_reference(seed: str) -> None:
    look_wide(KilledMachine, 50_000)
    look_deep(KilledMachine, 100_000, seed)
    look_deep(PowerCutMachine, 50_000, seed)
    look_deep(RejectingMachine, 25_000, seed)
    look_deep(DroppingMachine, 25_000, seed)
    for machine in LIMITED:
        look_deep(machine, 25_000, seed)
