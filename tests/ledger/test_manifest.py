"""queue.json: identity, settings and marks; damaged, it comes back from the segments' headers."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import pytest

from penstock import codec
from penstock.errors import BadEntry, NewerVersion
from penstock.ledger import Ledger
from penstock.ledger.files import OsFiles
from penstock.ledger.json_files import MAX_MANIFEST_BYTES, Manifest, Marks
from tests.ledger.store import Store, seqs

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "a flipped bit": lambda data: data.replace(b'"identity": ', b'"identity": 1'),
    "no object": lambda data: b"[]",
    "an empty object": lambda data: b"{}",
    "not UTF-8": lambda data: b"\xff" + data,
    "deep": lambda data: b"[" * 100_000,
    "far too large": lambda data: data + b" " * MAX_MANIFEST_BYTES,
    "a missing mark": lambda data: data.replace(b'"messages"', b'"masseges"'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_rebuilt_from_the_segments_and_reported(
    store: Store, damage: str
) -> None:
    store.open(queue_settings={"max_attempts": 3})
    store.fill(50)
    identity = store.ledger.identity
    store.close()
    file = store.file("queue.json")
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    store.open()
    assert store.ledger.identity == identity
    assert seqs(store.messages) == list(range(1, 51))
    assert store.ledger.queue_settings == {}
    [report] = store.damage
    assert (report.file, report.torn) == ("queue.json", False)
    store.reopen()
    assert len(store.damage) == 1, "it was mended"


def test_the_damaged_manifest_is_kept_for_people(store: Store) -> None:
    store.fill(1)
    store.close()
    store.file("queue.json").write_bytes(b"what is this")
    store.open()
    [kept] = (store.path / "quarantine").iterdir()
    assert kept.read_bytes() == b"what is this"


def test_a_missing_manifest_is_made_again(store: Store) -> None:
    store.fill(5)
    identity = store.ledger.identity
    store.close()
    store.file("queue.json").unlink()
    store.open()
    assert store.ledger.identity == identity
    assert seqs(store.messages) == [1, 2, 3, 4, 5]


def test_an_identity_of_zero_is_one_like_any_other(tmp_path: Path) -> None:
    class AllZeros(OsFiles):
        def random_identity(self) -> int:
            return 0

    store = Store(tmp_path / "queue", files=AllZeros())
    store.fill(5)
    store.close()
    store.files = OsFiles()
    store.file("queue.json").unlink()
    assert seqs(store.messages) == [1, 2, 3, 4, 5]
    assert store.ledger.identity == 0
    store.close()


def test_with_the_first_header_damaged_too_identity_comes_from_the_next(store: Store) -> None:
    store.fill(100)
    identity = store.ledger.identity
    store.close()
    store.file("queue.json").write_bytes(b"")
    first = store.segments()[0]
    data = bytearray(first.read_bytes())
    data[10] ^= 1
    first.write_bytes(data)
    store.open()
    assert store.ledger.identity == identity
    assert seqs(store.messages) == list(range(1, 101))


def test_a_manifest_of_a_newer_version_is_left_alone(store: Store) -> None:
    store.fill(1)
    store.close()
    file = store.file("queue.json")
    content = json.loads(file.read_bytes())
    del content["crc"]
    content["format"] = 2
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    file.write_text(json.dumps({**content, "crc": codec.crc32c(canonical)}))
    before = file.read_bytes()
    for open_it in (store.open, store.look):
        with pytest.raises(NewerVersion, match="newer version"):
            open_it()
    assert file.read_bytes() == before


def test_settings_of_the_layer_above_are_kept_as_they_are(store: Store) -> None:
    settings = {"name": "größe", "limits": [1, 2.5, None], "nested": {"a": True}}
    store.open(queue_settings=settings)
    store.fill(1)
    store.reopen()
    assert store.ledger.queue_settings == settings
    store.ledger.save_queue_settings({"name": "other"})
    store.reopen_after_death()
    assert store.ledger.queue_settings == {"name": "other"}


def test_settings_given_at_a_later_opening_do_not_replace_the_stored_ones(store: Store) -> None:
    store.open(queue_settings={"a": 1})
    store.close()
    store.open(queue_settings={"a": 2})
    assert store.ledger.queue_settings == {"a": 1}


def test_identity_is_given_once_and_differs_between_queues(store: Store) -> None:
    store.open()
    identity, created = store.ledger.identity, store.ledger.created_at_ns
    store.clock.advance(100)
    store.reopen()
    assert (store.ledger.identity, store.ledger.created_at_ns) == (identity, created)
    with Ledger.open(str(store.path.parent / "other")) as other:
        assert other.identity != identity


def test_marks_and_settings_saved_side_by_side_are_both_there(store: Store) -> None:
    store.open()
    rounds = 20
    start = Barrier(3)

    def save_marks(log: str) -> None:
        start.wait(30)
        for number in range(1, rounds + 1):
            store.ledger.save_marks(getattr(store.ledger, log), Marks(number, number))

    def save_settings() -> None:
        start.wait(30)
        for number in range(1, rounds + 1):
            store.ledger.save_queue_settings({"number": number})

    threads = [
        Thread(target=save_marks, args=("messages",)),
        Thread(target=save_marks, args=("events",)),
        Thread(target=save_settings),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    manifest = Manifest.unpack(store.file("queue.json").read_bytes())
    assert (manifest.messages, manifest.events) == (Marks(20, 20), Marks(20, 20))
    assert manifest.settings == {"number": 20}


@pytest.mark.parametrize("content", [b"1", b"null", b'"text"', b"{}", b'{"crc": 1}', b"\0" * 9])
def test_unpack_answers_anything_with_a_typed_error(content: bytes) -> None:
    with pytest.raises(BadEntry):
        Manifest.unpack(content)


def test_a_segment_header_alone_does_not_make_two_queues_one(store: Store) -> None:
    """Identity is in every header: a segment copied from elsewhere is seen."""
    store.fill(1)
    (identity,) = struct.unpack_from("<I", store.segment(1).read_bytes(), 8)
    assert identity == store.ledger.identity
