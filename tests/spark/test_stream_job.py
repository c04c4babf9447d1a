"""The arguments of the job `stream`, checked before Spark starts."""

import math
from pathlib import Path

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.spark.jobs import check_stream, stream


@pytest.mark.parametrize("target", ["orders", "orders/", "./orders", "link"])
def test_a_queue_is_not_streamed_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    penstock.open("orders").close()
    (tmp_path / "link").symlink_to("orders")
    with pytest.raises(InvalidInput, match="both source and target"):
        check_stream("orders", target, "queue", None, None)
    check_stream("orders", "other", "queue", None, None)
    check_stream("orders", target, "parquet", None, None)


def test_one_of_many_queues_is_not_streamed_to_itself(tmp_path: Path) -> None:
    data = str(tmp_path)
    for name in ("shop/orders", "shop/mails"):
        penstock.open(f"{data}/{name}").close()
    with pytest.raises(InvalidInput, match="both source and target"):
        check_stream(data, data, "queue", None, "shop/mails")
    check_stream(data, data, "queue", "shop/orders", "shop/mails")


@pytest.mark.parametrize("interval_s", [-1.0, math.nan, math.inf])
def test_an_interval_that_is_none_is_refused(tmp_path: Path, interval_s: float) -> None:
    penstock.open(str(tmp_path / "orders")).close()
    with pytest.raises(InvalidInput, match="interval_s is"):
        stream(
            None,  # type: ignore[arg-type]  # refused before Spark is used
            str(tmp_path / "orders"),
            str(tmp_path / "copy"),
            checkpoint=str(tmp_path / "checkpoint"),
            interval_s=interval_s,
        )
