"""A backup taken beside a writer is one point in time, whatever the writer does meanwhile."""

import random
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Literal

import pytest

import penstock
from penstock.backup import back_up, restore
from penstock.ledger.files import Files, OpenMode, OsFiles


def open_small(path: Path) -> penstock.Queue:
    return penstock.open(path, segment_bytes=2048, sync="never", auto_compact=False)


class Interrupting(OsFiles):
    """Real files. The n-th call that reads runs something first, as another process could."""

    def __init__(self, nth: int, action: Callable[[], None]) -> None:
        self.left = nth
        self._action = action
        self.calls = 0

    def _count(self) -> None:
        self.calls += 1
        self.left -= 1
        if self.left == 0:
            self._action()

    def open(self, path: str, mode: OpenMode) -> int:
        self._count()
        return super().open(path, mode)

    def names(self, path: str) -> list[str]:
        self._count()
        return super().names(path)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._count()
        return super().pread(fd, length, offset)


def live_seqs(path: Path) -> set[int]:
    """Return the messages that are not done."""
    with penstock.open(path) as queue:
        stats = queue.stats()
        found = {message.seq for message in queue.browse()}
        # A message that the events know and the message log lacks is counted and not found.
        assert stats.ready + stats.scheduled + stats.leased + stats.parked + stats.dead == len(
            found
        )
        assert not queue.stats().storage.damaged
        return found


def restored(backups: Path, target: Path) -> set[int]:
    found = restore(str(backups), str(target))
    assert found.problems == []
    return live_seqs(target)


def fill(queue: penstock.Queue, count: int = 60) -> set[int]:
    for n in range(count):
        queue.enqueue(b"x" * random.Random(n).randint(1, 90))
    last = queue.stats().published
    return set(range(last - count + 1, last + 1))


def consume(queue: penstock.Queue, count: int) -> set[int]:
    """Ack messages of every age, so that segments become mostly dead, not wholly."""
    leases = queue.lease(count)
    acked = [one for number, one in enumerate(leases) if number % 4]
    for one in leases[::4]:
        queue.nack(one, "later", delay=3600)
    queue.ack(acked)
    return {one.message.seq for one in acked}


def number_of_calls(tmp_path: Path) -> int:
    files = Interrupting(0, lambda: None)
    with open_small(tmp_path / "counted") as queue:
        fill(queue)
        consume(queue, 20)
        back_up(str(tmp_path / "counted"), str(tmp_path / "counting"), files=files)
    return files.calls


@pytest.mark.parametrize("compactions", [0, 1, 2])
def test_a_writer_that_acks_and_compacts_at_any_moment_leaves_a_consistent_backup(
    tmp_path: Path, compactions: int
) -> None:
    for nth in range(1 + compactions % 2, number_of_calls(tmp_path) + 1, 2):
        place = tmp_path / str(nth)
        with open_small(place / "q") as queue:
            published = fill(queue)
            acked = consume(queue, 20)
            queue.compact()
            acked |= consume(queue, 8)
            later_acked: set[int] = set()
            later_published: set[int] = set()

            def work(queue: penstock.Queue = queue) -> None:
                later_acked.update(consume(queue, 16))  # noqa: B023
                later_published.update(fill(queue, 20))  # noqa: B023
                queue.enqueue(b"urgent", priority=9)
                later_published.update(one.seq for one in queue.dequeue_batch(1))  # noqa: B023
                later_acked.update(message.seq for message in queue.dequeue_batch(100))  # noqa: B023
                for _ in range(compactions):
                    queue.compact()

            back_up(str(place / "q"), str(place / "b"), files=Interrupting(nth, work))
        found = restored(place / "b", place / "r")
        assert published - acked - later_acked <= found, f"lost, at call {nth}"
        assert not found & acked, f"came back, at call {nth}"
        assert found <= published | later_published


