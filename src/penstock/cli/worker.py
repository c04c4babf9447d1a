"""`penstock worker`: call a function for each message of a queue."""

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from inspect import isfunction
from typing import Annotated, Any

import typer

from penstock.checking import did_you_mean
from penstock.cli.formatting import number
from penstock.cli.options import MAIN, AsJson, InGroup, argument, duration_option, option
from penstock.cli.targets import open_shared, open_to_write
from penstock.cli.terminal import err, print_result
from penstock.errors import InvalidInput
from penstock.worker import Worker, WorkerOptions


def worker(
    handler: Annotated[str, argument("MODULE:FUNCTION", "Function to call for each message.")],
    queue: Annotated[
        str, option("Directory or URL of the queue.", "--queue", "-q", metavar="PATH")
    ],
    concurrency: Annotated[
        int, option("Number of calls at the same time.", "--concurrency", "-c", min=1)
    ] = 1,
    batch: Annotated[
        int, option("Messages per call; above 1 the function gets a list.", min=1)
    ] = 1,
    lease_s: Annotated[
        float, duration_option("Lease of a message; renewed while the function runs.", "--lease")
    ] = 30.0,
    time_limit: Annotated[float | None, duration_option("Time limit of one call.")] = None,
    stop_within: Annotated[
        float, duration_option("Time to finish on a stop; then messages are released.")
    ] = 20.0,
    idle: Annotated[
        float | None, duration_option("Stop if no message arrives for this long.")
    ] = None,
    group: InGroup = MAIN,
    shared: Annotated[
        bool, option("Share the directory with other processes that do so.", "--shared")
    ] = False,
    verbose: Annotated[
        bool, option("Log each message, and tracebacks, on stderr.", "--verbose", "-v")
    ] = False,
    json: AsJson = False,
) -> None:
    """Call a function for each message. Ack it when the function returns, nack it when it raises.

    A coroutine function runs as a task, any other function in a thread.
    SIGTERM and Ctrl-C stop the worker: it finishes its messages, or releases them
    after --stop-within, which uses no attempt. A second signal stops it at once.
    """
    options = WorkerOptions(
        concurrency=concurrency,
        batch=batch,
        lease_s=lease_s,
        time_limit_s=time_limit,
        stop_s=stop_within,
        idle_s=idle,
        group=group,
    )
    function = load_function(handler, verbose=verbose)
    level = logging.DEBUG if verbose else logging.INFO
    with (
        _logging_to_stderr(level),
        open_shared(queue) if shared else open_to_write(queue) as opened,
    ):
        counts = asdict(Worker(opened, function, options=options).run())
    parts = [f"{number(count)} {name.replace('_', ' ')}" for name, count in counts.items()]
    print_result(json, counts, f"{', '.join(parts)}.")


def load_function(text: str, *, verbose: bool = False) -> Callable[[Any], object]:
    """Return the function that MODULE:FUNCTION names. The working directory is searched too."""
    module_name, colon, path = text.partition(":")
    if not colon or not module_name or not path:
        raise typer.BadParameter(f"{text!r} is not MODULE:FUNCTION, such as tasks:handle")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise _import_error(module_name, error, verbose=verbose) from None
        raise typer.BadParameter(f"there is no module {module_name!r}") from None
    except Exception as error:
        raise _import_error(module_name, error, verbose=verbose) from None
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            functions = [one for one in dir(found) if isfunction(getattr(found, one, None))]
            hint = f"; {did_you_mean(name, functions)}" if functions else ""
            raise typer.BadParameter(f"{module_name!r} has no {path!r}{hint}") from None
    if not callable(found):
        raise typer.BadParameter(f"{text!r} is not a function")
    function: Callable[[Any], object] = found
    return function


def _import_error(module_name: str, error: Exception, *, verbose: bool) -> InvalidInput:
    """Return the error for a module that fails on import, with the line that failed."""
    if verbose:
        traceback.print_exception(error, file=err.file)
    if isinstance(error, SyntaxError):
        file, line, what = error.filename, error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if not frame.filename.startswith("<frozen")][-1]
        file, line, what = last.filename, last.lineno, " ".join(str(error).split())
    return InvalidInput(
        f"module {module_name!r} cannot be imported: {type(error).__name__}: {what} "
        f"({file}, line {line})" + ("" if verbose else "; -v shows the traceback")
    )


@contextmanager
def _logging_to_stderr(level: int) -> Iterator[None]:
    """Log to stderr while the worker runs, instead of printing sentences."""
    handler = logging.StreamHandler(err.file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    worker, client = logging.getLogger("penstock.worker"), logging.getLogger("penstock.client")
    before = worker.level, list(client.handlers)
    worker.setLevel(level)
    worker.addHandler(handler)
    client.handlers[:] = [handler]
    try:
        yield
    finally:
        worker.setLevel(before[0])
        worker.removeHandler(handler)
        client.handlers[:] = before[1]
