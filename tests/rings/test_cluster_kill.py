"""kill -9 of one of two brokers on one database: only its open requests are lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster_kill import ClusterUnderLoad, kill_hard
from tests.harness.postgres_server import PostgresServer


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        yield server.create().start()
    finally:
        server.remove()


def kill_again_and_again(directory: Path, server: PostgresServer, seed: str, times: int) -> None:
    with ClusterUnderLoad(directory, server.url, seed=seed) as cluster:
        for _ in range(times):
            cluster.wait_answers(cluster.random.randrange(50, 200))
            victim = cluster.random.choice(cluster.brokers)
            kill_hard(victim)
            cluster.wait_answers(50)  # the other one goes on, with the queues of both
            victim.start()
            cluster.wait_ready(victim)
        cluster.finish()
        cluster.judge()
        assert len(cluster.told.published) > 100
        assert len(cluster.told.acked) > 50


@pytest.mark.timeout(300)
def test_nothing_answered_is_lost_when_brokers_are_killed(
    tmp_path: Path, own_server: PostgresServer
) -> None:
    kill_again_and_again(tmp_path, own_server, "push", 4)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_answered_is_lost_in_many_kills(tmp_path: Path, own_server: PostgresServer) -> None:
    kill_again_and_again(tmp_path, own_server, "long", 100)
