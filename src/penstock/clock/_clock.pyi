# The compiled clock has the types of its twin.
from penstock.clock.clock_py import AdaptiveLock, Gate, SteadyClock

__all__ = ["AdaptiveLock", "Gate", "SteadyClock"]
