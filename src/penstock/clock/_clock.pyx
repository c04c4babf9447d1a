# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, auto_pickle=False
"""The compiled clock and locks. `clock_py.py` says what they do.

The clock is compiled because every append asks for the time: in plain Python that takes as long as
writing the entry. The machine's own clocks are read here; any others, such as those of tests, are
called.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    NOWAIT_LOCK,
    PY_LOCK_ACQUIRED,
    PY_LOCK_INTR,
    WAIT_LOCK,
    PyLockStatus,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <time.h>

    static long long read_clock_ns(clockid_t id) {
        struct timespec now;
        clock_gettime(id, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }

    /* Elsewhere Python's monotonic clock may be another one. */
    #ifdef __linux__
    #define PENSTOCK_READS_CLOCKS 1
    #else
    #define PENSTOCK_READS_CLOCKS 0
    #endif
    """
    ctypedef int clockid_t
    clockid_t CLOCK_MONOTONIC
    clockid_t CLOCK_REALTIME
    long long read_clock_ns(clockid_t) nogil
    bint READS_CLOCKS "PENSTOCK_READS_CLOCKS"

import time

cdef object SYSTEM_MONOTONIC_NS = time.monotonic_ns
cdef object SYSTEM_WALL_NS = time.time_ns
cdef int64_t COMPARE_EVERY_NS = 1_000_000
cdef int64_t STEP_NS = 1_000_000_000


cdef class SteadyClock:
    """Unix time that never goes back."""

    cdef object _mono
    cdef object _wall
    cdef bint _reads
    cdef int64_t _offset_ns
    cdef int64_t _compare_at_ns

    def __init__(self, monotonic_ns, wall_ns):
        self._mono, self._wall = monotonic_ns, wall_ns
        self._reads = (
            READS_CLOCKS
            and monotonic_ns is SYSTEM_MONOTONIC_NS
            and wall_ns is SYSTEM_WALL_NS
        )
        self._offset_ns = <int64_t>wall_ns() - <int64_t>monotonic_ns()
        self._compare_at_ns = 0

    def start_after(self, int64_t timestamp_ns):
        """Continue from the newest recorded time, if the wall clock is behind it."""
        cdef int64_t behind_ns = timestamp_ns - self._now()
        if behind_ns > 0:
            self._offset_ns += behind_ns

    def now_ns(self):
        """Return the time. It may follow a step a little later than `read` does."""
        return self._now()

    def read(self):
        """Return the time and the monotonic time of the same moment."""
        cdef int64_t mono_ns
        cdef int64_t now_ns = self._read(&mono_ns)
        return now_ns, mono_ns

    @cython.final
    cdef int64_t _now(self) except? -1:
        cdef int64_t mono_ns = self._monotonic()
        if mono_ns >= self._compare_at_ns:
            self._compare_at_ns = mono_ns + COMPARE_EVERY_NS
            return self._read(&mono_ns)
        return mono_ns + self._offset_ns

    @cython.final
    cdef int64_t _read(self, int64_t *mono_ns) except? -1:
        cdef int64_t wall_ns
        cdef int64_t now_ns
        mono_ns[0] = self._monotonic()
        wall_ns = read_clock_ns(CLOCK_REALTIME) if self._reads else self._wall()
        now_ns = mono_ns[0] + self._offset_ns
        if wall_ns - now_ns > STEP_NS:
            self._offset_ns += wall_ns - now_ns
            now_ns = wall_ns
        return now_ns

    @cython.final
    cdef inline int64_t _monotonic(self) except? -1:
        return read_clock_ns(CLOCK_MONOTONIC) if self._reads else self._mono()


include "_locks.pxi"
