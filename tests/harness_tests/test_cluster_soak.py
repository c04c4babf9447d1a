"""The judge of the cluster soak finds what is wrong, and calls nothing wrong that is allowed."""

from pathlib import Path

import pytest

from penstock.codec import make_id
from tests.harness.cluster_soak import Notes
from tests.harness.postgres_server import free_port
from tests.harness.soak_history import History


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(History(tmp_path, "postgresql://nowhere"))


def id_of(seq: int) -> str:
    return make_id(1, 7, seq)


def publish(notes: Notes, count: int) -> None:
    for number in range(count):
        notes.published(f"key-0-0:{number}", id_of(number + 1), again=False)


def deliver(notes: Notes, number: int) -> list[str]:
    return notes.delivered(f"key-0-0:{number}", id_of(number + 1), notes.leasing())


def test_deliveries_in_order_and_repeated_before_their_ack_are_right(notes: Notes) -> None:
    publish(notes, 3)
    for number in (0, 1, 0, 1, 2, 2):  # a lease whose event was lost in a crash is repeated
        assert deliver(notes, number) == []
    for number in range(3):
        notes.settled(id_of(number + 1), "done")
    notes.judge()


def test_a_message_that_overtakes_another_of_its_key_is_wrong(notes: Notes) -> None:
    publish(notes, 3)
    assert deliver(notes, 0) == []
    assert deliver(notes, 2) == ["key-0-0:0", "key-0-0:1", "key-0-0:2"]
    assert "was delivered before" in notes.wrong[0]
    assert "seen: False" in notes.wrong[0]


def test_a_delivery_after_the_answer_to_its_ack_is_wrong(notes: Notes) -> None:
    publish(notes, 2)
    deliver(notes, 0)
    notes.settled(id_of(1), "done")
    assert deliver(notes, 0) == ["key-0-0:0"]
    assert "after its ack" in notes.wrong[0]


def test_a_message_that_is_never_delivered_is_lost(notes: Notes) -> None:
    publish(notes, 2)
    deliver(notes, 0)
    notes.settled(id_of(1), "done")
    with pytest.raises(AssertionError, match="answered, and never delivered"):
        notes.judge()


def test_a_report_is_written_also_if_nobody_answers(tmp_path: Path) -> None:
    history = History(tmp_path, f"postgresql://127.0.0.1:{free_port()}/postgres")
    history.note("key-0-0:1", "is published")
    history.note_all("kill 1 begins")
    history.report("it was overtaken", [("key-0-0:1", id_of(2))], [free_port()])
    (written,) = history.reports
    text = written.read_text()
    for part in ("it was overtaken", "is published", "kill 1 begins", "Connection refused"):
        assert part in text
