"""The access log: a line for each request that is worth one."""

import logging

log = logging.getLogger("penstock.server")


def log_request(method: str, route: str, status: int, took_ns: int, request_id: str) -> None:
    """Tell of a request. The route, not the path: what is in a path may be private."""
    fields = {
        "method": method,
        "route": route,
        "status": status,
        "took_s": round(took_ns / 1e9, 6),
        "request_id": request_id,
    }
    log.log(logging.ERROR if status >= 500 else logging.INFO, "request", extra={"fields": fields})
