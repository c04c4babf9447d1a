"""Drafts that are made in few steps are those that the checks make, or none."""

import math
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.model import NewMessage, new_message
from penstock.queue import Queue, QueueSettings, quick_drafts
from penstock.queue.drafting import check
from penstock.queue.quick_drafts import QuickDrafts

NOW_NS = 1_700_000_000_123_456_789
TEXT = st.text(max_size=6) | st.sampled_from(["é" * 513, "x" * 1025, "\ud800", "a\nb"])
SECONDS = st.one_of(
    st.integers(-1, 10**10),
    st.floats(min_value=-1, max_value=1e10),
    st.sampled_from([True, "5", math.inf, math.nan, timedelta(seconds=3), 0, 0.0]),
)
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "priority": st.integers(-1, 10) | st.sampled_from([True, 3.0, "high"]),
    "delay": SECONDS,
    "deliver_at": SECONDS | st.sampled_from([datetime(2030, 1, 1, tzinfo=UTC), 1e12]),
    "ttl": SECONDS,
    "headers": st.dictionaries(TEXT | st.just(3), TEXT | st.just(4), max_size=3),
    "key": TEXT | st.just(b"bytes"),
    "dedup_id": TEXT | st.just(7),
    "dedup_window_s": SECONDS,
    "max_attempts": st.integers(-1, 70_000) | st.sampled_from([True, 2.0]),
    "content_type": TEXT | st.just(b"text"),
    "compression": st.sampled_from(["none", "zstd", "best"]),
}
options = st.fixed_dictionaries({}, optional={name: st.none() | s for name, s in OPTIONS.items()})
payloads = st.binary(max_size=40) | st.text(max_size=5) | st.just(bytearray(b"array"))
settings = st.builds(
    QueueSettings,
    max_payload_bytes=st.sampled_from([20, 1 << 20]),
    default_priority=st.integers(0, 9),
    default_ttl_s=st.sampled_from([0.0, 7.5]),
    compression=st.sampled_from(["none", "gzip"]),
)


def expected(message: NewMessage, chosen: QueueSettings) -> Any:
    try:
        return check(message, chosen, NOW_NS)
    except InvalidInput as error:
        return error


@given(payloads, options, settings)
def test_a_quick_draft_is_what_the_checks_return(
    payload: Any, given_options: Any, chosen: QueueSettings
) -> None:
    quick = QuickDrafts(chosen, lambda: NOW_NS)
    of_options = quick.of_options(payload, given_options)
    try:
        message = new_message(payload, given_options)
    except InvalidInput:
        assert of_options is None
        return
    wanted, of_message = expected(message, chosen), quick.of_message(message)
    assert of_message is None or of_message == wanted
    assert of_options is None or of_options == wanted
    if message.dedup_id is not None:
        assert of_options is None  # it needs the state


def test_usual_messages_are_quick() -> None:
    quick = QuickDrafts(QueueSettings(), lambda: NOW_NS)
    usual: dict[str, Any] = {
        "priority": 7,
        "headers": {"name": "value"},
        "key": "ключ",
        "ttl": 60,
        "delay": 1.5,
        "max_attempts": 3,
        "content_type": "text/plain",
    }
    assert quick.of_options(b"payload", usual) == expected(
        NewMessage(payload=b"payload", **usual), QueueSettings()
    )
    assert quick.of_message(NewMessage(payload=b"", headers={})) == expected(
        NewMessage(payload=b""), QueueSettings()
    )
    assert quick.of_message(NewMessage(payload=b"", dedup_id="id")) is not None
    assert quick.of_message(NewMessage(payload=b"", deliver_at=1_800_000_000)) is not None


def test_a_queue_that_compresses_makes_no_quick_draft() -> None:
    quick = QuickDrafts(replace(QueueSettings(), compression="gzip"), lambda: NOW_NS)
    assert quick.of_options(b"payload", {"priority": 3}) is None


def test_headers_that_change_later_do_not_change_the_draft() -> None:
    quick, headers = QuickDrafts(QueueSettings(), lambda: NOW_NS), {"name": "value"}
    draft = quick.of_options(b"", {"headers": headers})
    headers["name"] = "other"
    assert draft is not None and draft.headers == {"name": "value"}


def test_the_source_can_be_asked_for() -> None:
    code = "from penstock.queue import quick_drafts; print(quick_drafts.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PENSTOCK_CODEC": "python"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith("quick_drafts.py")


@pytest.mark.skipif(quick_drafts.__file__.endswith(".py"), reason="there was no compiler")
def test_the_plain_module_makes_the_same_drafts_as_the_compiled_one() -> None:
    """This file again, with the source of the module."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={"PENSTOCK_CODEC": "python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# -- written without the lock, fed to the state later ----------------------------------------------


def test_a_message_with_options_counts_at_once(queue: Queue) -> None:
    queue.enqueue(b"plain")
    queue.enqueue(b"first", priority=9)
    queue.enqueue(b"later", delay=60)
    queue.enqueue(b"key", key="k")
    queue.enqueue(b"parked", key="k")
    stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.parked) == (3, 1, 1)
    assert queue.lease()[0].payload == b"first"


def test_many_messages_with_options_are_fed_while_they_are_published(queue: Queue) -> None:
    for number in range(2_000):
        queue.enqueue(b"", priority=number % 10)
        assert len(queue.core.notes) <= 512
    assert queue.stats().ready == 2_000
