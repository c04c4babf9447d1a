"""Choose between a compiled module and its pure-Python twin.

The compiled module is used if it was built. Otherwise the twin does the same, slower, and one
warning is logged. `PENSTOCK_CODEC=python` or `PENSTOCK_CODEC=compiled` in the environment asks for
one of them.
"""

import logging
import os
from importlib import import_module
from types import ModuleType

_warned: list[str] = []


def compiled_or_twin(compiled: str, twin: str) -> ModuleType:
    """Import and return one of two modules, given by their full names."""
    wanted = os.environ.get("PENSTOCK_CODEC", "")
    if wanted not in ("", "python", "compiled"):
        raise ImportError(f"PENSTOCK_CODEC is {wanted!r}; it may be 'python' or 'compiled'")
    if wanted != "python":
        try:
            return import_module(compiled)
        except ImportError as error:  # its message names the missing module
            if wanted == "compiled":
                raise ImportError(
                    f"PENSTOCK_CODEC asks for the compiled codec, but it cannot be used ({error}). "
                    "Install a C compiler and the Python headers (Debian: apt install gcc "
                    "python3-dev), then install penstock again; or unset PENSTOCK_CODEC."
                ) from error
            if not _warned:
                _warned.append(compiled)
                logging.getLogger("penstock").warning(
                    "the compiled codec cannot be used (%s); the pure-Python one does the same, "
                    "many times slower. Install a C compiler and the Python headers, then penstock "
                    "again; PENSTOCK_CODEC=python silences this",
                    error,
                )
    return import_module(twin)
