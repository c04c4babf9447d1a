"""The rate of a client holds for all brokers together."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.broker import Verb
from penstock.broker.access import INSIDE
from penstock.broker.limits import ClientBuckets
from penstock.clock import ManualClock
from penstock.errors import TooManyRequests
from tests.broker.postgres.test_forwarded_calls import brokers, run
from tests.harness.postgres_server import PostgresServer


def admitted(buckets: ClientBuckets, calls: int) -> int:
    """Try to make calls. Return how many were admitted."""
    count = 0
    for _ in range(calls):
        try:
            buckets.take("ann", "calls")
            count += 1
        except TooManyRequests:
            pass
    return count


def test_several_brokers_admit_the_rate_of_one_in_the_long_run() -> None:
    clock = ManualClock()
    all_ = [ClientBuckets(rate_per_s=10, burst=10, most=100, clock=clock) for _ in range(3)]
    assert [admitted(one, 100) for one in all_] == [10, 10, 10], "until they know of each other"
    total = 30
    for _ in range(60):
        taken = [one.taken() for one in all_]
        for index, one in enumerate(all_):
            for other, calls in enumerate(taken):
                if other != index:
                    for client, count in calls:
                        one.charge(client, count)
        clock.advance(1.0)
        total += sum(admitted(one, 100) for one in all_)
    assert 600 <= total <= 660, total


def test_a_client_of_one_broker_gets_its_whole_rate_there() -> None:
    clock = ManualClock()
    one = ClientBuckets(rate_per_s=10, burst=10, most=100, clock=clock)
    assert admitted(one, 100) == 10
    one.taken()
    clock.advance(1.0)
    assert admitted(one, 100) == 10


def test_a_debt_is_bounded_and_each_client_has_its_own() -> None:
    clock = ManualClock()
    one = ClientBuckets(rate_per_s=10, burst=20, most=100, clock=clock)
    one.charge("ann", 1_000_000)
    one.take("bob", "calls")
    with pytest.raises(TooManyRequests, match=r"try again in 3\.100 s"):
        one.take("ann", "calls")
    assert one.taken() == [("bob", 1)]
    assert one.taken() == []


def test_a_broker_refuses_a_client_that_used_its_rate_at_another(
    postgres_server: PostgresServer, new_schema: Callable[[], str]
) -> None:
    async def story() -> None:
        async with brokers(postgres_server, new_schema()) as (owner, other, _):
            settings = replace(owner.settings, client_rate_per_s=0.001, client_burst=3)
            for broker in (owner, other):
                broker.change_settings(settings)
            caller = INSIDE._replace(client="ann")
            for _ in range(3):
                owner.admit(caller, Verb.READ, None)
            other.admit(caller, Verb.READ, None)
            await owner.call_sharing.share()
            with pytest.raises(TooManyRequests):
                other.admit(caller, Verb.READ, None)

    run(story())
