"""Run workloads of the Spark benchmarks: the session, and passes of contenders in one process."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from measure import IN_TURN, OTHERS, Figures, settle
from pyspark.sql import DataFrame, SparkSession
from spark_timing import Passes, busy_s, timed_in_turn, tree_cpu_s

from penstock.spark import session

QUEUE = "queue"
Workloads = Mapping[str, Callable[..., Figures | Passes]]


def start_session(cores: int = 2, settings: Mapping[str, str] | None = None) -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's Python workers look for the source that yields tuples here too, not only the driver.
    here, others = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, others)))
    spark = session(
        f"local[{cores}]",
        settings={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "4g",
            "spark.sql.shuffle.partitions": "4",
            **(settings or {}),
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def queue_frame(spark: SparkSession, root: Path, columns: str = "") -> DataFrame:
    reader = spark.read.format("penstock")
    if columns:
        reader = reader.option("columns", columns)
    return reader.load(str(root / QUEUE))


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def run_workloads(workloads: Workloads) -> None:
    """As `measure.run_workload`, but what Spark's processes use is ours, not that of others."""
    name, arguments_json, settle_mib = sys.argv[1:]
    arguments = json.loads(arguments_json)
    settle(Path(arguments["directory"]).parent, int(settle_mib))
    cpus = len(os.sched_getaffinity(0))
    start, before_s, own_s = perf_counter(), busy_s(), tree_cpu_s()
    found = (
        in_turn(workloads, **arguments)
        if name == IN_TURN
        else {name: alone(workloads, name, **arguments)}
    )
    others_s = (busy_s() - before_s) - (tree_cpu_s() - own_s)
    others = max(others_s / (perf_counter() - start) / cpus, 0.0)
    for figures_of_one in found.values():
        figures_of_one[OTHERS] = others
    print(json.dumps(found if name == IN_TURN else found[name]))


def alone(workloads: Workloads, name: str, **arguments: Any) -> Figures:
    found = workloads[name](**arguments)
    return timed_in_turn({name: found})[name] if isinstance(found, Passes) else found


def in_turn(
    workloads: Workloads, directory: str, works: dict[str, tuple[str, dict[str, Any]]]
) -> dict[str, Figures]:
    """All contenders of a row, pass by pass: whatever else the machine does meets all alike."""
    passes = {}
    for name, (workload, arguments) in works.items():
        found = workloads[workload](directory=directory, **arguments)
        assert isinstance(found, Passes), workload
        passes[name] = found
    return timed_in_turn(passes)
