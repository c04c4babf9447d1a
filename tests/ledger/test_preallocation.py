"""The disk that a queue takes: in steps that double, given back when it rests or closes."""

import os
from dataclasses import replace
from pathlib import Path

from penstock.codec import Draft
from penstock.ledger import Ledger, LedgerSettings, read_entry
from penstock.ledger.settings import KIB, MIB
from tests.ledger.store import EVENT, MODES, SMALL, Store, payloads, seqs


def disk_bytes(root: Path) -> int:
    """What `du` says, without the directories themselves."""
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())


def open_files(root: Path) -> list[str]:
    """The files below a directory that this process has open or mapped."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the descriptor that listed the directory
        if target.startswith(f"{root}/"):
            found.append(target.removeprefix(f"{root}/"))
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found += [line.split(f"{root}/")[1].strip() for line in maps if f"{root}/" in line]
    return sorted(set(found))


def test_an_idle_queue_costs_little_disk_and_no_open_file(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "queue"), LedgerSettings(min_free_bytes=0)) as ledger:
        for _ in range(20):
            ledger.messages.append(b"x" * 100)
            ledger.events.append_draft(Draft(b"done", type=EVENT))
        assert disk_bytes(tmp_path / "queue") < 64 * KIB
        ledger.rest()
        assert disk_bytes(tmp_path / "queue") < 64 * KIB
        assert open_files(tmp_path / "queue") == ["LOCK"]
        assert ledger.messages.append(b"awake") == 21
        assert read_entry(ledger.messages, 1).payload == b"x" * 100
    assert open_files(tmp_path / "queue") == []


def test_resting_closes_what_was_opened_to_read_too(any_store: Store) -> None:
    any_store.fill(200)
    assert len(seqs(any_store.messages)) == 200
    any_store.ledger.rest()
    assert open_files(any_store.path) == ["LOCK"]
    assert len(seqs(any_store.messages)) == 200
    any_store.ledger.rest()
    assert open_files(any_store.path) == ["LOCK"]


def test_many_rotations_need_few_open_files(any_store: Store) -> None:
    any_store.fill(1000)
    assert len(any_store.segments()) > 20
    assert len(open_files(any_store.path)) < 6


def test_files_grow_in_steps_that_double_up_to_the_largest(store: Store) -> None:
    store.open(
        LedgerSettings(
            sync="never",
            first_step_bytes=16 * KIB,
            largest_step_bytes=128 * KIB,
            segment_bytes=1 * MIB,
            min_free_bytes=0,
            reserve_bytes=0,
        )
    )
    sizes: list[int] = []
    while len(store.segments()) < 2:
        store.messages.append(b"x" * 974)
        size = store.segment(1).stat().st_size
        if not sizes or size != sizes[-1]:
            sizes.append(size)
    steps = [size // KIB for size in sizes[:-1]]
    assert steps == [16, 32, 64, 128, 256, 384, 512, 640, 768, 896, 1024]
    assert sizes[-1] % KIB, "trimmed when it was sealed"


def test_the_blocks_are_really_there(store: Store) -> None:
    """A store into a hole on a full disk would be a SIGBUS."""
    store.open(replace(SMALL, first_step_bytes=64 * KIB, largest_step_bytes=64 * KIB))
    store.fill(1)
    assert store.segment(1).stat().st_blocks * 512 >= store.segment(1).stat().st_size


def test_resting_again_and_again_adds_no_byte(any_store: Store) -> None:
    any_store.fill(3)
    any_store.ledger.rest()
    before = any_store.segment(1).read_bytes()
    for _ in range(3):
        any_store.ledger.rest()
    assert any_store.segment(1).read_bytes() == before
    any_store.reopen()
    assert any_store.segment(1).read_bytes() == before


def test_a_rested_ledger_goes_on_where_it_was(any_store: Store) -> None:
    for _ in range(30):
        any_store.fill(3)
        any_store.ledger.rest()
        any_store.events.append_draft(Draft(b"event", type=EVENT))
        any_store.ledger.commit()
    any_store.ledger.rest()
    any_store.reopen_after_death()
    assert seqs(any_store.messages) == list(range(1, 91))
    assert len(seqs(any_store.events)) == 30
    assert any_store.damage == []


def test_modes_can_follow_each_other_in_one_segment(store: Store) -> None:
    for mode in MODES.values():
        store.open(replace(mode, segment_bytes=1 * MIB))
        store.fill(20)
        store.ledger.rest()
        store.fill(5)
        store.close()
    store.open()
    assert len(store.segments()) == 1
    assert len(payloads(store.messages)) == 25 * len(MODES)
