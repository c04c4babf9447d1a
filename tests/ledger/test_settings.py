"""Settings: what cannot be right is refused when it is said, with the name and the range."""

import math
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.ledger import LedgerSettings, Retention
from penstock.ledger.settings import MIB


def test_the_defaults_are_valid_and_as_documented() -> None:
    settings = LedgerSettings()
    assert settings.sync == "interval"
    assert settings.segment_bytes == 64 * MIB
    assert settings.min_free_bytes == 100 * MIB
    assert settings.on_corruption == "quarantine"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sync", "sometimes"),
        ("sync", None),
        ("sync", ["always"]),
        ("on_corruption", "ignore"),
        ("sync_interval_s", 0),
        ("sync_interval_s", -1),
        ("sync_interval_s", math.inf),
        ("sync_interval_s", math.nan),
        ("sync_interval_s", "1"),
        ("sync_batch", 0),
        ("sync_batch", 2.5),
        ("sync_batch", True),
        ("segment_bytes", 0),
        ("segment_bytes", 511),
        ("segment_bytes", 1 << 40),
        ("segment_bytes", 4096.5),
        ("segment_bytes", 4096.0),
        ("segment_entries", -1),
        ("segment_entries", 1.5),
        ("segment_age_s", -0.1),
        ("segment_age_s", math.nan),
        ("max_entry_bytes", 0),
        ("max_entry_bytes", 1 << 31),
        ("max_entry_bytes", 1e6),
        ("min_free_bytes", -1),
        ("min_free_bytes", None),
        ("reserve_bytes", -1),
        ("reserve_bytes", 1e6),
        ("first_step_bytes", 1),
        ("first_step_bytes", 1024.0),
        ("largest_step_bytes", 10),
        ("largest_step_bytes", 1e7),
        ("max_open_segments", 1),
        ("max_open_segments", 2.5),
        ("mapped", "no"),
        ("mapped", 0),
        ("allow_network_file_system", 1),
    ],
)
def test_a_value_that_cannot_be_right_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} is .*; it must be "):
        LedgerSettings(**{name: value})


def test_a_step_must_not_be_larger_than_the_largest() -> None:
    with pytest.raises(InvalidInput, match="largest_step_bytes"):
        LedgerSettings(first_step_bytes=2 * MIB, largest_step_bytes=1 * MIB)


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="segment_size"):
        LedgerSettings(segment_size=1)  # type: ignore[call-arg]


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        LedgerSettings().sync = "never"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_age_s", -1),
        ("max_age_s", math.nan),
        ("max_bytes", -1),
        ("max_segments", -1),
        ("min_segments", -1),
        ("rewrite_below", -0.1),
        ("rewrite_below", 1.1),
        ("rewrite_below", math.nan),
    ],
)
def test_retention_is_checked_in_the_same_way(name: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} is "):
        Retention(**{name: value})  # type: ignore[arg-type]
