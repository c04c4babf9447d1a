"""The figures of docs/scale.md are those of the recorded benchmark, and what follows from them."""

import json
from typing import Any

import pytest

from scripts.write_scale_figures import PAGE, RESULTS, Figures, page, section


def test_the_committed_page_is_what_the_script_writes() -> None:
    text = PAGE.read_text()
    written = page(text, json.loads(RESULTS.read_text()))
    assert text == written, "run: python scripts/write_scale_figures.py"


def results(others: float = 0.0) -> dict[str, Any]:
    def row(name: str, **contenders: dict[str, float]) -> dict[str, Any]:
        found = [
            {"name": one.replace("_", " "), "median": {**figures, "others": others}}
            for one, figures in contenders.items()
        ]
        return {"name": name, "others": others, "contenders": found}

    rates = {"publish_per_s": 4000.0, "lease_per_s": 1000.0}
    stores = {"penstock, files": rates, "penstock": rates, "penstock, standby": rates}
    peers = {"slow": {"publish_per_s": 10.0, "lease_per_s": 50.0}, "fast": rates}
    brokers = {"1_broker": 1000.0, "2_brokers": 900.0, "4_brokers": 800.0}
    return {
        "rounds": 3,
        "facts": {"cpu_count": 2},
        "rows": [
            row("singles", **stores, **peers),
            row("http", **stores),
            row("batches", **stores, **peers),
            row("delivery", there={"p50_ms": 3.0}, back={"p50_ms": 4.4}),
            row("brokers", **{name: {"publish_per_s": rate} for name, rate in brokers.items()}),
        ],
    }


def test_the_arithmetic_follows_from_the_requests_that_the_cores_did() -> None:
    figures = Figures.read(results())
    # 2 cores did 4,000 publishes, 1,000 leases and 1,000 acks a second.
    assert figures.request_ms == pytest.approx(1 / 3)
    assert figures.messages_per_core == pytest.approx(1000)
    assert figures.with_brokers(4) == pytest.approx(0.8)
    text = section(results())
    assert "6 × 1,000 × 0.8 = 4,800/s | 2 MB/s" in text
    assert "21 × 1,000 × 0.8 = 16,800/s | 7 MB/s" in text
    assert "10 × the layout with 10 machines | 168,000/s | 7 MB/s each" in text


def test_what_other_programs_took_does_not_count_as_cost() -> None:
    assert Figures.read(results(others=0.5)).request_ms == pytest.approx(1 / 6)
