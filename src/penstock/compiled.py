"""Choose between a compiled module and plain Python.

The codec and the clock have a compiled module and a pure-Python twin. The compiled one is used if
it was built. Otherwise the twin does the same, slower, and one warning is logged.
`PENSTOCK_CODEC=python` or `PENSTOCK_CODEC=compiled` in the environment asks for one of them.

Other modules are compiled from their Python source, with the types of a .pxd file beside it. Python
imports the compiled one by itself. `PENSTOCK_HTTP=python` asks for the source of the server's,
`PENSTOCK_CODEC=python` for that of the queue's.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_warned: list[str] = []
_STALE_S = 60.0  # a source that is newer by this much was edited; less is an installation


def compiled_or_twin(compiled: str, twin: str, *, revision: int = 0) -> ModuleType:
    """Import and return one of two modules, given by their full names.

    A compiled module with another `REVISION` was built from other sources, and is not used.
    """
    wanted = os.environ.get("PENSTOCK_CODEC", "")
    if wanted not in ("", "python", "compiled"):
        raise ImportError(f"PENSTOCK_CODEC is {wanted!r}; it may be 'python' or 'compiled'")
    if wanted != "python":
        try:
            module = import_module(compiled)
            if getattr(module, "REVISION", 0) != revision:
                raise ImportError(f"{compiled} was built from other sources; build it again")
            return module
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


def compiled_or_none(name: str) -> ModuleType | None:
    """Import and return a compiled module that can be done without; None if it was not built."""
    if os.environ.get("PENSTOCK_CODEC") == "python":
        return None
    try:
        return import_module(name)
    except ImportError:  # there was no compiler
        return None


class _SourceFinder:
    """Finds the source of modules that were compiled as well."""

    def __init__(self, sources: dict[str, Path]) -> None:
        self._sources = sources

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self._sources.get(name)
        return None if source is None else spec_from_file_location(name, source)


def import_compiled_or_source(
    package: str, directory: Path, *names: str, variable: str = "PENSTOCK_HTTP"
) -> None:
    """Have modules of a package imported compiled: all of them, or none.

    The source is used if the environment asks for it, if one was not compiled, or if one was edited
    afterwards. They share C types, so they are not mixed.
    """
    wanted = os.environ.get(variable, "")
    if wanted not in ("", "python", "compiled"):
        raise ImportError(f"{variable} is {wanted!r}; it may be 'python' or 'compiled'")
    sources = {f"{package}.{name}": directory / f"{name.replace('.', '/')}.py" for name in names}
    specs = [PathFinder.find_spec(name, [str(path.parent)]) for name, path in sources.items()]
    compiled = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
    compiled = [path for path in compiled if path.suffix != ".py"]
    reason = "asked for" if wanted == "python" else ""
    if len(compiled) < len(sources):
        reason = "not all of them are compiled"
    elif not reason and any(
        source.exists() and source.stat().st_mtime > path.stat().st_mtime + _STALE_S
        for source, path in zip(sources.values(), compiled, strict=True)
    ):
        reason = "they were edited after they were compiled"
    if reason and wanted == "compiled":
        raise ImportError(
            f"{variable} asks for compiled modules of {package}, but {reason}. Install a C "
            "compiler and the Python headers (Debian: apt install gcc python3-dev), then install "
            f"penstock again; or unset {variable}."
        )
    if reason and compiled:
        if wanted != "python":
            logging.getLogger("penstock").warning(
                "the compiled modules of %s are not used: %s. Install penstock again; "
                "%s=python silences this",
                package,
                reason,
                variable,
            )
        sys.meta_path.insert(0, _SourceFinder(sources))
