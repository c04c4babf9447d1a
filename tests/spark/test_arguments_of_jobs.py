"""The arguments of jobs are checked first: none of this needs Spark."""

import math
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.spark.jobs import check_query, redrive, report, stream

NO_SPARK: Any = None  # whatever uses it fails


@pytest.fixture
def orders(tmp_path: Path) -> str:
    path = tmp_path / "orders"
    with penstock.open(path) as queue:
        queue.enqueue(b"x")
    return str(path)


@pytest.mark.parametrize("sla_s", [math.nan, math.inf, -1, True, "60"], ids=repr)
def test_a_limit_of_waiting_that_is_no_number_is_refused(
    sla_s: Any, orders: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="sla_s is "):
        report(NO_SPARK, orders, str(tmp_path / "page"), sla_s=sla_s)
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("inside", ["", "/page", "/../orders/page"])
def test_a_report_inside_its_source_is_refused(inside: str, orders: str) -> None:
    before = sorted(Path(orders).rglob("*"))
    with pytest.raises(InvalidInput, match="is inside"):
        report(NO_SPARK, orders, orders + inside)
    assert sorted(Path(orders).rglob("*")) == before


@pytest.mark.parametrize("transform", [5, b"payload", ["payload"], "", "  "], ids=repr)
def test_a_transform_that_is_neither_a_function_nor_sql_is_refused(
    transform: Any, orders: str
) -> None:
    with pytest.raises(InvalidInput, match="transform is "):
        redrive(NO_SPARK, orders, transform=transform)


@pytest.mark.parametrize("to", ["parquet", "delta", "console"])
def test_a_target_queue_is_refused_unless_the_target_is_a_queue(
    to: str, orders: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="target_queue is 'shop/mails', but to is"):
        stream(
            NO_SPARK,
            orders,
            str(tmp_path / "lake"),
            to=to,
            checkpoint=str(tmp_path / "checkpoint"),
            target_queue="shop/mails",
        )


def test_a_query_needs_a_checkpoint_and_a_finite_interval() -> None:
    check_query("./checkpoint", 0)
    with pytest.raises(InvalidInput, match="checkpoint is ''"):
        check_query("", 1)
    for interval_s in (math.inf, math.nan, 1e300, -1):
        with pytest.raises(InvalidInput, match="interval_s is"):
            check_query("./checkpoint", interval_s)
