# cython: language_level=3, embedsignature=False, auto_pickle=False
"""Threads that sync files without the interpreter lock, and the lock that they release.

A Python thread that returns from fdatasync has to wait for the interpreter lock, up to 5 ms beside
a busy event loop, and the loop then waits for the thread. These threads never need it: they sync a
file, release the `SyncLock` of its log, and write to an eventfd that the event loop watches.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    NOWAIT_LOCK,
    PY_LOCK_ACQUIRED,
    PY_LOCK_INTR,
    PyLockStatus,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)

import os

cdef extern from "pythread.h" nogil:
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long, int)

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <time.h>
    #include <unistd.h>
    #include <sys/eventfd.h>

    typedef struct sync_job {
        int fd;
        int error;                 /* of fdatasync; 0: none */
        long long took_ns;
        int done;
        PyThread_type_lock lock;   /* released when it is done */
        int *failed;               /* set before the lock is released */
        struct sync_job *next;
    } sync_job;

    typedef struct {
        pthread_mutex_t mutex;
        pthread_cond_t work;
        sync_job *first, *last;    /* not begun yet */
        int idle, threads, most;
        int is_closing;
        int is_signalled;          /* the eventfd was written to, and not read since */
        int wake_fd;
        pthread_t all[64];
    } sync_pool;

    static long long sync_clock_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }

    static void *run_syncs(void *given) {
        sync_pool *pool = given;
        pthread_mutex_lock(&pool->mutex);
        for (;;) {
            while (pool->first == NULL && !pool->is_closing) {
                pool->idle++;
                pthread_cond_wait(&pool->work, &pool->mutex);
                pool->idle--;
            }
            sync_job *job = pool->first;
            if (job == NULL)
                break;
            pool->first = job->next;
            pthread_mutex_unlock(&pool->mutex);
            int failed;
            long long began_ns = sync_clock_ns();
            do
                failed = fdatasync(job->fd);
            while (failed && errno == EINTR);
            job->error = failed ? errno : 0;
            job->took_ns = sync_clock_ns() - began_ns;
            if (job->error)
                *job->failed = job->error;
            PyThread_release_lock(job->lock);
            pthread_mutex_lock(&pool->mutex);
            job->done = 1;
            if (!pool->is_signalled) {
                uint64_t one = 1;
                pool->is_signalled = 1;
                if (write(pool->wake_fd, &one, sizeof one) < 0)
                    pool->is_signalled = 0;  /* cannot happen: the counter is far from full */
            }
        }
        pthread_mutex_unlock(&pool->mutex);
        return NULL;
    }

    static sync_pool *open_sync_pool(int most) {
        sync_pool *pool = calloc(1, sizeof *pool);
        if (pool == NULL)
            return NULL;
        pool->most = most < 64 ? most : 64;
        pool->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (pool->wake_fd < 0) {
            free(pool);
            return NULL;
        }
        pthread_mutex_init(&pool->mutex, NULL);
        pthread_cond_init(&pool->work, NULL);
        return pool;
    }

    /* Return 0, or an error if there is no thread for it. */
    static int add_sync(sync_pool *pool, sync_job *job) {
        int error = 0;
        pthread_mutex_lock(&pool->mutex);
        if (pool->idle == 0 && pool->threads < pool->most) {
            sigset_t all, before;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);  /* signals are for other threads */
            error = pthread_create(&pool->all[pool->threads], NULL, run_syncs, pool);
            pthread_sigmask(SIG_SETMASK, &before, NULL);
            if (!error)
                pool->threads++;
            else if (pool->threads)
                error = 0;
        }
        if (!error) {
            if (pool->first == NULL)
                pool->first = job;
            else
                pool->last->next = job;
            pool->last = job;
            pthread_cond_signal(&pool->work);
        }
        pthread_mutex_unlock(&pool->mutex);
        return error;
    }

    static void end_signal(sync_pool *pool) {
        uint64_t count;
        pthread_mutex_lock(&pool->mutex);
        if (read(pool->wake_fd, &count, sizeof count) < 0) { /* it was not written to */ }
        pool->is_signalled = 0;
        pthread_mutex_unlock(&pool->mutex);
    }

    static int is_sync_done(sync_pool *pool, sync_job *job) {
        pthread_mutex_lock(&pool->mutex);
        int done = job->done;
        pthread_mutex_unlock(&pool->mutex);
        return done;
    }

    /* All work must be done. */
    static void close_sync_pool(sync_pool *pool) {
        pthread_mutex_lock(&pool->mutex);
        pool->is_closing = 1;
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->mutex);
        for (int i = 0; i < pool->threads; i++)
            pthread_join(pool->all[i], NULL);
        pthread_cond_destroy(&pool->work);
        pthread_mutex_destroy(&pool->mutex);
        close(pool->wake_fd);
        free(pool);
    }
    """
    ctypedef struct sync_job:
        int fd
        int error
        long long took_ns
        PyThread_type_lock lock
        int *failed

    ctypedef struct sync_pool:
        int wake_fd

    sync_pool *open_sync_pool(int most)
    int add_sync(sync_pool *pool, sync_job *job)
    void end_signal(sync_pool *pool)
    bint is_sync_done(sync_pool *pool, sync_job *job)
    void close_sync_pool(sync_pool *pool) nogil


