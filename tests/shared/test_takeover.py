"""The holder ends or dies: another process takes over, and calls under way go on there."""

from pathlib import Path

import pytest

import penstock
from penstock.errors import ReceiptInvalid
from tests.shared.processes import SharingProcess, sharing


def test_the_first_process_is_the_holder_and_the_others_are_its_clients(tmp_path: Path) -> None:
    with sharing(tmp_path / "q") as first, sharing(tmp_path / "q") as second:
        assert (first.ask("role"), second.ask("role")) == ("holder", "client")
        first.ask("enqueue", "from the holder")
        second.ask("enqueue", "from a client")
        assert second.ask("peek", 10) == ["from the holder", "from a client"]
        ((payload, receipt),) = second.ask("lease")
        first.ask("ack", receipt)
        assert payload == "from the holder"
        assert first.ask("stats").acked == 1
    with penstock.open(tmp_path / "q") as queue:
        assert [message.payload for message in queue.browse()] == [b"from a client"]


@pytest.mark.parametrize("end", ["kill", "finish"])
def test_a_client_takes_over_and_nothing_is_lost(tmp_path: Path, end: str) -> None:
    first = SharingProcess(tmp_path / "q")
    with sharing(tmp_path / "q") as second:
        first.ask("enqueue", "one")
        second.ask("enqueue", "two")
        getattr(first, end)()
        second.ask("enqueue", "three")
        assert second.ask("peek", 10) == ["one", "two", "three"]
        assert second.ask("role") == "holder"


@pytest.mark.parametrize("end", ["kill", "finish"])
def test_a_lease_that_waits_goes_on_at_the_next_holder(tmp_path: Path, end: str) -> None:
    first = SharingProcess(tmp_path / "q")
    with sharing(tmp_path / "q") as second, sharing(tmp_path / "q") as third:
        second.begin("lease", wait_s=50)
        third.begin("lease", wait_s=50)
        first.ask("stats")
        getattr(first, end)()
        with sharing(tmp_path / "q") as fourth:
            fourth.ask("enqueue_batch", [b"a", b"b"])
        leased = [second.end(), third.end()]
        assert sorted(payload for ((payload, _),) in leased) == ["a", "b"]


def test_receipts_survive_the_holder(tmp_path: Path) -> None:
    first = SharingProcess(tmp_path / "q")
    with sharing(tmp_path / "q") as second:
        second.ask("enqueue_batch", [b"a", b"b", b"c"])
        ((_, acked), (_, nacked), (_, extended)) = second.ask("lease", 3)
        first.kill()
        second.ask("extend", extended, 100)
        second.ask("ack", acked)
        second.ask("nack", nacked, "no")
        stats = second.ask("stats")
        assert (stats.acked, stats.nacked, stats.leased) == (1, 1, 1)


def test_an_ack_that_a_dead_holder_carried_out_is_answered_as_done(tmp_path: Path) -> None:
    """As a client repeats it that lost the answer."""
    first = SharingProcess(tmp_path / "q")
    with sharing(tmp_path / "q") as second:
        second.ask("enqueue_batch", [b"a", b"b"])
        ((_, acked), (_, released)) = second.ask("lease", 2)
        second.ask("ack", acked)
        second.ask("release", released)
        ((_, again),) = second.ask("lease")
        second.ask("ack", again)
        first.kill()
        second.ask("ack", acked)
        with pytest.raises(ReceiptInvalid):  # its message is done, but by another receipt
            second.ask("ack", released)


def test_every_process_of_a_chain_takes_over(tmp_path: Path) -> None:
    processes = [SharingProcess(tmp_path / "q") for _ in range(5)]
    for number, process in enumerate(processes):
        processes[-1].ask("enqueue", f"{number}")
        process.kill()
    with penstock.open(tmp_path / "q") as queue:
        assert [message.payload for message in queue.browse()] == [b"0", b"1", b"2", b"3", b"4"]
