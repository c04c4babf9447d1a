"""The figures of docs/which-interface.md are those of the recorded benchmark."""

import json

from scripts.write_interface_figures import BUSY, PAGE, RESULTS, page, section


def test_the_committed_page_is_what_the_script_writes() -> None:
    text = PAGE.read_text()
    written = page(text, json.loads(RESULTS.read_text()))
    assert text == written, "run: python scripts/write_interface_figures.py"


def row(name: str, others: float = 0.0, **contenders: dict[str, float] | None) -> dict[str, object]:
    found = [{"name": one, "median": median} for one, median in contenders.items()]
    return {"name": name, "others": others, "contenders": found}


def test_what_was_not_measured_is_a_dash() -> None:
    latencies = {"publish_p50_us": 254.4, "publish_p99_us": 12_345.0}
    rates = {"publish_per_s": 23_456.0, "consume_per_s": 987.6}
    rows = [
        row("latency", fast={**latencies, "delivery_p50_us": 700.0}, slow=latencies, gone=None),
        row("singles", fast=rates, slow=rates, gone=None),
        row("batches", fast=rates),
    ]
    text = section({"rounds": 3, "facts": {"cpu_count": 2}, "rows": rows})
    assert "| fast | 0.25 ms | 12 ms | 0.70 ms | 23,000 | 990 | 23,000 | 990 |" in text
    assert "| slow | 0.25 ms | 12 ms | – | 23,000 | 990 | – | – |" in text
    assert "gone" not in text
    assert BUSY not in text


def test_figures_of_a_busy_machine_say_so() -> None:
    rows = [row("latency"), row("singles", 0.3), row("batches")]
    text = section({"rounds": 3, "facts": {"cpu_count": 2}, "rows": rows})
    assert "other programs took 0% to 30%." in text and BUSY in text
