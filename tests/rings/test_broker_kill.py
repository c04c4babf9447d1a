"""kill -9 of a server under load: nothing answered is lost, and nothing acked comes back."""

from pathlib import Path

import pytest

from tests.harness.broker_kill import BrokerKills


def kill_again_and_again(directory: Path, seed: str, times: int) -> BrokerKills:
    kills = BrokerKills(directory, seed)
    try:
        for _ in range(times):
            kills.live()
            kills.judge()
    finally:
        kills.close()
    return kills


def test_nothing_answered_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    kills = kill_again_and_again(tmp_path, "push", 20)
    assert len(kills.told.published) > 100
    assert len(kills.told.acked) > 50


@pytest.mark.long
@pytest.mark.parametrize("fifty", range(10))
def test_nothing_answered_is_lost_in_hundreds_of_kills(tmp_path: Path, fifty: int) -> None:
    kill_again_and_again(tmp_path, f"long {fifty}", 50)
