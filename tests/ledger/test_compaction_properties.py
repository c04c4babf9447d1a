"""Compaction over random queues: whatever the settings, nothing live goes and nothing changes."""

from dataclasses import replace
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import Entry
from penstock.ledger import Compactor, Retention, verify
from penstock.ledger.memory_files import MemoryFiles
from penstock.torture.damage_store import Live
from tests.ledger.store import SMALL, Store, all_entries

retentions = st.builds(
    Retention,
    max_age_s=st.none() | st.integers(0, 200),
    max_bytes=st.none() | st.integers(0, 5000),
    max_segments=st.none() | st.integers(0, 8),
    min_segments=st.integers(0, 4),
    rewrite_below=st.sampled_from([0, 0.2, 0.5, 1]),
)
entries = st.lists(st.integers(0, 300), min_size=1, max_size=80)  # the sizes of their payloads
rounds = st.lists(st.tuples(entries, retentions, st.randoms(use_true_random=False)), max_size=3)


def contents(store: Store) -> dict[int, Entry]:
    return {entry.seq: entry._replace(offset=0, size=0) for entry in all_entries(store.messages)}


@given(rounds=rounds, share=st.floats(0, 1), segment_bytes=st.sampled_from([512, 1000, 4096]))
def test_nothing_live_is_removed_and_what_stays_is_as_it_was(
    rounds: list[tuple[list[int], Retention, Random]],
    share: float,
    segment_bytes: int,
) -> None:
    files = MemoryFiles(mapped_room_bytes=1 << 16)
    settings = replace(SMALL, segment_bytes=segment_bytes, first_step_bytes=256)
    store = Store(Path("/queue"), settings, files=files)
    written: dict[int, Entry] = {}
    live: set[int] = set()
    for sizes, retention, random in rounds:
        for size in sizes:
            store.fill(1, size)
            store.clock.advance(random.choice((0, 1, 10)))
        written |= {seq: entry for seq, entry in contents(store).items() if seq not in written}
        fresh = range(store.messages.next_seq - len(sizes), store.messages.next_seq)
        live = {seq for seq in [*live, *fresh] if random.random() < share}
        next_seq = store.messages.next_seq
        compactor = Compactor(
            store.ledger, store.messages, Live(frozenset(live)), retention, store.clock
        )
        compactor.run()
        for _ in range(2):
            found = contents(store)
            assert live <= found.keys()
            assert all(written[seq] == entry for seq, entry in found.items())
            assert store.messages.next_seq == next_seq
            store.reopen()
        assert verify("/queue", files=files, settings=settings).is_sound
    assert store.damage == []


@given(sizes=entries, retention=retentions, random=st.randoms(use_true_random=False))
def test_a_second_run_finds_nothing_to_do(
    sizes: list[int],
    retention: Retention,
    random: Random,
) -> None:
    store = Store(
        Path("/queue"),
        replace(SMALL, segment_bytes=600, first_step_bytes=256),
        files=MemoryFiles(mapped_room_bytes=1 << 16),
    )
    for size in sizes:
        store.fill(1, size)
    live = Live(frozenset(seq for seq in range(1, len(sizes) + 1) if random.random() < 0.3))
    names = []
    for _ in range(3):
        Compactor(store.ledger, store.messages, live, retention, store.clock).run()
        names.append([segment.name for segment in store.messages.segments.all])
    assert names[1] == names[2]
