"""Three brokers on one database, disturbed in every way at once: nothing is lost, back or mixed."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.cluster_soak import DISTURBANCES, Soak
from tests.harness.postgres_server import PostgresServer


def soak(
    directory: Path, seed: str, disturbances: Sequence[str | None], lease_s: float = 20.0
) -> None:
    server = PostgresServer()
    try:
        server.create().start()
        with Soak(directory, server, seed, lease_s=lease_s) as under_load:
            for one in disturbances:
                under_load.disturb(one)
            under_load.drain()
        print(dict(under_load.notes.counts))  # shown if it fails
        under_load.notes.judge()
        assert len(under_load.notes.acked) > 100
    except BaseException:  # keep the database beside the logs of the brokers
        server.stop()
        shutil.copytree(server.directory, directory / "database", ignore_dangling_symlinks=True)
        raise
    finally:
        server.remove()


@pytest.mark.timeout(600)
def test_nothing_is_lost_back_or_out_of_order_in_a_short_soak(tmp_path: Path) -> None:
    soak(tmp_path, "push", DISTURBANCES, lease_s=5.0)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_is_lost_back_or_out_of_order_in_a_soak(tmp_path: Path) -> None:
    soak(tmp_path, "long", [None] * 80)
