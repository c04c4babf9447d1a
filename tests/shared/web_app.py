"""A web application that publishes each request, as gunicorn runs it. Opened at import.

With `--preload` that is in the master, before it forks its workers.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import penstock

queue = penstock.open(os.environ["SHARED_QUEUE"], shared=True)


def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    id_ = queue.enqueue(environ["PATH_INFO"])
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {id_}".encode()]
