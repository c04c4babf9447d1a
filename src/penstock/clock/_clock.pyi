# The compiled clock has the types of its twin.
from penstock.clock.clock_py import Gate, SteadyClock

__all__ = ["Gate", "SteadyClock"]
