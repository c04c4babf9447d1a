"""Workers: a function is called for each message of a queue, embedded or of a broker."""

from penstock.worker.middleware import Middleware
from penstock.worker.options import WorkerOptions
from penstock.worker.outcomes import Done, Failed
from penstock.worker.settling import Counts, TimeLimitExceeded
from penstock.worker.worker import Worker

__all__ = ["Counts", "Done", "Failed", "Middleware", "TimeLimitExceeded", "Worker", "WorkerOptions"]
