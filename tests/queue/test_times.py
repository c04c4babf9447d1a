"""Times that callers give, at the edges of what they can say."""

from pathlib import Path

import penstock


def test_seeking_to_the_time_of_a_message_finds_it(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as queue:
        for number in range(200):
            queue.enqueue(b"%d" % number)
        for message in list(queue.browse()):
            assert queue.seek(time=message.published_at) <= message.seq
            assert queue.dequeue() is not None


def test_delivery_can_be_asked_for_in_the_next_century(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as queue:
        id_ = queue.enqueue(b"hello, 2100", deliver_at=4_102_444_800)
        assert queue.get(id_).deliver_at == 4_102_444_800
