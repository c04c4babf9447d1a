"""HTTP: how the broker is reached from other processes. Transports only translate."""

from pathlib import Path

from penstock.compiled import import_compiled_or_source

COMPILED = (  # if there was a compiler
    "replies",
    "routes",
    "service",
    "call",
    "request_reader",
    "connection",
    "rest.publish",
    "rest.lease",
    "rest.settle",
    "rest.listed_json",
)

import_compiled_or_source(__name__, Path(__file__).parent, *COMPILED)
