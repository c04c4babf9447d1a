"""Every option and every setting that a page names exists.

Pages about the internals (`format.md`, `durability.md` …) name constants of the code, which other
tests compare. This module checks the pages for users.
"""

import inspect
import re
import shlex
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import penstock
import penstock.aio
import penstock.arrow
import penstock.client
import penstock.errors
import penstock.model
import penstock.tasks
import penstock.testing
import penstock.worker
from penstock.broker.charts import SERIES
from penstock.broker.settings import BrokerSettings
from penstock.cli.app import app
from penstock.queue.settings import SETTING_TYPES
from penstock.server.openapi import document
from penstock.server.problems import CODES
from penstock.server.rest.all_endpoints import ENDPOINTS
from penstock.server.settings import ServerSettings
from tests.docs.pages import DOCS

INSIDE = {
    *("format.md", "format-rules.md", "format-example.md", "durability.md"),
    *("architecture.md", "scoreboard.md", "testing.md"),
}
OWN_TESTS = {
    "archive.md",
    "dialects.md",
    "spark.md",
    "spark-pipeline.md",
}  # names of other systems, compared by tests of their own
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
FOR_USERS = [page for page in PAGES if page.name not in INSIDE | OWN_TESTS]

OF_OTHER_TOOLS = {
    *("--data-binary", "--metrics"),  # curl's; of benchmarks/embedded.py
    *("--format", "--file", "--pgdata", "--wal-method"),  # of pg_dump and pg_basebackup
    *("--include", "--descriptor"),  # of protoc, up to an underscore
    *("--upgrade", "--no-deps", "--fail", "--output"),  # of pip, curl and openapi-typescript
    *("--py-files", "--archives"),  # of spark-submit
    "--lake",  # of examples/pipeline, parsed by test_spark_how_to_pages
    "--preload",  # of gunicorn
    "--spec",  # of pipx
    *("--includes", "--extension-suffix"),  # of python3-config
}
NO_NAMES_OF_CODE = {
    "copied_bytes",  # a key of `penstock backup --json`
    "trace_id",  # a field of log lines
    "after_seq",  # a field of requests over gRPC
    *("pg_basebackup", "search_path"),  # of PostgreSQL
    *("backing_off", "behind_others", "key_busy"),  # codes of `why`
    *("in_flight", "same_tenant"),  # details of `why`
    *(
        "higher_priority",
        "holder_seq",
        "last_event",
        "left_s",
        "same_priority",
        "missing_count",
    ),  # its details
    *("bytes_read", "last_writer", "payload_encoding"),  # keys of JSON; compared by test_cli_page
    *("client_rate", "queue_rate"),  # reasons in a metric's label
    "moved_by_hash",  # a key of JSON
    "drop_oldest",  # a value
    "work_s",  # a variable of an example
    "run_after",  # of Django
    "sync_modes",  # a key of `penstock torture --json`
    "manylinux_2_34_x86_64",  # a tag of wheels
    "tp_alloc",  # of CPython
    # settings and tools of PostgreSQL
    *("max_wal_size", "pg_repack", "shared_buffers", "synchronous_standby_names"),
    "from_json",  # of Spark
    # of Celery
    *("apply_async", "autoretry_for", "retry_backoff", "task_acks_late"),
    *("visibility_timeout", "wait_time_seconds", "task_always_eager", "task_routes"),
    *("result_ttl", "pre_execute"),  # of RQ and huey
    # of RivetQ and EpochQueue
    *("max_retries", "delay_ms", "max_jobs", "visibility_ms", "idempotency_key"),
    # calls of SQS, as boto3 names them
    *("send_message", "send_message_batch", "receive_message", "delete_message"),
    *("change_message_visibility", "start_message_move_task"),
}


def options_of(command: Any) -> set[str]:
    found = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    return found.union(*(options_of(inner) for inner in getattr(command, "commands", {}).values()))


OPTIONS = options_of(typer.main.get_command(app)) | {"--help"} | OF_OTHER_TOOLS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))
    assert named - OPTIONS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_of_the_environment_is_a_setting(page: Path) -> None:
    tables = {
        "SERVER": {item.name for item in fields(ServerSettings)},
        "BROKER": {item.name for item in fields(BrokerSettings)},
        "QUEUES": set(SETTING_TYPES),
    }
    for table, name in re.findall(r"PENSTOCK_(SERVER|BROKER|QUEUES)_([A-Z_]+)", page.read_text()):
        assert name.lower() in tables[table]


def names_of_code() -> set[str]:
    """Return all settings, fields of requests and answers, and public names of Python."""
    known = set(CODES) | set(SETTING_TYPES) | set(penstock.tasks.EnqueueOptions.__annotations__)
    for options in (
        *(BrokerSettings, ServerSettings),
        *(penstock.client.ClientOptions, penstock.client.Batching, penstock.worker.WorkerOptions),
        *(penstock.tasks.TaskOptions, penstock.tasks.TasksWorkerOptions),
    ):
        known |= {item.name for item in fields(options)}
    described = document(ENDPOINTS)
    for schema in described["components"]["schemas"].values():
        known |= set(schema.get("properties", {}))
    for path, methods in described["paths"].items():
        known |= set(re.findall(r"\w+", path))
        for operation in methods.values():
            known |= {parameter["name"] for parameter in operation["parameters"]}
    for module in (
        *(penstock, penstock.aio, penstock.arrow, penstock.client),
        *(penstock.worker, penstock.model, penstock.tasks, penstock.testing),
    ):
        known |= names_in(module)
    return known


def names_in(module: ModuleType) -> set[str]:
    known = set(dir(module))
    for _, owner in [(module.__name__, module), *inspect.getmembers(module, inspect.isclass)]:
        known |= set(dir(owner)) | set(getattr(owner, "__annotations__", {}))
        for _, call in inspect.getmembers(owner, inspect.isroutine):
            try:
                known |= set(inspect.signature(call).parameters)
            except (TypeError, ValueError):
                continue  # written in C
    return known


NAMES = names_of_code() | NO_NAMES_OF_CODE | {*SERIES}


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_every_setting_and_field_exists(page: Path) -> None:
    named = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", page.read_text()))
    assert {
        name for name in named - NAMES if not name.startswith(("penstock_", "process_"))
    } == set()


# -- command lines ---------------------------------------------------------------------------------


def command_lines(page: Path) -> list[str]:
    """Return the command lines in the blocks and code spans of a page.

    A span that ends in an option only names it, as `penstock keys create --value`.
    """
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^(?: {4,}|\$ )(.*)$", text, re.MULTILINE)
    spans = re.findall(r"`(penstock [^`\n]+)`", text)
    blocks += [re.sub(r" --[a-z-]+$", "", span) for span in spans]
    parts = [part.strip() for line in blocks for part in re.split(r"[|]| -- | \d?>", line)]
    no_line = re.compile("…|JOB")  # stands for something else
    return [
        part for part in parts if re.match(r"penstock [a-z]", part) and not no_line.search(part)
    ]


LINES = [(page, line) for page in PAGES for line in command_lines(page)]


@pytest.mark.parametrize(("page", "line"), LINES, ids=[line for _, line in LINES])
def test_every_command_line_parses(page: Path, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: Any = typer.main.get_command(app)
    context = None
    while hasattr(command, "commands"):
        if words and words[0] not in command.commands and "list" in command.commands:
            words = ["list", *words]
        if not words:
            return  # a group of commands, named as such
        assert words[0] in command.commands, page
        context = command.context_class(command, parent=context, info_name=words[0])
        command, words = command.commands[words[0]], words[1:]
    if words:
        command.make_context(command.name, words, parent=context)
