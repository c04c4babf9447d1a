"""`penstock workflow show`: draw a workflow of tasks, with the state of each step."""

from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated

from penstock.cli.formatting import printable
from penstock.cli.options import AsJson, QueuePath, argument, command_group, option
from penstock.cli.targets import name_at, neighbour_of, open_to_read
from penstock.cli.terminal import print_json, print_line
from penstock.extras import requires_extra
from penstock.queue.facade import AnyQueue

workflow_app = command_group("workflow", "Look at workflows of tasks.")


class Form(StrEnum):
    """How a workflow is drawn."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"


@workflow_app.command("show")
def show_workflow(
    path: QueuePath,
    workflow: Annotated[str, argument("WORKFLOW", "Id of the workflow.")],
    form: Annotated[Form, option("text, mermaid, or dot for Graphviz.", "--as")] = Form.TEXT,
    json: AsJson = False,
) -> None:
    """Show the steps of a workflow: the state of each, and what it comes after.

    PATH is the queue of the first step. Steps in other queues are looked up beside it.
    """
    with requires_extra("tasks"):
        from penstock.tasks.drawing import draw
        from penstock.tasks.run import read_steps
    with ExitStack() as stack:
        home = name_at(path)
        queues: dict[str, AnyQueue] = {}

        def queue_of(name: str) -> AnyQueue:
            if name not in queues:
                place = path if name == home else neighbour_of(path, name)
                queues[name] = stack.enter_context(open_to_read(place))
            return queues[name]

        steps = read_steps(queue_of, home, workflow)
    if json:
        print_json({"id": workflow, "steps": [step._asdict() for step in steps]})
        return
    for line in draw(steps, form).splitlines():
        print_line(printable(line))
