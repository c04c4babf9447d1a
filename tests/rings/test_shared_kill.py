"""The holder of a shared directory is killed under load from eight processes."""

from pathlib import Path

import pytest

from tests.harness.shared_kill import SharedKills


def test_no_kill_of_a_holder_loses_or_doubles_anything(tmp_path: Path) -> None:
    _run(tmp_path, kills=4, seed="default")


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"sync": "always"}, {"queue": "shop/orders"}], ids=str)
@pytest.mark.parametrize("seed", range(10))
def test_no_kill_of_many_loses_or_doubles_anything(
    tmp_path: Path, seed: int, options: dict[str, str]
) -> None:
    _run(tmp_path, kills=40, seed=f"{seed}", **options)


def _run(directory: Path, *, kills: int, seed: str, **options: str) -> None:
    ring = SharedKills(directory, seed, processes=8, **options)
    while ring.killed_holders < kills:
        ring.kill_the_holder()
    ring.finish()
    assert ring.judge() > kills
