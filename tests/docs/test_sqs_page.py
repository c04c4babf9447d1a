"""The SQS page matches the code: calls, attributes, limits, metrics, and its example runs."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from penstock.server.sqs import attributes, batches, queues, receiving, records
from penstock.server.sqs.actions import ACTIONS, MAX_BODY_BYTES, series
from penstock.server.sqs.message_attributes import MAX_ATTRIBUTES
from tests.docs.pages import DOCS, quantity, rows_with, unquoted
from tests.server.running import RunningServer

PAGE = DOCS / "sqs.md"
TEXT = re.sub(r"\s+", " ", PAGE.read_text())


def test_every_call_is_listed() -> None:
    listed = {name for row in rows_with("sqs.md", "call") for name in _quoted(row["call"])}
    assert listed == set(ACTIONS)


def test_every_attribute_is_listed() -> None:
    listed = set()
    for row in rows_with("sqs.md", "attribute", "is"):
        for name in _quoted(row["attribute"]):
            listed.add(name.replace("…", "ApproximateNumberOfMessages"))
    assert listed == attributes.NAMES


def test_the_settings_of_new_queues_are_told() -> None:
    told = TEXT.partition("has SQS's defaults:")[2].partition("A queue that was made")[0]
    assert set(_quoted(told)) - {"RedrivePolicy"} == set(attributes.new_queue_settings())


def test_limits_are_as_they_are_told() -> None:
    limits = {row["what"]: row["limit"] for row in rows_with("sqs.md", "what", "limit")}
    told = {what: [quantity(one) for one in _numbers(text)] for what, text in limits.items()}
    assert told["a message with its attributes, and a batch"] == [attributes.MAX_MESSAGE_BYTES]
    assert told["attributes of a message"][0] == MAX_ATTRIBUTES
    assert told["entries of a batch"] == [1, batches.MAX_ENTRIES]
    assert told["messages of a receive"] == [receiving.MAX_MESSAGES]
    assert told["delay"] == [attributes.MAX_DELAY_S]
    assert told["wait of a receive"] == [attributes.MAX_WAIT_S]
    assert told["`maxReceiveCount`"] == [1, attributes.MAX_RECEIVE_COUNT]
    assert told["tags of a queue"] == [queues.MAX_TAGS]
    assert told["the body of a request"] == [MAX_BODY_BYTES]
    assert told["attributes and tags of all queues"] == [records.MAX_DOCUMENT_BYTES]
    assert limits["visibility timeout"].startswith(f"{attributes.MAX_VISIBILITY_S // 3600} hours")


def test_every_series_is_listed_with_its_labels() -> None:
    found = {
        f"{family.name}_total": set(family.samples[0].labels)
        for family in series({"SendMessage": 1}, {"OverLimit": 1})
    }
    stated = {
        unquoted(row["series"]): {unquoted(row["labels"])}
        for row in rows_with("sqs.md", "series", "labels")
    }
    assert stated == found


def test_the_example_runs(tmp_path: Path) -> None:
    found = re.search(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    with RunningServer(tmp_path / "data") as server:
        out = StringIO()
        with redirect_stdout(out):
            names: dict[str, object] = {}
            exec(found[1].replace("http://127.0.0.1:8080", server.url), names)
            names["sqs"].close()  # type: ignore[attr-defined]
    assert out.getvalue() == "pack order 9\n"


def _quoted(text: str) -> list[str]:
    return re.findall(r"`([A-Za-z_…]+)`", text)


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,]*(?: [KM]iB)?", text.partition("(")[0].partition(";")[0])
