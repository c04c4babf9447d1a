"""A crash at any instant leaves a directory that opens by itself and has kept every promise.

The states, their names and how to make one again: `tests/harness/crash_states.py`. What must be
true of each: `tests/harness/ledger_oracle.py`.
"""

from dataclasses import replace

import pytest

from penstock.ledger.settings import LedgerSettings
from tests.harness.ledger_life import SMALL, LedgerLife
from tests.harness.ledger_lives import PLOTS, Plot, mixed
from tests.rings.crash_ring import Ring

POLICIES: dict[str, LedgerSettings] = {
    "always": SMALL,
    "interval": replace(SMALL, sync="interval"),
    "batch": replace(SMALL, sync="batch", sync_batch=3),
    "never": replace(SMALL, sync="never"),
    "never, without a mapping": replace(SMALL, sync="never", mapped=False),
}

STATES_PER_PUSH = 50_000
STATES_OF_THE_LONG_RING = 1_000_000


def lives(mixed_lives: int) -> dict[str, Plot]:
    return PLOTS | {f"mixed {number}": mixed for number in range(mixed_lives)}


def per_life(states: int, mixed_lives: int) -> int:
    return -(-states // (len(lives(mixed_lives)) * len(POLICIES)))


@pytest.mark.parametrize("life", lives(2))
@pytest.mark.parametrize("policy", POLICIES)
def test_every_promise_holds_after_a_crash(policy: str, life: str) -> None:
    budget = per_life(STATES_PER_PUSH, 2)
    plot = lives(2)[life]
    ring = Ring(f"{policy}, {life}", plot, POLICIES[policy], budget, cuts=1, tears=1)
    ring.run()
    assert ring.judged == budget


def fills_events_and_snapshots(life: LedgerLife) -> None:
    life.note()
    life.snapshot()
    for _ in range(4):
        life.note(6)
    life.snapshot()


def fills_and_rewrites(life: LedgerLife) -> None:
    for _ in range(6):
        life.publish(life.draft(200))
    life.compact("messages", keep=lambda seq: seq in (1, 4), rewrite_below=1)


def fills_and_removes(life: LedgerLife) -> None:
    for _ in range(7):
        life.publish(life.draft(200))
    life.compact("messages", keep=lambda seq: seq > 4, rewrite_below=0)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (fills_events_and_snapshots, LedgerLife.forget_events),
        (fills_and_rewrites, LedgerLife.close),
        (fills_and_removes, LedgerLife.publish),
    ],
    ids=["snapshot, then events removed", "rewritten, then opened", "removed, then opened"],
)
@pytest.mark.parametrize("policy", ["always", "never"])
def test_names_that_the_dead_never_synced_are_synced_before_they_are_trusted(
    policy: str, first: Plot, then: Plot
) -> None:
    ring = Ring(policy, first, POLICIES[policy], budget=0, cuts=0, tears=0)
    ring.run_every_second_crash(then)
    assert ring.judged > 300


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("life", lives(10))
@pytest.mark.parametrize("policy", POLICIES)
def test_every_promise_holds_after_very_many_crashes(policy: str, life: str) -> None:
    budget = per_life(STATES_OF_THE_LONG_RING, 10)
    plot = lives(10)[life]
    ring = Ring(f"{policy}, {life}", plot, POLICIES[policy], budget, cuts=6, tears=6)
    ring.run()
    assert ring.judged == budget
