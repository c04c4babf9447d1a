# A gate between threads that is quick on an idle machine. `gate_py.py` says what it does.
#
# Why it is compiled, and here: waking a thread whose core has gone to sleep takes longer (20 to 50
# microseconds on a virtual machine) than what the thread then does under the interpreter lock. So
# one waiter at a time stays awake for a moment and offers its core to others again and again: it
# keeps the core from sleeping while a sync is under way. Without the interpreter lock, which plain
# Python cannot let go of for that. The broker's sync threads wait at gates.

cdef extern from "pythread.h" nogil:
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long, int)

cdef extern from *:
    """
    #include <stdatomic.h>
    #include <time.h>
    #if defined(__unix__) || defined(__APPLE__)
    #include <sched.h>

    static atomic_flag somebody_is_awake = ATOMIC_FLAG_INIT;

    static long long monotonic_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }

    /* Try for so long, if nobody else does: 1 if it was passed. */
    static int pass_awake(PyThread_type_lock lock, long long duration_ns) {
        int passed = 0;
        if (!atomic_flag_test_and_set(&somebody_is_awake)) {
            long long end_ns = monotonic_ns() + duration_ns;
            do {
                sched_yield();
                passed = PyThread_acquire_lock_timed(lock, 0, 0) == PY_LOCK_ACQUIRED;
            } while (!passed && monotonic_ns() < end_ns);
            atomic_flag_clear(&somebody_is_awake);
        }
        return passed;
    }
    #else
    static int pass_awake(PyThread_type_lock lock, long long duration_ns) {
        return 0;
    }
    #endif
    """
    int pass_awake(PyThread_type_lock lock, long long duration_ns) nogil

# A wake-up or two. Longer gains nothing more, and takes the core from others on a busy machine.
cdef long long AWAKE_NS = 50_000


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
        """Go through, now or when it is opened. Ctrl-C ends the waiting."""
        cdef PyLockStatus status = PY_LOCK_INTR
        while status == PY_LOCK_INTR:
            with nogil:
                if pass_awake(self.lock, AWAKE_NS):
                    status = PY_LOCK_ACQUIRED
                else:
                    status = PyThread_acquire_lock_timed(self.lock, -1, 1)
            if status == PY_LOCK_INTR:
                PyErr_CheckSignals()
