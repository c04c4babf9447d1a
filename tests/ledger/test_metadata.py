"""metadata.json: a summary for people and tools; never the truth."""

import json
from typing import Any

import pytest

from penstock.codec import Draft
from tests.ledger.store import EVENT, Store, seqs


def metadata(store: Store) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(store.file("metadata.json").read_bytes())
    return content


def test_closing_leaves_a_summary(store: Store) -> None:
    store.fill(100)
    store.ledger.summary = {"read_message_id": 42}
    store.clock.advance(60)
    store.close()
    assert metadata(store) == {
        "version": 1,
        "next_message_id": 101,
        "created_at": "2023-11-14T22:13:20.000+00:00",
        "updated_at": "2023-11-14T22:14:20.000+00:00",
        "segment_count": len(store.segments()),
        "read_message_id": 42,
    }


def test_a_snapshot_renews_the_summary(store: Store) -> None:
    store.fill(3)
    store.events.append_draft(Draft(b"", type=EVENT))
    store.ledger.save_snapshot(1, b"")
    assert metadata(store)["next_message_id"] == 4


@pytest.mark.parametrize("content", [None, b"", b"garbage", b'{"next_message_id": 1000}'])
def test_what_stands_in_it_has_no_effect(store: Store, content: bytes | None) -> None:
    store.fill(3)
    store.close()
    if content is None:
        store.file("metadata.json").unlink()
    else:
        store.file("metadata.json").write_bytes(content)
    assert store.messages.next_seq == 4
    assert seqs(store.messages) == [1, 2, 3]
    assert store.damage == []
    store.close()
    assert metadata(store)["next_message_id"] == 4
