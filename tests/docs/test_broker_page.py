"""The broker page matches the code: settings, metrics, verbs and causes."""

from dataclasses import fields

import pytest
from prometheus_client import Metric

from penstock.broker import BrokerMetrics, BrokerSettings, QueueName, Verb
from penstock.broker.metrics import CAUSES
from penstock.broker.store import DatabaseState, StandbyState, TableState
from penstock.model import GroupStats, Stats, StorageStats
from tests.docs.pages import quantity, rows_with, unquoted

SETTINGS = {
    unquoted(row["broker setting"]): row for row in rows_with("broker.md", "broker setting")
}
SERIES = {unquoted(row["broker series"]): row for row in rows_with("metrics.md", "broker series")}


def test_every_setting_is_listed_in_the_order_of_the_code() -> None:
    assert list(SETTINGS) == [item.name for item in fields(BrokerSettings)][1:]  # [queues] apart


@pytest.mark.parametrize("name", SETTINGS)
def test_default_matches_the_code(name: str) -> None:
    default, stated = getattr(BrokerSettings(), name), SETTINGS[name]["default"]
    if isinstance(default, bool):
        assert stated == str(default).lower()
    elif isinstance(default, str):
        assert stated == (f"`{default}`" if default else "none")
    else:
        assert quantity(stated) == default


def test_every_verb_is_listed() -> None:
    assert [unquoted(row["verb"]) for row in rows_with("broker.md", "verb")] == list(Verb)


def test_every_cause_of_a_refusal_is_listed() -> None:
    stated = SERIES["penstock_rejected_total"]["meaning"]
    for _, cause in CAUSES:
        assert f"`{cause}`" in stated


def test_every_series_is_listed_with_its_labels() -> None:
    metrics = BrokerMetrics()
    group = GroupStats(*range(len(GroupStats._fields)))
    stats = Stats._make([*[0] * (len(Stats._fields) - 2), StorageStats(), {"main": group}])
    standby, table = StandbyState("db2", "streaming", "sync", 0, 0), TableState("chunk", 1, 1, 1)
    database = DatabaseState("db1/shop", standbys=(standby,), tables=(table,))
    metrics.page([(QueueName("shop", "orders"), stats)], database)
    found = {_name(family): _labels(family) for family in metrics.registry.collect()}
    stated = {name: _split(row["labels"]) for name, row in SERIES.items()}
    assert found.keys() == stated.keys()
    for name, labels in found.items():
        if labels:  # those that were never counted have none to show
            assert labels == stated[name], name


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> set[str]:
    return {name for sample in family.samples for name in sample.labels} - {"le"}


def _split(cell: str) -> set[str]:
    return {name.strip() for name in cell.split(",") if name.strip()}