cdef class SyncLock:
    """A lock that may be released by a thread of a `SyncPool`.

    `failed` is the error number of a sync that failed, `started` the number of syncs so far.
    """

    cdef PyThread_type_lock _lock
    cdef int _failed
    cdef readonly long started

    def __cinit__(self):
        self._lock = PyThread_allocate_lock()
        if self._lock is NULL:
            raise MemoryError

    def __dealloc__(self):
        if self._lock is not NULL:
            PyThread_free_lock(self._lock)

    @property
    def failed(self):
        return self._failed

    def acquire(self, bint blocking=True):
        if PyThread_acquire_lock(self._lock, NOWAIT_LOCK):
            return True
        if not blocking:
            return False
        self._wait()
        return True

    def release(self):
        if PyThread_acquire_lock(self._lock, NOWAIT_LOCK):
            PyThread_release_lock(self._lock)
            raise RuntimeError("release unlocked lock")
        PyThread_release_lock(self._lock)

    def __enter__(self):
        if not PyThread_acquire_lock(self._lock, NOWAIT_LOCK):
            self._wait()
        return True

    def __exit__(self, *_):
        PyThread_release_lock(self._lock)

    cdef int _wait(self) except -1:
        """Acquire it. Signal handlers run meanwhile; if one raises, it is not acquired."""
        cdef PyLockStatus status = PY_LOCK_INTR
        while status == PY_LOCK_INTR:
            with nogil:
                status = PyThread_acquire_lock_timed(self._lock, -1, 1)
            if status == PY_LOCK_INTR:
                PyErr_CheckSignals()
        return 0


cdef class SyncJob:
    """A sync under way."""

    cdef sync_job _job
    cdef SyncLock _lock  # kept alive
    cdef readonly object owner

    @property
    def error(self):
        """Return the error number of a sync that is done; 0 if it succeeded."""
        return self._job.error

    @property
    def took_ns(self):
        """Return how long a sync that is done took."""
        return self._job.took_ns


cdef class SyncPool:
    """Up to `most` threads, started when they are needed."""

    cdef sync_pool *_pool
    cdef list _running
    cdef int _pid

    def __cinit__(self, int most):
        self._pool = open_sync_pool(most)
        if self._pool is NULL:
            raise OSError("no eventfd, or no memory")
        self._running = []
        self._pid = os.getpid()

    def fileno(self):
        """Return a file descriptor that is readable when a sync has ended."""
        return self._pool.wake_fd

    def start(self, int fd, SyncLock lock, owner):
        """Sync a file, then release the lock, which the caller holds.

        The file stays open until then: nothing closes it without the lock.
        """
        cdef SyncJob job = SyncJob.__new__(SyncJob)
        job._lock, job.owner = lock, owner
        job._job.fd = fd
        job._job.lock = lock._lock
        job._job.failed = &lock._failed
        self._running.append(job)  # first: a thread must not use memory that is freed
        cdef int error = add_sync(self._pool, &job._job)
        if error:
            self._running.remove(job)
            raise OSError(error, os.strerror(error))
        lock.started += 1

    def ended(self):
        """Return the jobs that ended since the last call."""
        cdef SyncJob job
        cdef list ended = []
        end_signal(self._pool)
        cdef list running = []
        for job in self._running:
            (ended if is_sync_done(self._pool, &job._job) else running).append(job)
        self._running = running
        return ended

    def close(self):
        """End the threads. Only if nothing is under way, and not in a forked child."""
        if self._pool is NULL or self._pid != os.getpid():
            return
        with nogil:
            close_sync_pool(self._pool)
        self._pool = NULL
