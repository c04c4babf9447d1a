"""A Spark cluster on this machine: a master, and two workers that count as two hosts."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")
_HOME = Path(pyspark.__file__).parent


@contextmanager
def running_cluster(place: Path, *, python: str = sys.executable) -> Iterator[str]:
    """The master's URL, while it runs; logs go to `place`. Executors run `python`."""
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    with ExitStack() as stack:
        stack.enter_context(_daemon(place, "master", master, python))
        for host in WORKER_HOSTS:
            worker = ["worker.Worker", "--host", host, "--cores", "1", "--memory", "1g"]
            worker += ["--webui-port", "0", "--work-dir", str(place / host), url]
            stack.enter_context(_daemon(place, host, worker, python))
        yield url


@contextmanager
def _daemon(place: Path, name: str, arguments: list[str], python: str) -> Iterator[None]:
    kind, *rest = arguments
    environment = {
        **os.environ,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_PYTHON": python,
    }
    with (place / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *rest],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number
