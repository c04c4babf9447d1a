"""The compiled codec gives back what it took, after answers and after errors."""

import gc
import random
import sys

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
