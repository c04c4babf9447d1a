"""The gRPC page matches the code, and its example runs."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from grpc import StatusCode
from prometheus_client import CollectorRegistry

from penstock.broker.consumers import MOST_CREDIT
from penstock.protobuf.descriptors import METHODS
from penstock.server.grpc.metrics import GrpcMetrics
from penstock.server.grpc.statuses import STATUSES
from tests.docs.pages import DOCS, rows_with, unquoted
from tests.server.grpc.calling import RIVETQ_METHODS, address_of
from tests.server.running import RunningServer

PAGE = (DOCS / "grpc.md").read_text()


def test_every_method_is_listed() -> None:
    rows = rows_with("grpc.md", "method", "does")
    named = [name for row in rows for name in unquoted(row["method"]).split(", ")]
    assert sorted(named) == sorted(METHODS)
    section = PAGE.partition("## RivetQ clients")[2]
    assert all(f"`{name}`" in section for name in RIVETQ_METHODS)


def test_every_status_is_listed_with_its_codes() -> None:
    stated = {
        (code, StatusCode[row["status"]])
        for row in rows_with("grpc.md", "status", "codes")
        for code in unquoted(row["codes"]).split(", ")
    }
    assert stated == set(STATUSES.items())


def test_every_series_is_listed_with_its_labels() -> None:
    metrics = GrpcMetrics(CollectorRegistry())
    metrics.answered("/", StatusCode.OK, 1)
    found = {
        f"{family.name}_total" if family.type == "counter" else family.name: set(
            family.samples[0].labels
        )
        - {"le"}
        for family in metrics.collect()
    }
    stated = {
        unquoted(row["series"]): {one for one in unquoted(row["labels"]).split(", ") if one}
        for row in rows_with("grpc.md", "series", "labels")
    }
    assert stated == found


def test_the_credit_matches_the_code() -> None:
    assert f"0 stops the flow | 10 | {MOST_CREDIT} |" in PAGE


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    with RunningServer(tmp_path / "data", grpc="127.0.0.1:0") as server:
        printed = StringIO()
        with redirect_stdout(printed):
            exec(example.replace("127.0.0.1:9090", address_of(server)), {})
    assert printed.getvalue() == "[b'one', b'two']\n[1, 1]\n"
