"""Tests of a group run in one process, which starts their Spark session or browser once."""

import pytest


@pytest.mark.xdist_group("alone")
def test_pytest_xdist_sees_groups(request: pytest.FixtureRequest) -> None:
    """It schedules by a group that it appends to a test's name. With some pytest it does not."""
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("all tests run in one process")
    assert request.node.nodeid.endswith("@alone"), "the installed pytest breaks pytest-xdist"
