"""The server and HTTP pages match the code: settings, errors and metrics."""

from dataclasses import fields

import pytest
from prometheus_client import CollectorRegistry

from penstock.server.http_metrics import HttpMetrics
from penstock.server.problems import KINDS
from penstock.server.settings import RELOADABLE, ServerSettings
from tests.docs.pages import quantity, rows_with, unquoted

SETTINGS = {unquoted(row["setting"]): row for row in rows_with("server.md", "setting", "reloaded")}
PROBLEMS = {unquoted(row["code"]): row for row in rows_with("http.md", "code", "status")}
SERIES = {unquoted(row["series"]): row for row in rows_with("metrics.md", "series", "labels")}


def test_every_setting_is_listed_in_the_order_of_the_code() -> None:
    assert list(SETTINGS) == [item.name for item in fields(ServerSettings)]


@pytest.mark.parametrize("name", SETTINGS)
def test_default_matches_the_code(name: str) -> None:
    default, stated = getattr(ServerSettings(), name), SETTINGS[name]["default"]
    if default in ("", ()):
        assert stated == "none"
    elif isinstance(default, bool):
        assert stated == str(default).lower()
    elif isinstance(default, str):
        assert stated == f"`{default}`"
    else:
        assert quantity(stated) == default


@pytest.mark.parametrize("name", SETTINGS)
def test_reloadable_settings_are_marked(name: str) -> None:
    assert SETTINGS[name]["reloaded"] == ("yes" if name in RELOADABLE else "no")


def test_every_code_is_listed_with_its_status() -> None:
    stated = {(code, int(row["status"])) for code, row in PROBLEMS.items()}
    assert stated == {(kind.code, kind.status) for kind in KINDS.values()}


def test_every_http_series_is_listed_with_its_labels() -> None:
    metrics = HttpMetrics(CollectorRegistry(), connections=lambda: 0, held_bytes=lambda: 0)
    metrics.answered("/", "GET", 200, 1)
    found = {}
    for family in metrics.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = set(family.samples[0].labels) - {"le"}
        found[name] = labels
    stated = {
        name: {label for label in unquoted(row["labels"]).split(", ") if label}
        for name, row in SERIES.items()
    }
    assert stated == found
