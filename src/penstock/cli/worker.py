"""`penstock worker`: call a function for each message of a queue, or run the jobs of tasks."""

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from inspect import isfunction
from typing import Annotated, Any

import typer

from penstock.checking import did_you_mean
from penstock.cli import reloading
from penstock.cli.formatting import number
from penstock.cli.options import MAIN, AsJson, InGroup, argument, duration_option, option
from penstock.cli.targets import open_shared, open_to_write
from penstock.cli.terminal import err, print_result
from penstock.errors import InvalidInput
from penstock.worker import Counts, Worker, WorkerOptions


def worker(
    handler: Annotated[
        str, argument("MODULE:NAME", "Function to call for each message, or a Tasks object.")
    ],
    queue: Annotated[
        str | None,
        option(
            "Directory or URL of the queue; for tasks, the name of one queue instead of all.",
            "--queue",
            "-q",
            metavar="PATH",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        option(
            "Number of calls at the same time; by default 1, for tasks 8 in each queue.",
            "--concurrency",
            "-c",
            min=1,
        ),
    ] = None,
    processes: Annotated[
        int, option("For tasks: run the jobs of each queue in this many child processes.", min=0)
    ] = 0,
    reload: Annotated[
        bool, option("Start again when a Python file below this directory changes.", "--reload")
    ] = False,
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
    """Call a function for each message, or run the jobs of a Tasks object.

    A message is acked when the function returns, and nacked when it raises.
    A coroutine function runs as a task, any other function in a thread.
    SIGTERM and Ctrl-C stop the worker: it finishes its messages, or releases them
    after --stop-within, which uses no attempt. A second signal stops it at once.
    """
    if reload:
        reloading.run_and_reload()
        return
    found = load_target(handler, verbose=verbose)
    level = logging.DEBUG if verbose else logging.INFO
    if _is_tasks(found):
        if batch != 1 or time_limit is not None or group != MAIN:
            raise typer.BadParameter(
                "--batch, --time-limit and --group are for functions; tasks have timeout_s"
            )
        with _logging_to_stderr(level):
            counts = _run_tasks(
                found,
                handler,
                concurrency=8 if concurrency is None else concurrency,
                queues=() if queue is None else (queue,),
                processes=processes,
                lease_s=lease_s,
                stop_s=stop_within,
                idle_s=idle,
            )
        _print_counts(counts, as_json=json)
        return
    if not callable(found):
        raise typer.BadParameter(f"{handler!r} is not a function, and not a Tasks object")
    if _is_tasks(getattr(found, "tasks", None)):
        module = handler.partition(":")[0]
        raise typer.BadParameter(
            f"{handler!r} is one task: name the Tasks object, such as {module}:tasks, which runs "
            f"them all"
        )
    if queue is None:
        raise typer.BadParameter("a function needs --queue PATH")
    if processes:
        raise typer.BadParameter("--processes is for tasks: start several workers instead")
    options = WorkerOptions(
        concurrency=1 if concurrency is None else concurrency,
        batch=batch,
        lease_s=lease_s,
        time_limit_s=time_limit,
        stop_s=stop_within,
        idle_s=idle,
        group=group,
    )
    with (
        _logging_to_stderr(level),
        open_shared(queue) if shared else open_to_write(queue) as opened,
    ):
        counts = Worker(opened, found, options=options).run()
    _print_counts(counts, as_json=json)


def _print_counts(counts: Counts, *, as_json: bool) -> None:
    by_name = asdict(counts)
    parts = [f"{number(count)} {name.replace('_', ' ')}" for name, count in by_name.items()]
    print_result(as_json, by_name, f"{', '.join(parts)}.")


def _is_tasks(found: object) -> bool:
    """Return whether a target is a `Tasks`. If it is, its module was imported by the target."""
    registry: Any = sys.modules.get("penstock.tasks.registry")
    return registry is not None and isinstance(found, registry.Tasks)


def _can_work(found: object) -> bool:
    """Return whether a target may be meant: a function, or a `Tasks`."""
    return isfunction(found) or _is_tasks(found)


def _run_tasks(tasks: Any, target: str, **options: Any) -> Counts:
    from penstock.tasks import TasksWorker, TasksWorkerOptions  # needs the extra `tasks`

    try:
        return TasksWorker(tasks, options=TasksWorkerOptions(**options), target=target).run()
    finally:
        tasks.close()


def load_target(text: str, *, verbose: bool = False) -> Any:
    """Return what MODULE:NAME names. The working directory is searched too."""
    module_name, colon, path = text.partition(":")
    if not colon or not module_name or not path:
        raise typer.BadParameter(f"{text!r} is not MODULE:NAME, such as tasks:handle")
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
            functions = [one for one in dir(found) if _can_work(getattr(found, one, None))]
            hint = f"; {did_you_mean(name, functions)}" if functions else ""
            raise typer.BadParameter(f"{module_name!r} has no {path!r}{hint}") from None
    return found


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
    ours = [logging.getLogger("penstock.worker"), logging.getLogger("penstock.tasks")]
    client = logging.getLogger("penstock.client")
    before = [one.level for one in ours], list(client.handlers)
    for one in ours:
        one.setLevel(level)
        one.addHandler(handler)
    client.handlers[:] = [handler]
    try:
        yield
    finally:
        for one, old_level in zip(ours, before[0], strict=True):
            one.setLevel(old_level)
            one.removeHandler(handler)
        client.handlers[:] = before[1]
