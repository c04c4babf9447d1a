"""The compiled codec gives back what it took, after answers and after errors."""

import gc
import random
import sys

from penstock.codec import Draft
from tests.codec.bodies import needs_compiled
from tests.codec.damage import damaged, random_run


@needs_compiled
def test_no_memory_stays_behind() -> None:
    from tests.codec.damage_suite import read, write

    source = random.Random(3)
    inputs = [damaged(source, random_run(source, 3)) for _ in range(100)]
    blocks = []
    for _ in range(4):
        again = random.Random(4)
        for data in inputs:
            read(data)
            write(again)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert blocks[-1] - blocks[1] < 50  # after hundreds of errors and answers each time


@needs_compiled
def test_no_note_stays_behind() -> None:
    from penstock.codec import _codec

    blocks = []
    for _ in range(4):
        notes = _codec.Notes(1 << 1)
        packer = _codec.Packer(bytearray(1 << 16), position=0, limit=1 << 16, next_seq=1)
        packer.notes = notes
        for number in range(300):
            draft = Draft(b"", priority=3, key=b"%d" % number, attributes={1: b"%d" % number})
            packer.append_batch([draft, draft], number << 40)
            packer.limit = 0
            assert packer.append_batch([draft, draft], number) == -1
            packer.limit = 1 << 16
        assert len(notes.take()[1]) == 600
        del packer, notes, draft
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert blocks[-1] - blocks[1] < 50
