# Locks that are quick on an idle machine. `clock_py.py` says what they do.
#
# Why they are compiled: waking a thread whose core has gone to sleep takes longer (20 to 50
# microseconds on a virtual machine) than what the thread then does under the interpreter lock. So
# one waiter at a time spins for a moment and yields its core to other threads: that keeps the core
# from sleeping while a sync is under way. It spins without the interpreter lock, which plain Python
# cannot release. Group commit (`AdaptiveLock`) and the broker's sync threads (`Gate`) use them.

cdef extern from "pythread.h" nogil:
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long, int)

cdef extern from *:
    """
    #include <stdatomic.h>
    #include <time.h>
    #if defined(__unix__) || defined(__APPLE__)
    #include <sched.h>

    static atomic_flag a_thread_is_awake = ATOMIC_FLAG_INIT;

    static long long monotonic_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }

    /* Try for a time, if no other thread does. Return 1 if the lock was acquired. */
    static int acquire_awake(PyThread_type_lock lock, long long duration_ns) {
        int acquired = 0;
        if (!atomic_flag_test_and_set(&a_thread_is_awake)) {
            long long end_ns = monotonic_ns() + duration_ns;
            do {
                sched_yield();
                acquired = PyThread_acquire_lock_timed(lock, 0, 0) == PY_LOCK_ACQUIRED;
            } while (!acquired && monotonic_ns() < end_ns);
            atomic_flag_clear(&a_thread_is_awake);
        }
        return acquired;
    }
    #else
    static int acquire_awake(PyThread_type_lock lock, long long duration_ns) {
        return 0;
    }
    #endif
    """
    int acquire_awake(PyThread_type_lock lock, long long duration_ns) nogil

# A wake-up or two. Longer gains nothing more, and takes the core from others on a busy machine.
cdef long long AWAKE_NS = 50_000


cdef int acquire(PyThread_type_lock lock) except -1:
    """Acquire a lock. Signal handlers run meanwhile; if one raises, the lock is not acquired."""
    cdef PyLockStatus status = PY_LOCK_INTR
    while status == PY_LOCK_INTR:
        with nogil:
            if acquire_awake(lock, AWAKE_NS):
                status = PY_LOCK_ACQUIRED
            else:
                status = PyThread_acquire_lock_timed(lock, -1, 1)
        if status == PY_LOCK_INTR:
            PyErr_CheckSignals()
    return 0


cdef class AdaptiveLock:
    """A lock for `with` only: no interrupt comes between acquiring it and the block."""

    cdef PyThread_type_lock lock

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock is NULL:
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        if self.lock is not NULL:
            PyThread_free_lock(self.lock)

    def __enter__(self):
        if PyThread_acquire_lock(self.lock, NOWAIT_LOCK) == 0:
            acquire(self.lock)

    def __exit__(self, kind, error, traceback):
        PyThread_release_lock(self.lock)


cdef class Gate:
    """Closed at first. Each opening lets one thread through, which closes it behind itself."""

    cdef PyThread_type_lock lock

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock is NULL:
            raise MemoryError("no memory for a lock")
        PyThread_acquire_lock(self.lock, WAIT_LOCK)

    def __dealloc__(self):
        if self.lock is not NULL:
            PyThread_free_lock(self.lock)

    def open(self):
        """Let one through: one that waits, or the next that comes. Once, if it is open already."""
        PyThread_acquire_lock(self.lock, NOWAIT_LOCK)
        PyThread_release_lock(self.lock)

    def wait(self):
        """Go through, now or when it is opened. Ctrl-C ends the wait."""
        acquire(self.lock)
