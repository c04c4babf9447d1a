"""The tasks' page lists the options of a task and of their worker, with their defaults."""

from dataclasses import fields

from penstock.tasks import EnqueueOptions, TaskOptions, TasksWorkerOptions
from penstock.tasks.options import TaskKeywords
from tests.docs.pages import rows_with, unquoted


def test_every_option_of_a_task_is_listed_with_its_default() -> None:
    listed = {
        unquoted(row["option"]): unquoted(row["default"])
        for row in rows_with("tasks.md", "option", "default")
    }
    assert listed.pop("name") == "the function's name"
    known = {field.name: repr(field.default).replace("'", '"') for field in fields(TaskOptions)}
    assert listed == known
    assert {"name", *listed} == set(TaskKeywords.__annotations__)


def test_every_option_of_the_worker_is_listed_with_its_default() -> None:
    name = "option of `TasksWorkerOptions`"
    listed = [
        (unquoted(row[name]), unquoted(row["default"]))
        for row in rows_with("tasks.md", name, "default")
    ]
    known = [(field.name, repr(field.default)) for field in fields(TasksWorkerOptions)]
    assert listed == known


def test_every_option_of_a_call_is_listed() -> None:
    listed = {
        unquoted(name)
        for row in rows_with("tasks.md", "option", "meaning")
        if "default" not in row
        for name in row["option"].split(", ")
    }
    assert listed == set(EnqueueOptions.__annotations__)