def test_backups_beside_a_busy_writer_lose_nothing_and_bring_nothing_back(tmp_path: Path) -> None:
    path, rng = tmp_path / "q", random.Random(7)
    published: set[int] = set()
    started: set[int] = set()  # acks that were asked for
    acked: set[int] = set()  # acks that were answered
    stop = False
    with penstock.open(path, segment_bytes=4096, sync="never", auto_compact=False) as queue:

        def work() -> None:
            while not stop:
                for _ in range(rng.randint(1, 30)):
                    queue.enqueue(rng.randbytes(rng.randint(0, 200)))
                    published.add(len(published) + 1)
                leases = queue.lease(rng.randint(1, 28))
                seqs = {one.message.seq for one in leases}
                started.update(seqs)
                queue.ack(leases)
                acked.update(seqs)
                if rng.random() < 0.05:
                    queue.compact()

        writer = Thread(target=work)
        writer.start()
        try:
            for round_number in range(6):
                before_published, before_acked = set(published), set(acked)
                back_up(str(path), str(tmp_path / "b"), keep=2)
                after_started = set(started)
                found = restored(tmp_path / "b", tmp_path / f"r{round_number}")
                assert before_published - after_started <= found
                assert not found & before_acked
        finally:
            stop = True
            writer.join()
    assert acked


@pytest.mark.parametrize("policy", ["always", "interval", "never"])
def test_a_backup_has_what_was_answered_with_every_sync_policy(
    tmp_path: Path, policy: Literal["always", "interval", "never"]
) -> None:
    with penstock.open(tmp_path / "q", sync=policy) as queue:
        queue.enqueue_batch([b"one", b"two", b"three"])
        queue.ack(queue.lease(1))
        back_up(str(tmp_path / "q"), str(tmp_path / "b"))
        queue.enqueue(b"later")
    assert restored(tmp_path / "b", tmp_path / "r") == {2, 3}


def test_restored_queue_is_the_same_in_every_detail(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with penstock.open(path, max_attempts=1, segment_bytes=1024, dedup_window_s=3600) as queue:
        queue.groups.create("audit")
        once = queue.enqueue("once", dedup_id="a")
        for n in range(40):
            queue.enqueue(b"plain %d" % n, key=f"k{n % 3}", headers={"n": str(n)}, priority=n % 10)
        queue.enqueue("later", delay=3600)
        queue.dequeue_batch(3)
        queue.nack(queue.lease(1), "ValueError: no")
        (lease,) = queue.lease(1, lease_s=600)
        queue.dequeue_batch(5, group="audit")
        back_up(str(path), str(tmp_path / "b"))
        expected = queue.stats()
        dead = [one.id for one in queue.dead()]
    restore(str(tmp_path / "b"), str(tmp_path / "r"))
    with penstock.open(tmp_path / "r") as again:
        assert again.settings == queue.settings
        for name, group in again.stats().groups.items():
            assert group._replace(oldest_ready_age_s=0) == expected.groups[name]._replace(
                oldest_ready_age_s=0
            )
        assert [one.id for one in again.dead()] == dead
        assert again.enqueue("twice", dedup_id="a") == once
        again.ack(lease.receipt)  # receipts stay valid


def test_unchanged_segments_are_not_copied_again(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q", segment_bytes=4096) as queue:
        fill(queue, 400)
        first = back_up(str(tmp_path / "q"), str(tmp_path / "b"))
        queue.enqueue(b"one more")
        second = back_up(str(tmp_path / "q"), str(tmp_path / "b"))
        third = back_up(str(tmp_path / "q"), str(tmp_path / "b"))
    assert first.copied_bytes == first.size_bytes
    assert 0 < second.copied_bytes <= 4096
    assert third.copied_bytes == 0
    assert len(restored(tmp_path / "b", tmp_path / "r")) == 401


def test_a_rewritten_segment_of_the_same_size_is_copied_again(tmp_path: Path) -> None:
    files: Files = OsFiles()
    with penstock.open(tmp_path / "q", segment_bytes=2048, sync="never") as queue:
        fill(queue, 100)
        back_up(str(tmp_path / "q"), str(tmp_path / "b"))
        sealed = sorted((tmp_path / "q" / "messages").glob("*.log"))[0]
        content = sealed.read_bytes()
        copy = sealed.with_suffix(".new")
        copy.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        files.rename(str(copy), str(sealed))
        again = back_up(str(tmp_path / "q"), str(tmp_path / "b"))
    assert again.copied_bytes >= len(content)
