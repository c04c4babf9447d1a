"""How long a failed message waits before the next attempt."""

import hashlib

from penstock.model import NS
from penstock.queue.settings import QueueSettings


def backoff_ns(settings: QueueSettings, *, identity: int, seq: int, failures: int) -> int:
    """Exponential, capped, with a jitter that is the same whenever it is asked for again."""
    exponent = min(failures - 1, 64)
    seconds = min(
        settings.backoff_base_s * settings.backoff_factor**exponent, settings.backoff_max_s
    )
    if settings.backoff_jitter:
        seconds *= 1 + settings.backoff_jitter * _between_minus_one_and_one(identity, seq, failures)
    return round(seconds * NS)


def _between_minus_one_and_one(identity: int, seq: int, failures: int) -> float:
    seed = b"%d/%d/%d" % (identity, seq, failures)
    number = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "little")
    return number / (1 << 63) - 1
