"""Import the tasks that MODULE:NAME names."""

import importlib

from penstock.errors import InvalidInput
from penstock.tasks.registry import Tasks


def load_tasks(target: str) -> Tasks:
    """Return the `Tasks` that MODULE:NAME names."""
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise InvalidInput(f"{target!r} is not MODULE:NAME, such as app.jobs:tasks")
    found: object = importlib.import_module(module_name)
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, Tasks):
        raise InvalidInput(f"{target!r} is {found!r}; it must be a penstock.tasks.Tasks")
    return found
