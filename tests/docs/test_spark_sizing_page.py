"""The tables of docs/how-to/spark-sizing.md follow from the recorded benchmarks."""

from typing import Any

import pytest

from scripts.write_spark_sizing import (
    PAGE,
    WORKS,
    Cluster,
    Measured,
    Node,
    Work,
    page,
    recorded,
    section,
    short,
)


def test_the_committed_page_is_what_the_script_writes() -> None:
    text = PAGE.read_text()
    assert text == page(text, recorded()), "run: python scripts/write_spark_sizing.py"


def results(rate: float = 1000.0) -> dict[str, Any]:
    """Every row that the page needs: in 2 seconds, 3 seconds of processor time were used."""
    names: dict[str, list[str]] = {}
    for work in WORKS:
        names.setdefault(work.row, []).append(work.contender)
    figures = {"rate": rate, "wall_s": 2.0, "cpu_s": 3.0}
    return {
        "rows": [
            {"name": row, "contenders": [{"name": one, "median": figures} for one in contenders]}
            for row, contenders in names.items()
        ]
    }


def test_a_core_does_what_was_done_by_its_processor_time() -> None:
    assert Measured.of([results()]).per_core(WORKS[0]) == pytest.approx(1000 * 2 / 3)


def test_cores_or_network_limit_a_cluster() -> None:
    measured = Measured.of([results(1500.0)])  # 1,000 messages a second for each core
    work = Work("", "read", "penstock")
    slow, fast = Node(cores=8, network_bytes_per_s=126e3), Node(cores=8, network_bytes_per_s=126e6)
    assert Cluster(1, fast).rate(measured, work) == pytest.approx(8 * 1000)
    assert Cluster(100, fast).rate(measured, work) == pytest.approx(100 * 8 * 1000 * 0.9)
    assert Cluster(100, slow).rate(measured, work) == pytest.approx(100 * 1000)
    twice = work._replace(copies=2)
    assert Cluster(100, slow).rate(measured, twice) == pytest.approx(100 * 500)


def test_a_later_file_replaces_the_rows_that_it_has() -> None:
    assert Measured.of([results(1.0), results(3.0)]).per_core(WORKS[0]) == pytest.approx(2)


def test_every_work_has_a_line() -> None:
    text = section([results(15e6)])  # 10 million for each core
    for work in WORKS:
        assert f"| {work.says} | 10 M | " in text
    # 8 cores, or 25 Gbit/s of 126 bytes.
    assert "| audit | 10 M | 25 M | 248 M | 7.2 G | 2.5 G | **2.5 G** | 312 GB/s |" in text


@pytest.mark.parametrize(
    ("value", "said"),
    [(1_234_567, "1.2 M"), (45_678_901, "46 M"), (870, "870"), (9_960, "10 k"), (7.2e9, "7.2 G")],
)
def test_two_digits_count(value: float, said: str) -> None:
    assert short(value) == said
