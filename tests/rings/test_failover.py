"""The primary and all its processes are killed under load, and its standby takes over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster_kill import ClusterUnderLoad
from tests.harness.postgres_server import PostgresPair

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[PostgresPair]:
    found = PostgresPair(**getattr(request, "param", {}))
    try:
        yield found.start()
    finally:
        found.remove()


def fail_over_again_and_again(directory: Path, pair: PostgresPair, seed: str, times: int) -> None:
    with ClusterUnderLoad(directory, pair.url, seed=seed) as cluster:
        for number in range(times):
            cluster.wait_answers(cluster.random.randrange(50, 300))
            if number % 2:
                pair.standby.stop_following()  # then nothing is answered, and nothing is lost
            pair.fail_over()
        cluster.wait_answers(50)
        cluster.finish()
        cluster.judge()
        assert len(cluster.told.published) > 100
        assert len(cluster.told.acked) > 50


def test_nothing_answered_is_lost_in_a_failover(tmp_path: Path, pair: PostgresPair) -> None:
    fail_over_again_and_again(tmp_path, pair, "push", 2)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_answered_is_lost_in_many_failovers(tmp_path: Path, pair: PostgresPair) -> None:
    fail_over_again_and_again(tmp_path, pair, "long", 20)


@pytest.mark.parametrize("pair", [{"synchronous_commit": "local"}], indirect=True)
def test_answers_that_no_standby_has_are_lost(tmp_path: Path, pair: PostgresPair) -> None:
    """The control run: without synchronous replication, the ring above finds losses.

    The queues go on with what the standby has, without holes.
    """
    with ClusterUnderLoad(tmp_path, pair.url, seed="control") as cluster:
        cluster.wait_answers(100)
        pair.standby.stop_following()
        cluster.wait_answers(200)
        pair.fail_over()
        cluster.wait_answers(50, may_lose=True)
        cluster.finish()
        lost, _ = cluster.losses()
        assert lost
