"""The arguments of jobs are checked first: none of this needs Spark."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.archive import ArchiveError
from penstock.errors import InvalidInput
from penstock.spark import jobs
from penstock.spark.jobs import (
    archive,
    archived,
    audit,
    check_query,
    compact,
    from_kafka,
    live_and_archived,
    redrive,
    report,
    restore,
    retain,
    stream,
    to_kafka,
)

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


FLAGS: dict[str, tuple[Callable[..., object], str]] = {
    "archive delta": (lambda *to, **it: archive(NO_SPARK, *to, **it), "delta"),
    "archive accept_gap": (lambda *to, **it: archive(NO_SPARK, *to, **it), "accept_gap"),
    "archived": (lambda _, to, **it: archived(NO_SPARK, to, **it), "fail_on_data_loss"),
    "restore": (lambda _, to, **it: restore(NO_SPARK, to, to, **it), "fail_on_data_loss"),
    "live_and_archived": (
        lambda *to, **it: live_and_archived(NO_SPARK, *to, **it),
        "fail_on_data_loss",
    ),
    "compact": (lambda _, to, **it: compact(NO_SPARK, to, **it), "dry_run"),
    "retain": (lambda _, to, **it: retain(NO_SPARK, to, max_bytes=0, **it), "dry_run"),
    "redrive": (lambda one, _, **it: redrive(NO_SPARK, one, **it), "dry_run"),
    "stream": (lambda *to, **it: stream(NO_SPARK, *to, checkpoint="c", **it), "once"),
    "from_kafka once": (
        lambda _, to, **it: from_kafka(NO_SPARK, "k:9092", "t", to, checkpoint="c", **it),
        "once",
    ),
    "from_kafka headers": (
        lambda _, to, **it: from_kafka(NO_SPARK, "k:9092", "t", to, checkpoint="c", **it),
        "headers",
    ),
    "to_kafka": (
        lambda one, _, **it: to_kafka(NO_SPARK, one, "k:9092", "t", checkpoint="c", **it),
        "once",
    ),
}


def test_every_flag_of_every_job_is_checked() -> None:
    flags = [
        name
        for job in map(jobs.__dict__.get, jobs.__all__)
        if callable(job) and not job.__name__.startswith("check_")
        for name, one in inspect.signature(job).parameters.items()
        if one.annotation is bool
    ]
    assert sorted(flags) == sorted(name for _, name in FLAGS.values())


@pytest.mark.parametrize("flag", ["false", "no", "", None, 0, 1], ids=repr)
@pytest.mark.parametrize("job", FLAGS)
def test_a_flag_that_is_neither_true_nor_false_is_refused_before_anything_is_done(
    job: str, flag: Any, orders: str, tmp_path: Path
) -> None:
    call, name = FLAGS[job]
    with pytest.raises(InvalidInput, match=f"{name} is {flag!r}; it must be true or false"):
        call(orders, str(tmp_path / "target"), **{name: flag})
    assert not (tmp_path / "target").exists()


LOCATIONS: dict[str, Callable[[str, Any], object]] = {
    "path of archive": lambda one, bad: archive(NO_SPARK, bad, one),
    "target of archive": lambda one, bad: archive(NO_SPARK, one, bad),
    "iceberg of archive": lambda one, bad: archive(NO_SPARK, one, one, iceberg=bad),
    "archived": lambda _, bad: archived(NO_SPARK, bad),
    "archive of restore": lambda one, bad: restore(NO_SPARK, bad, one),
    "target of restore": lambda one, bad: restore(NO_SPARK, one, bad),
    "path of live_and_archived": lambda one, bad: live_and_archived(NO_SPARK, bad, one),
    "archive of live_and_archived": lambda one, bad: live_and_archived(NO_SPARK, one, bad),
    "compact": lambda _, bad: compact(NO_SPARK, bad),
    "retain": lambda _, bad: retain(NO_SPARK, bad, max_bytes=0),
    "audit": lambda _, bad: audit(NO_SPARK, bad),
    "redrive": lambda _, bad: redrive(NO_SPARK, bad),
    "path of report": lambda one, bad: report(NO_SPARK, bad, one),
    "target of report": lambda one, bad: report(NO_SPARK, one, bad),
    "source of stream": lambda one, bad: stream(NO_SPARK, bad, one, checkpoint="c"),
    "target of stream": lambda one, bad: stream(NO_SPARK, one, bad, checkpoint="c"),
    "checkpoint of stream": lambda one, bad: stream(NO_SPARK, one, one, checkpoint=bad),
    "target of from_kafka": lambda _, bad: from_kafka(NO_SPARK, "k:9092", "t", bad, checkpoint="c"),
    "servers of to_kafka": lambda one, bad: to_kafka(NO_SPARK, one, bad, "t", checkpoint="c"),
    "topic of to_kafka": lambda one, bad: to_kafka(NO_SPARK, one, "k:9092", bad, checkpoint="c"),
    "source of to_kafka": lambda _, bad: to_kafka(NO_SPARK, bad, "k:9092", "t", checkpoint="c"),
} | {
    f"target of stream to {to}": lambda one, bad, to=to: stream(
        NO_SPARK, one, bad, to=to, checkpoint="c"
    )
    for to in ("delta", "iceberg", "queue", "console")
}


@pytest.mark.parametrize("bad", [5, None, b"x"], ids=repr)
@pytest.mark.parametrize("argument", LOCATIONS)
def test_a_location_that_is_not_text_is_refused(argument: str, bad: Any, orders: str) -> None:
    if (argument, bad) == ("iceberg of archive", None):
        return  # the default
    with pytest.raises(InvalidInput, match=rf" is {bad!r}; it must be text"):
        LOCATIONS[argument](orders, bad)


@pytest.mark.parametrize("options", [5, "a=1", [("a", "1")], {5: "1"}], ids=repr)
def test_options_of_a_query_that_are_no_mapping_of_names_are_refused(options: Any) -> None:
    with pytest.raises(InvalidInput, match="options is .*; it must be a mapping"):
        stream(NO_SPARK, "./orders", "./lake", checkpoint="c", options=options)


def test_an_archive_where_no_directory_can_be_made_is_refused(orders: str) -> None:
    with pytest.raises(ArchiveError, match="/proc/nope cannot be created"):
        archive(NO_SPARK, orders, "/proc/nope")
