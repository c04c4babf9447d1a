"""`penstock worker`: call a function of a module for each message of a queue."""

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from penstock.cli.opening import writing
from penstock.cli.parameters import MAIN, AsJson, InGroup
from penstock.cli.terminal import err, say, write_json
from penstock.cli.words import number, seconds_of
from penstock.errors import InvalidInput
from penstock.worker import Worker, WorkerOptions


def worker(
    handler: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION", help="What is called for each.", show_default=False
        ),
    ],
    queue: Annotated[
        str,
        typer.Option("--queue", "-q", metavar="PATH", help="Its directory, or its URL."),
    ],
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Calls at a time.")
    ] = 1,
    batch: Annotated[
        int, typer.Option(min=1, help="Messages a call; above 1 the function gets a list.")
    ] = 1,
    lease_s: Annotated[
        float,
        typer.Option("--lease", metavar="DURATION", parser=seconds_of, help="Renewed by itself."),
    ] = 30.0,
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=seconds_of, help="For one call."),
    ] = None,
    stop_within: Annotated[
        float,
        typer.Option(metavar="DURATION", parser=seconds_of, help="Then work is handed back."),
    ] = 20.0,
    idle: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=seconds_of, help="Stop if nothing comes so long."),
    ] = None,
    group: InGroup = MAIN,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="A line for each message, and tracebacks, on stderr."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Call a function for each message: acked when it returns, nacked when it raises.

    A coroutine function is run as a task, any other in a thread. SIGTERM and Ctrl-C stop it in good
    order: what is not done in time is handed back, and no attempt is spent. Again, at once.
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
    function = function_of(handler, verbose=verbose)
    level = logging.DEBUG if verbose else logging.INFO
    with _logging_to_stderr(level), writing(queue) as opened:
        counts = Worker(opened, function, options=options).run()
    if json:
        write_json(asdict(counts))
        return
    said = [f"{number(count)} {name.replace('_', ' ')}" for name, count in asdict(counts).items()]
    say(f"{', '.join(said)}.")


def function_of(text: str, *, verbose: bool = False) -> Callable[[Any], object]:
    """The function that MODULE:FUNCTION names; modules are also looked for here."""
    module_name, colon, path = text.partition(":")
    if not colon or not module_name or not path:
        raise typer.BadParameter(f"{text!r} is not MODULE:FUNCTION, such as tasks:handle")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise _not_imported(module_name, error, verbose=verbose) from None
        raise typer.BadParameter(f"there is no module {module_name!r}") from None
    except Exception as error:
        raise _not_imported(module_name, error, verbose=verbose) from None
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise typer.BadParameter(f"{module_name!r} has no {path!r}") from None
    if not callable(found):
        raise typer.BadParameter(f"{text!r} is not a function")
    function: Callable[[Any], object] = found
    return function


def _not_imported(module_name: str, error: Exception, *, verbose: bool) -> InvalidInput:
    """Return the error for a module that fails while it is imported, with the line that failed."""
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
    """Log what happens as it happens: a worker runs unattended."""
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
