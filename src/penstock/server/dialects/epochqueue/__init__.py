"""The HTTP interface of EpochQueue. Bodies are base64 or text, times are epoch milliseconds.

`max_retries` N means that N failed attempts make a message dead; 0 means the queue's default. A
failed message is ready again at once: queues that are made here have no backoff.
"""

from penstock.server.dialects.epochqueue import (
    catalogue,
    counts,
    dead_letters,
    messages,
    subscriptions,
)

ROUTES = (
    *counts.ROUTES,
    *catalogue.ROUTES,
    *dead_letters.ROUTES,
    *messages.ROUTES,
    *subscriptions.ROUTES,
)
