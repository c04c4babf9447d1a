"""What a queue remembers of the jobs it took in: damage to it and its loss are told."""

from pathlib import Path

import pytest

from penstock.codec import Draft
from penstock.errors import LedgerError
from penstock.ledger import Damage, Ledger, verify
from penstock.ledger.adoption import adopted_before, append_once
from penstock.ledger.json_files import TRANSACTIONS_NAME, Transaction

NIGHTLY = Transaction("nightly", 1)


@pytest.fixture
def remembered(tmp_path: Path) -> Path:
    """The transactions.json of a queue that was closed in order."""
    with Ledger.open(str(tmp_path)) as ledger:
        append_once(ledger, [Draft(b"a")], NIGHTLY)
    return tmp_path / TRANSACTIONS_NAME


def told(remembered: Path) -> list[Damage]:
    """What `verify`, a reader and a writer tell of; they must agree."""
    path = str(remembered.parent)
    verified = verify(path).problems
    for read_only in (True, False):
        found: list[Damage] = []
        with Ledger.open(path, read_only=read_only, on_damage=found.append):
            assert found == verified
    assert all(damage.file == TRANSACTIONS_NAME and not damage.lost for damage in verified)
    return verified


def test_a_whole_file_is_no_damage(remembered: Path) -> None:
    assert told(remembered) == []


def test_one_that_is_gone_since_the_queue_was_closed_is_told_once(remembered: Path) -> None:
    remembered.unlink()
    assert ["would be adopted again" in damage.reason for damage in told(remembered)] == [True]
    assert told(remembered) == []


def test_a_queue_that_never_had_one_lacks_nothing(tmp_path: Path) -> None:
    Ledger.open(str(tmp_path)).close()
    assert told(tmp_path / TRANSACTIONS_NAME) == []


def test_every_cut_and_every_changed_byte_is_told(remembered: Path) -> None:
    data = remembered.read_bytes()
    spaces = [at for at, byte in enumerate(data) if byte in b" \n"]
    for at in range(0, len(data), 7):
        if at in spaces:
            continue
        for bad in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            remembered.write_bytes(bad)
            assert len(verify(str(remembered.parent)).problems) == 1, bad


def test_no_named_job_is_taken_in_while_it_is_damaged(remembered: Path) -> None:
    data = remembered.read_bytes()
    remembered.write_bytes(data[:-20])
    assert len(told(remembered)) == 1
    with (
        Ledger.open(str(remembered.parent)) as ledger,
        pytest.raises(LedgerError, match="remove the file"),
    ):
        append_once(ledger, [Draft(b"a")], NIGHTLY)
    kept = list((remembered.parent / "quarantine").iterdir())
    assert [one.read_bytes() for one in kept] == [data[:-20]]
    remembered.write_bytes(data)
    with Ledger.open(str(remembered.parent)) as ledger:
        assert adopted_before(ledger, NIGHTLY) is not None
